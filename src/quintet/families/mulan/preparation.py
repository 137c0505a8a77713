"""`MuLaNPreparation`: token ids and random numbers of a training batch, computed in the data workers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from quintet.common.batch import Batch
from quintet.families.mulan.augment import drop_words
from quintet.families.mulan.config import AudioTowerConfig
from quintet.families.mulan.towers import SpecAugmentNoise, TokenIds


@dataclass(frozen=True)
class MuLaNPreparation:
    """Called with a collated batch on the CPU. Returns the fields

    - `mask_noise` and `patch_noise` of `SpecAugmentNoise`;
    - `text` and `text_mask` (batch, length), unless a frozen encoder has to embed the texts.
    """

    audio: AudioTowerConfig
    token_ids: TokenIds | None
    """None: the text tower has a frozen encoder."""
    word_dropout: float

    def __call__(self, batch: Batch) -> dict[str, Any]:
        noise = SpecAugmentNoise.sampled(self.audio, batch.rng)
        fields: dict[str, Any] = {"mask_noise": noise.masks, "patch_noise": noise.patches}
        if self.token_ids is None:
            return fields
        if "token_ids" in batch:
            text, mask = self.token_ids.pad(batch["token_ids"])
        else:
            texts = batch["texts"]
            texts = drop_words(texts, batch.rng, self.word_dropout) if self.word_dropout else texts
            text, mask, _ = self.token_ids.encode(texts)
        return {**fields, "text": text, "text_mask": mask}


def noise_of(batch: Batch) -> SpecAugmentNoise:
    """The random numbers of a prepared batch."""
    # In fp32, also if the batch was converted to fp64: the choices do not depend on the precision.
    patches = batch["patch_noise"]
    return SpecAugmentNoise(batch["mask_noise"].float(), None if patches is None else patches.float())
