"""Phenaki's data: the codes of captioned clips, of a folder or of a data set in Python.

The codes are made once by a frozen tokenizer and kept in the cache. Items of a data set in Python are those that the
original trainer takes: videos or codebook ids, frame masks, and texts or their embeddings; in dictionaries, in tuples
with declared names, or in tuples routed by type. Codes of clips of different lengths are padded with -1 to those of the
longest clip of a batch.
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
from quintet.data.tokenized import tokenized_splits
from quintet.data.video import FIELDS as MEDIA
from quintet.data.video import PythonVideos, video_folder_splits
from quintet.errors import UnreadableItem, UsageError
from quintet.families.phenaki.config import PhenakiConfig
from quintet.pipelines.base import Tokenizer

PADDING = -1
_OWN_LENGTH = ("codes", "vectors")


def clip_splits(config: PhenakiConfig, tokenizer: Tokenizer[Any]) -> Splits:
    """The codes of the folders that the configuration names, from the cache, encoded where they are not yet."""
    media = video_folder_splits(config.data, tokenizer.model.config.size)
    check_captions(config.model, media, "clips", config.data.allow_missing_captions)
    return tokenized_splits(
        tokenizer.token_encoder(), media, "clips encoded", cache=config.data.cache_dir, variants=config.data.variants
    )


def collate_clips(items: Sequence[Item]) -> dict[str, Any]:
    """The codes, (items, moments, …), and `there`, which of them there are, (items, codes); left out where all are.

    Embeddings of texts, `vectors` (items, words, width), come with `words`, which of them there are; an item that has
    neither text nor embedding has none of them.
    """
    fields = collate_equal([{name: value for name, value in item.items() if name not in _OWN_LENGTH} for item in items])
    codes = [item["codes"] for item in items]
    fields["codes"] = torch.nn.utils.rnn.pad_sequence(codes, batch_first=True, padding_value=PADDING)
    if len({len(one) for one in codes}) > 1:
        fields["there"] = fields["codes"].flatten(1) != PADDING
    known = [item["vectors"] for item in items if "vectors" in item]
    if known and not any(item.get("texts") for item in items if "vectors" not in item):
        vectors = [item.get("vectors", known[0][:0]) for item in items]
        fields["vectors"] = torch.nn.utils.rnn.pad_sequence(vectors, batch_first=True)
        counts = torch.tensor([len(one) for one in vectors])
        fields["words"] = torch.arange(fields["vectors"].shape[1]) < counts[:, None]
    return fields


def _is(value: Any, kinds: tuple[str, ...], axes: tuple[int, ...]) -> bool:
    named = str(getattr(value, "dtype", "")).removeprefix("torch.")
    return getattr(value, "ndim", None) in axes and named.startswith(kinds)


VIDEOS = Field(
    "videos", MEDIA[0].aliases, lambda value: _is(value, ("float", "uint8"), (3, 4)), MEDIA[0].expects, required=False
)
TEXTS = MEDIA[1]
CODES = Field(
    "codes",
    ("video_codebook_ids", "codebook_ids"),
    lambda value: _is(value, ("int",), (1, 3, 4)),
    "whole numbers (moments, rows, columns), the codebook ids of a video",
    required=False,
)
MASK = Field(
    "mask",
    ("video_frame_mask", "frame_mask"),
    lambda value: _is(value, ("bool",), (1,)),
    "true and false (frames), the frames that there are",
    required=False,
)
VECTORS = Field(
    "vectors",
    ("text_embeds", "text_embeddings"),
    lambda value: _is(value, ("float",), (2,)),
    "numbers (words, width), the embedding of a text",
    required=False,
)
FIELDS = (VIDEOS, TEXTS, CODES, MASK, VECTORS)


def _one_of_both(routed: dict[str, Any]) -> dict[str, Any]:
    """An item as it is, if it holds a video or codebook ids."""
    if ("videos" in routed) == ("codes" in routed):
        both = "both a video and codebook ids" if "videos" in routed else "neither a video nor codebook ids"
        raise UsageError(f"an item of the data set holds {both}; expected one of them")
    return routed


@dataclass
class PythonClips(PythonVideos):
    """Videos of a person's own data set; an item may come with the embedding of its text."""

    fields = FIELDS

    def metadata(self, item: int) -> Item:
        return {**super().metadata(item), **_embedding(self.routed(item))}

    def routed(self, item: int) -> dict[str, Any]:
        """With the frames that there are."""
        routed = _one_of_both(super().routed(item))
        mask, video = routed.get("mask"), routed["videos"]
        if mask is None:
            return routed
        if video.ndim == 3:
            _length(mask, 1)
            return routed
        # Tensors have their channels before the frames, arrays behind.
        there = _length(mask, video.shape[1] if isinstance(video, Tensor) else len(video))
        return {**routed, "videos": video[:, :there] if isinstance(video, Tensor) else video[:there]}


@dataclass
class PythonCodes(PythonDataset):
    """Codebook ids of a person's own data set. What does not fit the model makes an item unreadable."""

    fields = FIELDS

    config: PhenakiConfig
    temporal_patch_size: int | None
    """Frames that one code stands for; none where no tokenizer tells, and a mask is then of moments."""

    def load(self, item: int, rng: ItemRNG) -> Item:
        routed = _one_of_both(self.routed(item))
        codes = self._codes(routed["codes"])
        if routed.get("mask") is not None:
            codes = codes[: self._moments(routed["mask"], len(codes))]
        return {"codes": codes, "texts": caption_of(routed), **_embedding(routed)}

    def _codes(self, value: Any) -> Tensor:
        model = self.config.model
        assert model.grid is not None
        assert model.num_codes is not None
        if not CODES.accepts(value):
            kind = f"{value.dtype} of shape {tuple(value.shape)}" if hasattr(value, "dtype") else type(value).__name__
            raise UnreadableItem(f"has {kind} for codebook ids; expected {CODES.expects}")
        ids = torch.as_tensor(value).detach().cpu().long()
        rest = model.grid[1:]
        if ids.ndim == 1 and len(ids) and len(ids) % prod(rest) == 0:
            ids = ids.view(-1, *rest)
        if tuple(ids.shape[1:]) != rest or not 1 <= len(ids) <= model.grid[0]:
            raise UnreadableItem(
                f"has codebook ids of shape {tuple(ids.shape)}; those of the model are up to {tuple(model.grid)}"
            )
        if int(ids.min()) < 0 or int(ids.max()) >= model.num_codes:
            raise UnreadableItem(
                f"has codebook ids from {int(ids.min())} to {int(ids.max())}; the codebook has {model.num_codes}"
            )
        return ids

    def _moments(self, mask: Any, moments: int) -> int:
        step = self.temporal_patch_size
        if step is None:
            return _length(mask, moments)
        return 1 + -(-(_length(mask, 1 + (moments - 1) * step) - 1) // step)

    def lengths(self) -> list[int]:
        """Moments of each item; 0 where it cannot be used."""
        return [self._length_of(item) for item in range(len(self))]

    def _length_of(self, item: int) -> int:
        try:
            return len(self.load(item, ItemRNG(0, [0], [item]))["codes"])
        except UnreadableItem:
            return 0


def _length(mask: Any, most: int) -> int:
    """How many come first; behind them there is padding alone."""
    there = torch.as_tensor(mask).bool()
    length = int(there.sum())
    if there.ndim != 1 or len(there) != most or not length or not there[:length].all():
        raise UnreadableItem(
            f"has a frame mask of shape {tuple(there.shape)} that is not {most} long and true at first"
        )
    return length


def _embedding(routed: Mapping[str, Any]) -> Item:
    if routed.get("vectors") is None:
        return {}
    vectors = torch.as_tensor(routed["vectors"]).detach().cpu().float()
    if vectors.ndim != 2 or not len(vectors) or not vectors.isfinite().all():
        raise UnreadableItem(f"has a text embedding of shape {tuple(vectors.shape)}, or one that is not finite")
    return {"vectors": vectors}


def python_clip_splits(
    dataset: Indexable,
    config: PhenakiConfig,
    tokenizer: Tokenizer[Any] | None,
    *,
    validation: Indexable | None = None,
    declared: Sequence[str] | None = None,
) -> Splits:
    """A data set object, split by fraction and seed unless a validation set comes with it."""
    first = _one_of_both(route(dataset[0], FIELDS, declared or getattr(dataset, "data_kwargs", None)))
    _check_told(first, config)
    if "codes" in first:
        step = None if tokenizer is None else tokenizer.model.config.temporal_patch_size
        codes = partial(PythonCodes, config=config, temporal_patch_size=step)
        return split_object(dataset, config.data, codes, validation, declared)
    if tokenizer is None:
        raise UsageError("videos need a tokenizer to become codes: hand one over, or a data set of codebook ids")
    if config.data.fps is not None:
        raise UsageError("data.fps goes by time stamps, which clips of a data set in Python do not have")
    height, width = tokenizer.model.config.size
    clips = partial(PythonClips, height=height, width=width, config=config.data)
    media = split_object(dataset, config.data, clips, validation, declared)
    return tokenized_splits(tokenizer.token_encoder(), media, "clips encoded", variants=config.data.variants)


def _check_told(first: Mapping[str, Any], config: PhenakiConfig) -> None:
    """What items tell of a clip must be what the model is told by."""
    text, vectors = config.model.text, first.get("vectors")
    if vectors is not None and text in ("bytes", "words", "classes"):
        raise UsageError(
            f"the items come with text embeddings, {vectors.shape[-1]} wide: train with model.text=vectors and "
            f"model.vector_dim={vectors.shape[-1]}"
        )
    if vectors is None and text == "vectors":
        raise UsageError("model.text=vectors needs items with text embeddings (text_embeds)")
    if vectors is None and text != "none" and first.get("texts") is None and not config.data.allow_missing_captions:
        raise UsageError(
            "the items have no texts: add them, train with data.allow_missing_captions=true, or without text (model.text=none)"
        )
