"""Datasets of token ids handed over in Python, as the original trainer takes them: (semantic, acoustic) pairs,
dictionaries of them, or acoustic ones alone."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from quintet.common.batch import Item
from quintet.common.rng import ItemRNG
from quintet.data.python_dataset import Field, Indexable, PythonDataset, route, split_object
from quintet.data.splits import Splits
from quintet.errors import UnreadableItem
from quintet.families.soundstorm.conditioning import misfit
from quintet.families.soundstorm.config import SoundStormConfig, SoundStormModelConfig


def _are_ids(value: Any, axes: int) -> bool:
    return hasattr(value, "ndim") and value.ndim == axes and "int" in str(value.dtype)


ACOUSTIC = Field(
    "codes",
    ("acoustic_token_ids", "acoustic_tokens", "acoustic", "x"),
    lambda value: _are_ids(value, 2),
    "whole numbers (frames, levels), the acoustic tokens",
)
SEMANTIC = Field(
    "semantic",
    ("semantic_token_ids", "cond_semantic_token_ids", "semantic_tokens"),
    lambda value: _are_ids(value, 1),
    "whole numbers (tokens), the semantic tokens",
)


def hold_tokens(dataset: Indexable, declared: Sequence[str] | None) -> bool:
    """Whether the items of a data set are token ids and not sounds."""
    declared = declared or getattr(dataset, "data_kwargs", None)
    item = dataset[0]
    if isinstance(item, Mapping):
        return any(ACOUSTIC.known_as(key) for key in item)
    if declared is not None:
        return any(ACOUSTIC.known_as(name) for name in declared)
    return any(ACOUSTIC.accepts(value) for value in (item if isinstance(item, (tuple, list)) else (item,)))


@dataclass
class PythonTokens(PythonDataset):
    """Items of a person's own data set. What does not fit the model makes an item unreadable; frames of -1 at the end
    are padding."""

    fields = (ACOUSTIC, SEMANTIC)

    model: SoundStormModelConfig

    def load(self, item: int, draw: ItemRNG) -> Item:
        model = self.model
        routed = self.routed(item)
        codes = _ids(routed["codes"], 2, "acoustic tokens", model.num_codes)
        if codes.shape[1] != model.levels:
            raise UnreadableItem(f"has {codes.shape[1]} levels of acoustic tokens; model.levels={model.levels}")
        if model.max_frames is not None and len(codes) > model.max_frames:
            raise UnreadableItem(f"has {len(codes)} frames, more than model.max_frames={model.max_frames}")
        if model.semantic_codes is None:
            return {"codes": codes}
        semantic = _ids(routed["semantic"], 1, "semantic tokens", model.semantic_codes)
        if reason := misfit(model, len(semantic), len(codes)):
            raise UnreadableItem(reason)
        return {"codes": codes, "semantic": semantic}

    def routed(self, item: int) -> dict[str, Any]:
        fields = self.fields[:1] if self.model.semantic_codes is None else self.fields
        return route(self.dataset[self.positions[item]], fields, self.declared)


def _ids(value: Any, axes: int, what: str, vocabulary: int | None) -> Tensor:
    if not _are_ids(value, axes):
        kind = f"{value.dtype} of shape {tuple(value.shape)}" if hasattr(value, "dtype") else type(value).__name__
        raise UnreadableItem(f"has {kind} for {what}; whole numbers of {axes} axes are expected")
    ids = value.detach().cpu().long() if isinstance(value, Tensor) else torch.from_numpy(np.asarray(value, np.int64))
    there = ids >= 0 if axes == 1 else (ids >= 0).all(1)
    length = int(there.sum())
    if not length:
        raise UnreadableItem(f"has no {what}")
    # Behind the last one only padding may stand, and padding is -1.
    if not there[:length].all() or bool((ids[length:] != -1).any()):
        raise UnreadableItem(f"has {what} below 0 that are no padding at its end")
    if vocabulary is not None and int(ids.max()) >= vocabulary:
        raise UnreadableItem(f"has {what} up to {int(ids.max())}; the vocabulary ends at {vocabulary - 1}")
    return ids[:length]


def python_token_splits(
    dataset: Indexable,
    config: SoundStormConfig,
    *,
    validation: Indexable | None = None,
    declared: Sequence[str] | None = None,
) -> Splits:
    """A data set of token ids, split by fraction and seed unless a validation set comes with it."""
    return split_object(dataset, config.data, partial(PythonTokens, model=config.model), validation, declared)
