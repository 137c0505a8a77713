"""Owns the transformer's data: the codes of captioned meshes, made once by a frozen tokenizer and kept in the cache."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from quintet.core.batch import Item, Source
from quintet.core.batch import collate as collate_equal
from quintet.core.caches import default_folder
from quintet.core.display import say
from quintet.core.draw import Draw
from quintet.core.link import Link
from quintet.core.recipe import Sources
from quintet.data.captioned import check_captions
from quintet.data.code_cache import CacheKey, CodeCache, CodeSource, MediaSource, identity
from quintet.data.meshes import mesh_folder_sources
from quintet.errors import UsageError
from quintet.families.mesh_transformer.config import MeshTransformerConfig
from quintet.families.mesh_transformer.model import PADDING

AUGMENTATION = "stretched 0.75 to 1.25, shifted 0.1"


@dataclass
class FaceSource:
    """The codes of those meshes that are small enough; of larger ones a stretch, where there is a window.

    An item holds `codes` (faces, tokens of a face), `faces`, how many the whole mesh has, and whether the codes begin
    and end with it; where stretches are only looked at, also `whole`, all of its codes.
    """

    codes: CodeSource
    places: Sequence[int]
    """Of the items that are used."""
    counts: Sequence[int]
    """Faces of each of them, in the variant that has most."""
    window: int | None
    train: bool

    def __len__(self) -> int:
        return len(self.places)

    def name(self, item: int) -> str:
        return self.codes.name(self.places[item])

    def load(self, item: int, draw: Draw) -> Item:
        loaded = self.codes.load(self.places[item], draw)
        codes: Tensor = loaded["codes"]
        faces, size = len(codes), len(codes) if self.window is None else min(len(codes), self.window)
        start = int(draw.number("window") * (faces - size + 1))
        whole = {} if self.train or self.window is None else {"whole": codes}
        ends = {"begins": start == 0, "ends": start + size == faces}
        return {**loaded, **whole, **ends, "codes": codes[start : start + size], "faces": faces}

    def lengths(self) -> list[int]:
        """Faces of what is loaded."""
        return [min(count, self.window or count) for count in self.counts]


def collate(items: Sequence[Item]) -> dict[str, Any]:
    """The codes padded to those of the longest, with their `lengths`."""
    codes = [item["codes"] for item in items]
    uneven = ("codes", "whole")
    fields = collate_equal([{name: value for name, value in item.items() if name not in uneven} for item in items])
    if "whole" in items[0]:
        fields["whole"] = [item["whole"] for item in items]
    fields["codes"] = torch.nn.utils.rnn.pad_sequence(codes, batch_first=True, padding_value=PADDING)
    fields["lengths"] = torch.tensor([len(each) for each in codes])
    return fields


def code_sources(config: MeshTransformerConfig, tokenizer: Link) -> Sources:
    """The codes of the folders that the configuration names, from the cache, encoded where they are not yet."""
    data = config.data
    if tokenizer.model.vertices_per_face != 3:
        raise UsageError("files are read as triangles; a model of quads is trained on a data set in Python")
    media = mesh_folder_sources(
        data,
        tokenizer.model.bins,
        data.max_faces,
        decimate=data.decimate,
        augment=data.augment,
        memory_megabytes=data.memory_megabytes,
    )
    return coded(config, tokenizer, media, Path(data.cache) if data.cache else default_folder())


def coded(config: MeshTransformerConfig, tokenizer: Link, media: Sources, folder: Path) -> Sources:
    """The same sources as codes, without the meshes that are too large; `folder` is that of the cache."""
    parts = [_media(source) for source in (media.train, media.validation)]
    captions = [(source.name(item), source.about(item)["texts"]) for source in parts for item in range(len(source))]
    check_captions(config.model, captions, "meshes", config.data.empty_captions)
    variants = config.data.variants if config.data.augment else 1
    skipped = dict(media.skipped)

    def codes(meshes: Source, part: str, variants: int = 1) -> FaceSource:
        key = CacheKey(
            tokenizer.digest,
            f"{part} {identity(getattr(meshes, 'entries', ()))}",
            _transform(config, tokenizer, part),
            variants,
        )
        source = CodeCache(folder, key, _media(meshes), tokenizer.recipe.collate, tokenizer.encode, _tell).open()
        skipped.update({source.name(item): reason for item, reason in source.skipped.items()})
        return _small_enough(config, source, part, skipped)

    train = codes(media.train, "train", variants)
    validation = codes(media.validation, "validation")
    others = {split: codes(source, split) for split, source in media.others.items()}
    return Sources(train, validation, media.fingerprint, skipped, media.about, others)


def _small_enough(config: MeshTransformerConfig, codes: CodeSource, part: str, skipped: dict[str, str]) -> FaceSource:
    """Without what could not be read, and without what is too large where nothing is cut; both are in `skipped`."""
    counts, most = codes.lengths(), config.model.max_faces
    limit = most if config.loss.window is None else max(counts, default=0)
    large = [item for item, count in enumerate(counts) if count > limit]
    for item in large:
        skipped[codes.name(item)] = f"{counts[item]} faces, more than model.max_faces={most}"
    if large:
        say(
            f"{len(large)} of {len(counts)} meshes ({part}) have more than model.max_faces={most} faces and are left "
            "out; loss.window trains on stretches of them"
        )
    used = [item for item, count in enumerate(counts) if 0 < count <= limit]
    if not used:
        reasons = {skipped[codes.name(item)]: codes.name(item) for item in reversed(range(len(counts)))}
        listed = "; ".join(f"{name}: {reason}" for reason, name in [*reasons.items()][-3:])
        raise UsageError(f"none of the {len(counts)} items ({part}) can be used ({listed})")
    return FaceSource(codes, used, [counts[item] for item in used], config.loss.window, part == "train")


def _media(source: Source) -> MediaSource:
    assert hasattr(source, "about")
    return source  # type: ignore[return-value]


def _transform(config: MeshTransformerConfig, tokenizer: Link, part: str) -> str:
    """How meshes are read and, to train on, moved."""
    data = config.data
    text = f"{tokenizer.model.bins} bins, {data.max_faces} faces, decimate={data.decimate}"
    return f"{text}, {AUGMENTATION}" if part == "train" and data.augment else text


def _tell(done: int, total: int) -> None:
    say(f"meshes encoded: {done} of {total}")
