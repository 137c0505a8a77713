"""`MuLaNPreparation`: token ids and random numbers of a training batch, computed in the data workers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from quintet.common.batch import Batch
from quintet.errors import UsageError
from quintet.families.mulan.augment import drop_words, swap_parts
from quintet.families.mulan.config import AudioTowerConfig
from quintet.families.mulan.towers import SpecAugmentNoise, TokenIds


@dataclass(frozen=True)
class MuLaNPreparation:
    """Called with a collated batch on the CPU. Returns the fields

    - `mask_noise` and `patch_noise` of `SpecAugmentNoise`;
    - `text` and `text_mask` (batch, length), unless a frozen encoder has to embed the texts;
    - with `text_swap_prob`: `swapped` and `swapped_mask` (batch, length), hard negatives of the captions, and
      `is_swapped` (batch,), which captions have one.
    """

    audio: AudioTowerConfig
    token_ids: TokenIds | None
    """None: the text tower has a frozen encoder."""
    word_dropout: float
    text_swap_prob: float = 0.0

    def __call__(self, batch: Batch) -> dict[str, Any]:
        noise = SpecAugmentNoise.sampled(self.audio, batch.rng)
        fields: dict[str, Any] = {"mask_noise": noise.masks, "patch_noise": noise.patches}
        if self.token_ids is None:
            return fields
        if "token_ids" in batch:
            if self.text_swap_prob:
                raise UsageError(
                    "data.text_swap_prob swaps parts of captions, but the data set has token ids; set it to 0"
                )
            text, mask = self.token_ids.pad(batch["token_ids"])
            return {**fields, "text": text, "text_mask": mask}
        texts, swapped = augmented(batch, self.word_dropout, self.text_swap_prob)
        text, mask, _ = self.token_ids.encode(texts)
        fields |= {"text": text, "text_mask": mask}
        if swapped is not None:
            ids, swapped_mask, _ = self.token_ids.encode(swapped)
            fields |= {"swapped": ids, "swapped_mask": swapped_mask, "is_swapped": are_made(swapped)}
        return fields


def augmented(batch: Batch, word_dropout: float, text_swap_prob: float) -> tuple[Sequence[str], list[str] | None]:
    """The captions of a batch for training, and their hard negatives, if there are to be any."""
    texts: Sequence[str] = batch["texts"]
    texts = drop_words(texts, batch.rng, word_dropout) if word_dropout else texts
    return texts, swap_parts(texts, batch.rng, text_swap_prob) if text_swap_prob else None


def are_made(swapped: Sequence[str]) -> Tensor:
    """Mask (batch,) of the captions that have a hard negative."""
    return torch.tensor([bool(text) for text in swapped])


def noise_of(batch: Batch) -> SpecAugmentNoise:
    """The random numbers of a prepared batch."""
    # In fp32, also if the batch was converted to fp64: the choices do not depend on the precision.
    patches = batch["patch_noise"]
    return SpecAugmentNoise(batch["mask_noise"].float(), None if patches is None else patches.float())
