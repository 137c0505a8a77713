"""Token ids of soundstorm-pytorch: semantic tokens that are padded, or shorter than their clips, in quintet's form."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from quintet.compat.items import NamedItems, SplitItems
from quintet.data.splits import Splits
from quintet.errors import UnreadableItem, UsageError
from quintet.families.soundstorm.conditioning import NO_TOKEN
from quintet.families.soundstorm.config import SoundStormModelConfig
from quintet.families.soundstorm.data import PythonTokens, has_token_ids, python_token_splits
from quintet.families.soundstorm.task import SoundStormTask
from quintet.families.soundstorm.trainer import SoundStormTrainer as OwnSoundStormTrainer
from quintet.training.task import Task


def tokens_of(model: SoundStormModelConfig, frames: int) -> int:
    """The number of semantic tokens of a clip."""
    assert model.semantic_rate is not None
    assert model.frame_rate is not None
    return math.ceil(frames * (model.semantic_rate / model.frame_rate))


def fit_semantic(semantic: Tensor, pad_id: int, counts: Sequence[int]) -> Tensor:
    """Semantic tokens (batch, tokens) of clips that have `counts` of them: cut there, and -1 behind.

    Padding, and what is missing at the end, is `NO_TOKEN`: the model gets its null embedding there.
    """
    known = semantic.masked_fill(semantic == pad_id, NO_TOKEN)
    longest = max(counts)
    known = F.pad(known[:, :longest], (0, max(0, longest - known.shape[1])), value=NO_TOKEN)
    ends = torch.tensor(counts, device=known.device)[:, None]
    return known.masked_fill(torch.arange(longest, device=known.device) >= ends, -1)


def semantic_problem(semantic: Tensor, vocabulary: int) -> str | None:
    """A sentence if tokens, without padding, are outside of the vocabulary."""
    lowest, highest = int(semantic.min()), int(semantic.max())
    if lowest < 0 or highest >= vocabulary:
        return f"semantic tokens from {lowest} to {highest}, with num_semantic_token_ids={vocabulary}"
    return None


class TokenItems(NamedItems):
    """The user's data set, and the ids of padding in its items."""

    def __init__(self, dataset: Any, pad_id: int | None, semantic_pad_id: int) -> None:
        super().__init__(dataset, ())
        self.pad_id, self.semantic_pad_id = pad_id, semantic_pad_id
        self.data_kwargs = getattr(dataset, "data_kwargs", None)

    def __getitem__(self, index: int) -> Any:
        return self.dataset[index]


@dataclass
class PaddedTokens(PythonTokens):
    """Token ids of a Python data set, whose semantic tokens may be padded, or shorter than the clip."""

    pad_id: int | None = None
    semantic_pad_id: int = -1

    def routed(self, item: int) -> dict[str, Any]:
        routed = super().routed(item)
        codes = routed["codes"]
        if getattr(codes, "ndim", 0) == 2 and codes.shape[1] != self.model.num_quantizers:
            raise UnreadableItem(
                f"has codes of {codes.shape[1]} quantizers; the conformer has {self.model.num_quantizers} "
                "(num_quantizers * grouped_quantizers)"
            )
        if self.pad_id not in (None, -1) and getattr(codes, "ndim", 0) == 2:
            ids = torch.as_tensor(codes)
            routed["codes"] = ids.masked_fill((ids == self.pad_id).any(1, keepdim=True), -1)
        return routed

    def semantic(self, value: Any, frames: int) -> Tensor:
        if not hasattr(value, "dtype") or "int" not in str(value.dtype) or value.ndim != 1 or not len(value):
            raise UnreadableItem("has no semantic tokens; expected integers with 1 axis")
        tokens = torch.as_tensor(value).detach().cpu().long()
        known = tokens[tokens != self.semantic_pad_id]
        assert self.model.semantic_codes is not None
        if len(known) and (problem := semantic_problem(known, self.model.semantic_codes)):
            raise UnreadableItem(f"has {problem}")
        return fit_semantic(tokens[None], self.semantic_pad_id, [tokens_of(self.model, frames)])[0]


class SoundStormTrainer(OwnSoundStormTrainer):
    """quintet's trainer, which takes padded semantic tokens, and encodes waveforms at every step.

    It has the name of quintet's trainer, which messages show.
    """

    cache_codes = False

    @classmethod
    def splits_of(cls, task: Task[Any], data: Any, validation: Any, declared: Sequence[str] | None) -> Splits:
        assert isinstance(task, SoundStormTask)
        items = data.dataset if isinstance(data, SplitItems) else data
        if not isinstance(items, TokenItems) or not has_token_ids(data, declared) or task.conditioner is not None:
            return super().splits_of(task, data, validation, declared)
        make = partial(PaddedTokens, pad_id=items.pad_id, semantic_pad_id=items.semantic_pad_id)
        return python_token_splits(data, task.config, validation=validation, declared=declared, make=make)


def check_semantic(owner: str, semantic: Tensor, pad_id: int, vocabulary: int) -> None:
    """Raise `UsageError` for tokens outside of the vocabulary."""
    known = semantic[semantic != pad_id]
    # Not on a GPU, where the check would synchronise every step.
    if known.device.type == "cpu" and len(known) and (problem := semantic_problem(known, vocabulary)):
        raise UsageError(f"{owner}: cond_semantic_token_ids has {problem}")
