"""`MaskGitPreparation`: what a training step of a `MaskGit` needs besides its weights, computed in the data workers.

Masks, masked positions and prepared texts depend only on the items and their random numbers. On a GPU, finding the
masked positions would make every step wait for the device.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from quintet.common.batch import Batch
from quintet.nn.maskgit import POSITIONS_MULTIPLE
from quintet.nn.preparation import check_vocabulary, prepared_texts
from quintet.nn.text import TextPreparation
from quintet.sampling import masked

SELF_COND_PROB = 0.9
"""Fraction of rows that get the model's own prediction as input, with `model.self_conditioning`."""


@dataclass(frozen=True)
class CodeRows:
    """The codes of a batch as rows, and their masks."""

    codes: Tensor
    """(batch, positions); padding positions contain arbitrary codes."""
    valid_mask: Tensor | None = None
    """(batch, positions): False at padding; None: no padding."""
    known_mask: Tensor | None = None
    """(batch, positions): codes that are never masked, such as the prompt of a continuation; None: no such codes."""

    @property
    def maskable(self) -> Tensor:
        """(batch, positions): codes that may be masked. On the CPU, where masks are sampled, if both masks are None."""
        valid = torch.ones(self.codes.shape, dtype=torch.bool) if self.valid_mask is None else self.valid_mask
        return valid if self.known_mask is None else valid.to(self.known_mask.device) & ~self.known_mask


@dataclass(frozen=True)
class MaskGitPreparation:
    """Called with a collated batch on the CPU. Returns the fields

    - `keep_text` (batch,): False where the text is dropped; `text` and `text_mask` of a text encoder that needs no
      weights to prepare texts;
    - `code_rows` (batch, positions): the codes; `valid_mask` (batch, positions), or None: no padding;
    - `tokens` (batch, positions): the input of the model; `hidden` (batch, positions): its masked positions;
    - `positions`: the flat indices of masked positions, padded to a multiple of `POSITIONS_MULTIPLE`; `targets`: the
      codes of the masked positions, without padding;
    - `self_conditioned` (batch,) and `critic_noise` (masked positions,), if they are needed.
    """

    code_rows: Callable[[Batch], CodeRows]
    num_codes: int
    """The vocabulary; also the id of the mask token."""
    mask_schedule: masked.Schedule
    cond_drop_prob: float
    prepare_texts: TextPreparation | None
    visible_token_prob: float
    random_token_prob: float
    self_conditioning: bool
    critic: bool

    def __call__(self, batch: Batch) -> dict[str, Any]:
        rows, rng = self.code_rows(batch), batch.rng
        check_vocabulary(batch.names, rows.codes, self.num_codes)
        keep = rng.uniform("keep text") >= self.cond_drop_prob
        hidden = masked.training_mask(rng, rows.maskable, self.mask_schedule)
        tokens = masked.corrupt(
            rng, rows.codes, hidden, self.num_codes, self.visible_token_prob, self.random_token_prob
        )
        positions = hidden.flatten().nonzero()[:, 0]
        fields: dict[str, Any] = {
            **prepared_texts(self.prepare_texts, batch, keep),
            "code_rows": rows.codes,
            "valid_mask": rows.valid_mask,
            "tokens": tokens,
            "hidden": hidden,
            # On a CPU in bf16, every new shape of a product compiles and caches a kernel, so the number is padded.
            "positions": F.pad(positions, (0, -len(positions) % POSITIONS_MULTIPLE)),
            "targets": rows.codes.flatten().index_select(0, positions),
        }
        if self.self_conditioning:
            fields["self_conditioned"] = rng.uniform("self-conditioning") < SELF_COND_PROB
        if self.critic:
            fields["critic_noise"] = rng.uniform("critic", hidden.shape[1])[hidden]
        return fields
