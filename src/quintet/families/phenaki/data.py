"""Data of Phenaki: codes of captioned clips, from a folder or from a Python dataset.

A frozen tokenizer encodes the clips once; the codes are stored in the token cache. Items of a Python dataset have the
fields of phenaki-pytorch's trainer: videos or codebook ids, frame masks, and texts or text embeddings; as dictionaries,
as tuples with declared names, or as tuples whose fields are recognized by type. Codes of shorter clips in a batch are
padded with -1.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from math import prod
from typing import Any

import torch
from torch import Tensor

from quintet.common.batch import Item
from quintet.common.batch import collate as collate_equal
from quintet.common.rng import ItemRNG
from quintet.data.captioned import check_captions
from quintet.data.python_dataset import Field, Indexable, PythonDataset, caption_of, route, split_object
from quintet.data.splits import Splits
from quintet.data.text_embeddings import VECTORS, check_embeddings, collate_embeddings, embedding_of, has_type
from quintet.data.tokenized import fresh_splits, tokenized_splits
from quintet.data.video import FIELDS as MEDIA
from quintet.data.video import PythonVideos, range_report, video_folder_splits
from quintet.errors import UnreadableItem, UsageError
from quintet.families.phenaki.config import PhenakiConfig
from quintet.pipelines.base import Tokenizer

PADDING = -1
_VARIABLE_LENGTH = ("codes", "vectors")


def clip_splits(config: PhenakiConfig, tokenizer: Tokenizer[Any]) -> Splits:
    """Codes of the configured folders, from the token cache; missing codes are encoded first."""
    media = video_folder_splits(config.data, tokenizer.model.config.size)
    check_captions(config.model, media, "clips", config.data.allow_missing_captions)
    return tokenized_splits(
        tokenizer.token_encoder(),
        media,
        "clips encoded",
        cache=config.data.cache_dir,
        variants=config.data.variants,
        workers=config.data.num_workers,
        encoding=config.data,
    )


def collate_clips(items: Sequence[Item]) -> dict[str, Any]:
    """`codes` (items, latent frames, …) and `valid_mask` (items, codes), which is left out if there is no padding.

    With text embeddings also `vectors` and `words`; see `collate_embeddings`.
    """
    fields = collate_equal(
        [{name: value for name, value in item.items() if name not in _VARIABLE_LENGTH} for item in items]
    )
    codes = [item["codes"] for item in items]
    fields["codes"] = torch.nn.utils.rnn.pad_sequence(codes, batch_first=True, padding_value=PADDING)
    if len({len(each) for each in codes}) > 1:
        fields["valid_mask"] = fields["codes"].flatten(1) != PADDING
    return {**fields, **collate_embeddings(items)}


VIDEOS = Field(
    "videos",
    MEDIA[0].aliases,
    lambda value: has_type(value, ("float", "uint8"), (3, 4)),
    MEDIA[0].expects,
    required=False,
)
TEXTS = MEDIA[1]
CODES = Field(
    "codes",
    ("video_codebook_ids", "codebook_ids"),
    lambda value: has_type(value, ("int",), (1, 3, 4)),
    "integers (latent frames, rows, columns), the codebook ids of a video",
    required=False,
)
MASK = Field(
    "mask",
    ("video_frame_mask", "frame_mask"),
    lambda value: has_type(value, ("bool",), (1,)),
    "booleans (frames), true for real frames",
    required=False,
)
FIELDS = (VIDEOS, TEXTS, CODES, MASK, VECTORS)


def _check_one_medium(routed: dict[str, Any]) -> dict[str, Any]:
    """The item unchanged, if it holds either a video or codebook ids."""
    if ("videos" in routed) == ("codes" in routed):
        found = "both a video and codebook ids" if "videos" in routed else "neither a video nor codebook ids"
        raise UsageError(f"an item of the dataset holds {found}; expected exactly one of them")
    return routed


@dataclass
class PythonClips(PythonVideos):
    """Videos of a Python dataset; an item may have a text embedding."""

    fields = FIELDS

    def metadata(self, item: int) -> Item:
        return {**super().metadata(item), **embedding_of(self.routed(item))}

    def routed(self, item: int) -> dict[str, Any]:
        """The fields of an item, with padding frames removed from the video."""
        routed = _check_one_medium(super().routed(item))
        mask, video = routed.get("mask"), routed["videos"]
        if mask is None:
            return routed
        if video.ndim == 3:
            _length(mask, 1)
            return routed
        # Tensors are (channels, frames, …), arrays (frames, …, channels).
        length = _length(mask, video.shape[1] if isinstance(video, Tensor) else len(video))
        return {**routed, "videos": video[:, :length] if isinstance(video, Tensor) else video[:length]}


@dataclass
class PythonCodes(PythonDataset):
    """Codebook ids of a Python dataset. Items that do not fit the model are unreadable."""

    fields = FIELDS

    config: PhenakiConfig
    temporal_patch_size: int | None
    """Number of frames that one code covers; None without a tokenizer, and masks are then per latent frame."""

    def load(self, item: int, rng: ItemRNG) -> Item:
        routed = _check_one_medium(self.routed(item))
        codes = self._codes(routed["codes"])
        if routed.get("mask") is not None:
            codes = codes[: self._valid_latent_frames(routed["mask"], len(codes))]
        return {"codes": codes, "texts": caption_of(routed), **embedding_of(routed)}

    def _codes(self, value: Any) -> Tensor:
        model = self.config.model
        assert model.grid is not None
        assert model.num_codes is not None
        if not CODES.accepts(value):
            kind = f"{value.dtype} of shape {tuple(value.shape)}" if hasattr(value, "dtype") else type(value).__name__
            raise UnreadableItem(f"has {kind} for codebook ids; expected {CODES.expects}")
        ids = torch.as_tensor(value).detach().cpu().long()
        frame_shape = model.grid[1:]
        if ids.ndim == 1 and len(ids) and len(ids) % prod(frame_shape) == 0:
            ids = ids.view(-1, *frame_shape)
        if tuple(ids.shape[1:]) != frame_shape or not 1 <= len(ids) <= model.grid[0]:
            raise UnreadableItem(
                f"has codebook ids of shape {tuple(ids.shape)}; the model takes at most {tuple(model.grid)}"
            )
        if int(ids.min()) < 0 or int(ids.max()) >= model.num_codes:
            raise UnreadableItem(
                f"has codebook ids from {int(ids.min())} to {int(ids.max())}; the codebook has {model.num_codes} codes"
            )
        return ids

    def _valid_latent_frames(self, mask: Any, latent_frames: int) -> int:
        step = self.temporal_patch_size
        if step is None:
            return _length(mask, latent_frames)
        return 1 + -(-(_length(mask, 1 + (latent_frames - 1) * step) - 1) // step)

    def lengths(self) -> list[int]:
        """Number of latent frames of each item; 0 for unreadable items."""
        return [self._length_of(item) for item in range(len(self))]

    def _length_of(self, item: int) -> int:
        try:
            return len(self.load(item, ItemRNG(0, [0], [item]))["codes"])
        except UnreadableItem:
            return 0


def _length(mask: Any, expected: int) -> int:
    """Number of true elements of a mask of `expected` elements, which must precede all false elements."""
    valid = torch.as_tensor(mask).bool()
    length = int(valid.sum())
    if valid.ndim != 1 or len(valid) != expected or not length or not valid[:length].all():
        raise UnreadableItem(
            f"has a frame mask of shape {tuple(valid.shape)}; expected ({expected},), true first and then false"
        )
    return length


def first_item(dataset: Indexable, declared: Sequence[str] | None = None) -> dict[str, Any]:
    """The values of the first item by field."""
    return _check_one_medium(route(dataset[0], FIELDS, declared or getattr(dataset, "data_kwargs", None)))


def python_clip_splits(
    dataset: Indexable,
    config: PhenakiConfig,
    tokenizer: Tokenizer[Any] | None,
    *,
    validation: Indexable | None = None,
    declared: Sequence[str] | None = None,
    cache: bool = True,
    unclamped: bool = False,
    projects_embeddings: bool = False,
) -> Splits:
    """Codes of a Python dataset, split by fraction and seed unless a validation set is passed.

    With `cache=False`, videos are read and encoded at every step, instead of once. `unclamped` videos keep their range.
    `projects_embeddings` says that the model takes text embeddings beside texts.
    """
    first = first_item(dataset, declared)
    if first.get("vectors") is None or not projects_embeddings:
        _check_conditioning(first, config)
    if "codes" in first:
        step = None if tokenizer is None else tokenizer.model.config.temporal_patch_size
        codes = partial(PythonCodes, config=config, temporal_patch_size=step)
        return split_object(dataset, config.data, codes, validation, declared)
    if tokenizer is None:
        raise UsageError("a dataset of videos needs a tokenizer: pass one, or pass a dataset of codebook ids")
    if config.data.fps is not None:
        raise UsageError("data.fps needs time stamps, which clips of a Python dataset do not have")
    height, width = tokenizer.model.config.size
    options: dict[str, Any] = {"config": config.data, "unclamped": unclamped, "report_range": range_report()}
    clips = partial(PythonClips, height=height, width=width, **options)
    media = split_object(dataset, config.data, clips, validation, declared)
    if not cache:
        return fresh_splits(tokenizer.token_encoder(), media)
    variants = config.data.variants
    return tokenized_splits(tokenizer.token_encoder(), media, "clips encoded", variants=variants, encoding=config.data)


def _check_conditioning(first: Mapping[str, Any], config: PhenakiConfig) -> None:
    """Check that items have the texts or the text embeddings that `model.text` needs."""
    check_embeddings(first, config.model)
    text = config.model.text
    if (
        first.get("vectors") is None
        and text != "none"
        and first.get("texts") is None
        and not config.data.allow_missing_captions
    ):
        raise UsageError(
            "the items have no texts: add them, train with data.allow_missing_captions=true, or train without text "
            "(model.text=none)"
        )
