"""Data of the mesh transformer: codes of captioned meshes, encoded once and stored in the token cache."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from quintet.common.batch import Dataset, Item
from quintet.common.batch import collate as collate_equal
from quintet.common.logging import say
from quintet.common.rng import ItemRNG
from quintet.data.captioned import check_captions
from quintet.data.mesh import mesh_folder_splits, say_large_meshes
from quintet.data.splits import Splits
from quintet.data.token_cache import TokenDataset
from quintet.data.tokenized import tokenized_splits
from quintet.errors import UsageError
from quintet.families.mesh_transformer.config import MeshTransformerConfig
from quintet.families.mesh_transformer.model import PADDING
from quintet.pipelines.base import Tokenizer


@dataclass
class FaceDataset:
    """The codes of meshes that are small enough, or of a random window of larger ones.

    An item holds `codes` (faces, tokens_per_face), `faces`, the face count of the full mesh, and whether the codes
    include its first face (`begins`) and its last (`ends`). Outside training with a window it also holds `full_codes`.
    """

    codes: TokenDataset
    positions: Sequence[int]
    """Indices into `codes` of the items that are used."""
    counts: Sequence[int]
    """Face count of each of them, in the variant with most faces."""
    window: int | None
    train: bool

    def __len__(self) -> int:
        return len(self.positions)

    def name(self, item: int) -> str:
        return self.codes.name(self.positions[item])

    def load(self, item: int, rng: ItemRNG) -> Item:
        loaded = self.codes.load(self.positions[item], rng)
        codes: Tensor = loaded["codes"]
        faces, size = len(codes), len(codes) if self.window is None else min(len(codes), self.window)
        start = int(rng.number("window") * (faces - size + 1))
        full = {} if self.train or self.window is None else {"full_codes": codes}
        ends = {"begins": start == 0, "ends": start + size == faces}
        return {**loaded, **full, **ends, "codes": codes[start : start + size], "faces": faces}

    def lengths(self) -> list[int]:
        """The number of faces of each loaded item."""
        return [min(count, self.window or count) for count in self.counts]


def collate(items: Sequence[Item]) -> dict[str, Any]:
    """A batch: `codes` (batch, faces, tokens_per_face) padded to the largest mesh, and their `lengths` (batch,)."""
    codes = [item["codes"] for item in items]
    uneven = ("codes", "full_codes")
    fields = collate_equal([{name: value for name, value in item.items() if name not in uneven} for item in items])
    if "full_codes" in items[0]:
        fields["full_codes"] = [item["full_codes"] for item in items]
    fields["codes"] = torch.nn.utils.rnn.pad_sequence(codes, batch_first=True, padding_value=PADDING)
    fields["lengths"] = torch.tensor([len(each) for each in codes])
    return fields


def token_splits(config: MeshTransformerConfig, tokenizer: Tokenizer[Any]) -> Splits:
    """The codes of the folders of the configuration, from the token cache or encoded now."""
    data = config.data
    media = mesh_folder_splits(
        data,
        tokenizer.model.bins,
        data.max_faces,
        decimate=data.decimate,
        augment=data.augment,
        memory_megabytes=data.memory_megabytes,
        corners=tokenizer.model.vertices_per_face,
    )
    say_large_meshes(media)
    return encode_splits(config, tokenizer, media)


def encode_splits(config: MeshTransformerConfig, tokenizer: Tokenizer[Any], media: Splits) -> Splits:
    """The items of `media` as codes, without the meshes that are too large."""
    check_captions(config.model, media, "meshes", config.data.allow_missing_captions)
    variants = config.data.variants if config.data.augment else 1
    encoder = tokenizer.token_encoder()
    codes = tokenized_splits(encoder, media, "meshes encoded", cache=config.data.cache_dir, variants=variants)

    def small_enough(source: Dataset, part: str) -> FaceDataset:
        assert isinstance(source, TokenDataset)
        return _small_enough(config, source, part, codes.skipped)

    return replace(
        codes,
        train=small_enough(codes.train, "train"),
        validation=small_enough(codes.validation, "validation"),
        extra_splits={split: small_enough(source, split) for split, source in codes.extra_splits.items()},
    )


def _small_enough(
    config: MeshTransformerConfig, codes: TokenDataset, part: str, skipped: dict[str, str]
) -> FaceDataset:
    """The dataset without unreadable meshes and, unless windows are used, without too large ones; see `skipped`."""
    counts, max_faces = codes.lengths(), config.model.max_faces
    limit = max_faces if config.loss.window_faces is None else max(counts, default=0)
    large = [item for item, count in enumerate(counts) if count > limit]
    for item in large:
        skipped[codes.name(item)] = f"{counts[item]} faces, more than model.max_faces={max_faces}"
    if large:
        say(
            f"{len(large)} of {len(counts)} meshes ({part}) have more than model.max_faces={max_faces} faces and are "
            "skipped; raise model.max_faces, or set loss.window_faces to train on windows of them"
        )
    used = [item for item, count in enumerate(counts) if 0 < count <= limit]
    if not used:
        reasons = {skipped[codes.name(item)]: codes.name(item) for item in reversed(range(len(counts)))}
        listed = "; ".join(f"{name}: {reason}" for reason, name in [*reasons.items()][-3:])
        raise UsageError(f"none of the {len(counts)} items ({part}) can be used ({listed})")
    return FaceDataset(codes, used, [counts[item] for item in used], config.loss.window_faces, part == "train")
