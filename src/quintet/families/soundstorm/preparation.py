"""`SoundStormPreparation`: masked codes and random choices of a training batch, computed in the data workers.

On a GPU, finding the masked positions would make every step wait for the device.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from quintet.common.batch import Batch
from quintet.families.soundstorm.conditioning import align_semantic
from quintet.families.soundstorm.config import SoundStormLossConfig, SoundStormModelConfig
from quintet.families.soundstorm.masking import MaskedCodes, MaskedPositions, mask_codes
from quintet.nn.preparation import check_vocabulary, prepared_texts
from quintet.nn.text import TextPreparation
from quintet.sampling.masked import MASK_SCHEDULES

SELF_CONDITIONED = 0.75
"""Fraction of the rows that are trained with self-conditioning, if it is on."""


@dataclass(frozen=True)
class SoundStormPreparation:
    """Called with a collated batch on the CPU. Returns the fields

    - `tokens`, `levels`, `hidden` and `targets` of `MaskedCodes`, `positions`, `position_order` and
      `packed_positions` of `MaskedPositions`;
    - `has_padding`: whether a clip is shorter than the longest;
    - `keep_condition` (batch,): False where the conditioning is dropped; `use_caption` (batch,): True where the
      embedding of the caption takes the place of that of the clip;
    - `aligned_semantic` (batch, frames, tokens per frame), `self_conditioned` (batch,) and `critic_noise`
      (positions,), if they are needed;
    - `keep_text` (batch,): False where the text is dropped, which it is with the other conditioning; `text` and
      `text_mask` of a text encoder that needs no weights to prepare texts.
    """

    model: SoundStormModelConfig
    loss: SoundStormLossConfig
    prepare_texts: TextPreparation | None = None

    def __call__(self, batch: Batch) -> dict[str, Any]:
        rng, loss, frames = batch.rng, self.loss, batch["frames"]
        assert self.model.num_codes is not None
        valid_codes = batch["codes"].masked_fill(~frames[..., None], 0)
        check_vocabulary(batch.names, valid_codes, self.model.num_codes)
        masked_codes = mask_codes(
            batch["codes"],
            frames,
            rng,
            self.model.num_codes,
            MASK_SCHEDULES[loss.mask_schedule],
            loss.mask_span,
            loss.coarse_bias,
            visible_prob=loss.visible_token_prob,
            random_prob=loss.random_token_prob,
        )
        where = masked_codes.where
        positions = MaskedPositions.of(where)
        fields: dict[str, Any] = {
            "tokens": masked_codes.tokens,
            "levels": masked_codes.levels,
            "hidden": where,
            "targets": masked_codes.targets,
            "positions": positions.flat,
            "position_order": positions.order,
            "packed_positions": positions.packed,
            "has_padding": not bool(frames.all()),
            "keep_condition": rng.uniform("keep condition") >= loss.cond_drop_prob,
        }
        if self.model.text != "none":
            fields |= prepared_texts(self.prepare_texts, batch, fields["keep_condition"])
        if "caption" in batch:
            fields["use_caption"] = rng.uniform("tell caption") < loss.caption_cond_prob
        semantic = batch.fields.get("semantic")
        if self.model.semantic_codes is not None and semantic is not None:
            fields["aligned_semantic"] = align_semantic(self.model, frames, semantic)
        if self.model.self_conditioning:
            fields["self_conditioned"] = rng.uniform("self-conditioning") < SELF_CONDITIONED
        if self.model.self_critic:
            fields["critic_noise"] = rng.uniform("critic", where.shape[1])[where]
        return fields


def masked_codes_of(batch: Batch) -> MaskedCodes:
    """The masked codes of a prepared batch."""
    positions = MaskedPositions(batch["positions"], batch["position_order"], batch["packed_positions"])
    return MaskedCodes(batch["tokens"], batch["levels"], batch["hidden"], batch["targets"], positions)
