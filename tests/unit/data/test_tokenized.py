"""Tokenized splits: cached codes are never those of other data or another preprocessing."""

from __future__ import annotations

import gc
import io
import os
import tarfile
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image
from torch import Tensor

from contract.cases import GOLDEN
from quintet.common.batch import Batch, Dataset, Item
from quintet.common.rng import ItemRNG
from quintet.config import EncodingConfig, ImageDataConfig
from quintet.data.image import folder_splits
from quintet.data.splits import Splits
from quintet.data.tokenized import TokenEncoder, tokenized_splits
from quintet.errors import RunError
from quintet.pipelines.base import Tokenizer, as_tokenizer
from quintet.pipelines.loading import open_pipeline


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer[Any]:
    return as_tokenizer(open_pipeline(str(GOLDEN / "vqgan-format-1" / "hub")))


def media(pictures: Path, **keys: Any) -> Splits:
    return folder_splits(ImageDataConfig(path=str(pictures), **{"flip": False, **keys}), (16, 16), 3)


def test_items_are_the_same_and_their_codes_are_the_tokenizers(
    tokenizer: Tokenizer[Any], pictures: Path, tmp_path: Path
) -> None:
    found = media(pictures)
    codes = tokenized_splits(tokenizer.token_encoder(), found, "images encoded", cache=str(tmp_path))
    assert codes.fingerprint == found.fingerprint
    assert codes.extra_splits.keys() == found.extra_splits.keys()
    for before, after in ((found.train, codes.train), (found.validation, codes.validation)):
        assert len(before) == len(after)
        original, item = (source.load(1, ItemRNG(0, [0], [1])) for source in (before, after))
        assert (before.name(1), original["texts"]) == (after.name(1), item["texts"])
        assert "images" not in item
        assert torch.equal(item["codes"], tokenizer.model.encode(original["images"][None] / 255)[0])


@pytest.mark.parametrize(
    "keys",
    [{"flip": True}, {"random_crop": True}, {"truncated": "use"}, {"split_seed": 1, "validation_fraction": 0.4}],
    ids=str,
)
def test_other_preprocessing_has_its_own_cache(
    tokenizer: Tokenizer[Any], pictures: Path, tmp_path: Path, keys: dict[str, Any]
) -> None:
    plain = pictures / "images"  # without a split column: fraction and seed decide
    folders: list[set[Path]] = []
    for chosen in ({}, keys):
        tokenized_splits(tokenizer.token_encoder(), media(plain, **chosen), "images encoded", cache=str(tmp_path))
        folders.append({*tmp_path.iterdir()})
    assert folders[0] < folders[1]
    tokenized_splits(tokenizer.token_encoder(), media(plain), "images encoded", cache=str(tmp_path))
    assert {*tmp_path.iterdir()} == folders[1]


def recorded(tokenizer: Tokenizer[Any]) -> tuple[TokenEncoder, list[tuple[int, bool]]]:
    """The encoder, and a list of the size of each batch and whether it was encoded in bf16."""
    encoder, calls = tokenizer.token_encoder(), []

    def encode(batch: Batch) -> Tensor:
        calls.append((len(batch.names), torch.is_autocast_enabled("cpu")))
        return encoder.encode(batch)

    return replace(encoder, encode=encode), calls


@pytest.mark.parametrize(
    ("keys", "batches"),
    [
        ({"encode_batch_size": 20}, [(20, False), (18, False), (10, False)]),
        ({"encode_precision": "bf16"}, [(32, True), (6, True), (10, True)]),
    ],
    ids=str,
)
def test_another_encoding_has_its_own_cache(
    tokenizer: Tokenizer[Any], pictures: Path, tmp_path: Path, keys: dict[str, Any], batches: list[tuple[int, bool]]
) -> None:
    found = media(pictures / "images", validation_fraction=0.25)
    expected = [(32, False), (6, False), (10, False)]
    for chosen, calls in ((EncodingConfig(), expected), (EncodingConfig(**keys), batches), (EncodingConfig(), [])):
        encoder, seen = recorded(tokenizer)
        codes = tokenized_splits(encoder, found, "images encoded", cache=str(tmp_path), encoding=chosen)
        assert seen == calls
        assert len(codes.train) == 38


def test_running_out_of_memory_while_encoding_names_the_key(
    tokenizer: Tokenizer[Any], pictures: Path, tmp_path: Path
) -> None:
    def encode(batch: Batch) -> Tensor:
        raise RuntimeError("can't allocate memory: you tried to allocate 99 bytes")

    encoder = replace(tokenizer.token_encoder(), encode=encode)
    with pytest.raises(RunError, match=r"data\.encode_batch_size"):
        tokenized_splits(encoder, media(pictures / "images"), "images encoded", cache=str(tmp_path))


def test_rewritten_shards_have_their_own_codes(tokenizer: Tokenizer[Any], tmp_path: Path) -> None:
    """The names and sizes are the same; only the modification time of the shard differs."""
    shards = tmp_path / "shards" / "0.tar"
    shards.parent.mkdir()
    for time, shade in enumerate((0, 255)):
        with tarfile.open(shards, "w") as tar:
            for item in range(4):
                content = io.BytesIO()
                Image.new("RGB", (16, 16), (shade, 60 * item, 0)).save(content, "BMP")
                about = tarfile.TarInfo(f"{item}.bmp")
                about.size = content.tell()
                content.seek(0)
                tar.addfile(about, content)
        os.utime(shards, (time, time))
        found = media(shards.parent)
        codes = tokenized_splits(tokenizer.token_encoder(), found, "images encoded", cache=str(tmp_path / "cache"))
        original, item = (source.load(1, ItemRNG(0, [0], [1])) for source in (found.train, codes.train))
        assert torch.equal(item["codes"], tokenizer.model.encode(original["images"][None] / 255)[0])


@dataclass
class Anonymous:
    """A dataset without a preprocessing key."""

    source: Any

    def __len__(self) -> int:
        return len(self.source)

    def name(self, item: int) -> str:
        return str(self.source.name(item))

    def load(self, item: int, rng: ItemRNG) -> Item:
        return dict(self.source.load(item, rng))

    def metadata(self, item: int) -> Item:
        return dict(self.source.metadata(item))


def test_codes_of_a_dataset_without_a_key_last_for_one_training(
    tokenizer: Tokenizer[Any], pictures: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "temporary"))
    (tmp_path / "temporary").mkdir()
    found, cache = media(pictures), str(tmp_path / "cache")
    unknown = replace(found, train=Anonymous(found.train), validation=Anonymous(found.validation), extra_splits={})
    codes: Splits | None = tokenized_splits(tokenizer.token_encoder(), unknown, "items encoded", cache=cache)
    assert codes is not None
    known: Dataset = tokenized_splits(tokenizer.token_encoder(), found, "images encoded", cache=cache).train
    first, second = (source.load(0, ItemRNG(0, [0], [0]))["codes"] for source in (codes.train, known))
    assert torch.equal(first, second)
    assert len([*(tmp_path / "temporary").iterdir()]) == 2
    del codes
    gc.collect()
    assert not [*(tmp_path / "temporary").iterdir()]
