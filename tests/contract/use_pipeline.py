"""Uses the pipeline of an exported model where `quintet.training` and `quintet.runs` cannot be imported.

As a program: `python -m contract.use_pipeline RECIPE EXPORT DATA OUT`. It fails where anything is not as it should be.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

import quintet
from contract.without_training import FORBIDDEN  # before anything of quintet
from quintet import registry
from quintet.common.artifact import Artifact
from quintet.common.batch import Batch
from quintet.common.rng import ItemRNG
from quintet.data.splits import Splits
from quintet.pipelines.base import Embedder, Generator, Pipeline, Tokenizer

TEXTS = ("a red circle", "a tall table")
FIELDS = {"waves": "wavs"}
"""Of a batch, where they are not called like the arguments of `encode`."""


def use(pipeline: Pipeline[Any], out: Path) -> None:
    """All that its classes promise; it may be of more than one."""
    uses = {Tokenizer: use_tokenizer, Generator: use_generator, Embedder: use_embedder}
    own = [function for kind, function in uses.items() if isinstance(pipeline, kind)]
    assert own, f"{type(pipeline).__name__} can do nothing"
    for function in own:
        function(pipeline, out)


def use_tokenizer(tokenizer: Any, out: Path) -> None:
    batch = first_item(tokenizer, tokenizer.splits())
    with tokenizer.inference():
        codes = tokenizer.encode_batch(batch)
        written(tokenizer.decode_files(codes, "again"), out)
    assert codes.shape[0] == 1
    assert 0 <= codes.min() <= codes.max() < tokenizer.model.num_codes

    arguments = [
        name for name, each in inspect.signature(tokenizer.encode).parameters.items() if each.default is each.empty
    ]
    media = [batch[FIELDS.get(name, name)] for name in arguments]
    media = [each / 255 if each.dtype == torch.uint8 else each for each in media]
    own = tokenizer.encode(*media)
    assert torch.equal(own.reshape(codes.shape), codes)
    made = tokenizer.decode(own)
    assert len(made) == 1
    assert finite(made)
    if isinstance(made, Tensor):  # files with full frames may be longer
        assert made.ndim == media[0].ndim
        assert all(now >= before for now, before in zip(made.shape, media[0].shape, strict=True))


def use_generator(generator: Any, out: Path) -> None:
    made = generator(list(TEXTS), num=1, seed=3)
    assert len(made) == len(TEXTS)
    assert finite(made)
    again, other, alone = generator(TEXTS, seed=3), generator(TEXTS, seed=4), generator(TEXTS[0], seed=3)
    assert same(made, again)
    assert not same(made, other)
    assert len(alone) == 1
    assert generator.config.OPTIONS is not None
    written(generator.files(TEXTS[:1], generator.config.OPTIONS(num=2)), out)


def use_embedder(embedder: Any, out: Path) -> None:
    texts = embedder.embed_texts(TEXTS)
    with embedder.inference():
        media = embedder.embed_batch(first_item(embedder, embedder.splits()))
    assert (len(texts), len(media)) == (2, 1)
    for vectors in (texts, media):
        assert finite(vectors)
        torch.testing.assert_close(vectors.norm(dim=-1), torch.ones(len(vectors)))
    assert not torch.equal(texts[0], texts[1])


def first_item(pipeline: Any, splits: Splits) -> Batch:
    rng = ItemRNG(0, [0], [0])
    item = splits.validation.load(0, rng)
    batch = Batch(pipeline.collate([item]), (splits.validation.name(0),), rng)
    return batch.to(pipeline.device, pipeline.dtype)


def written(artifacts: Sequence[Artifact], out: Path) -> None:
    assert artifacts
    for artifact in artifacts:
        artifact.write(out / artifact.file)
        assert (out / artifact.file).stat().st_size > 0


def numbers_in(media: Any) -> Iterator[Tensor]:
    """All tensors and arrays of a result, such as the vertices and faces of meshes in a list."""
    if isinstance(media, Tensor | np.ndarray):
        yield torch.as_tensor(media)
    elif is_dataclass(media):
        yield from numbers_in([getattr(media, field.name) for field in fields(media)])
    else:
        assert isinstance(media, Iterable), f"a {type(media).__name__} is no media"
        for each in media:
            yield from numbers_in(each)


def finite(media: Any) -> bool:
    found = list(numbers_in(media))
    return bool(found) and all(each.numel() > 0 and bool(each.isfinite().all()) for each in found)


def same(one: Any, other: Any) -> bool:
    pairs = zip(numbers_in(one), numbers_in(other), strict=True)
    return all(first.shape == second.shape and bool((first == second).all()) for first, second in pairs)


if __name__ == "__main__":
    recipe, hub, data, folder = sys.argv[1:]
    pipeline_class = getattr(quintet, registry.find(recipe).pipeline)
    opened = pipeline_class.from_pretrained(hub)
    use(opened.with_keys({"data.path": data, "data.validation_path": data}), Path(folder))
    assert not [name for name in sys.modules if name.startswith(FORBIDDEN)]
