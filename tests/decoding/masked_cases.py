"""Cases of masked decoding, in fp64, for any device."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch
from torch import Tensor

from quintet.common.rng import ItemRNG
from quintet.sampling.guidance import Conditioning
from quintet.sampling.masked import TEMPERATURE_SCHEDULES, Sampling, cosine_growth, linear, linear_growth

BATCH, POSITIONS, CODES = 4, 14, 11
MASK = CODES
LENGTHS = (14, 9, 3, 0)
CPU = torch.device("cpu")


class Decode(Protocol):
    def __call__(self, *arguments: Any, **keywords: Any) -> Tensor: ...


@dataclass(frozen=True)
class MaskedCase:
    settings: Mapping[str, Any] = field(default_factory=dict)
    critic: bool = False
    padding: bool = False
    carry: bool = False
    """The model gets its own output of the step before."""
    has_mask_code: bool = False
    """The model also gives a logit of the mask token."""

    def run(self, decode: Decode, device: torch.device = CPU, spoilt: bool = False) -> Tensor:
        """The tokens; with `spoilt`, one logit of each position is not a number."""
        model = TableModel(device, self, spoilt)
        indices = torch.arange(POSITIONS)
        known = indices.expand(BATCH, -1) % CODES
        lengths = torch.tensor(LENGTHS if self.padding else (POSITIONS,) * BATCH)
        return decode(
            model.logits,
            known.to(device),
            (indices % 5 != 2).expand(BATCH, -1).to(device),
            mask_id=CODES if not self.has_mask_code else CODES - 1,
            rng=ItemRNG(3, [0] * BATCH, range(BATCH)),
            settings=Sampling(**{"steps": 6, **self.settings}),
            cond={"text": torch.arange(BATCH).to(device)},
            uncond={"text": torch.full((BATCH,), 4).to(device)},
            valid=(indices < lengths[:, None]).to(device) if self.padding else None,
            critic=model.score if self.critic else None,
        )


class TableModel:
    """Logits that depend on the first tokens, the position, the conditioning, and with `carry` on the step before."""

    def __init__(self, device: torch.device, case: MaskedCase, spoilt: bool) -> None:
        generator = torch.Generator().manual_seed(0)

        def table(rows: int, columns: int = CODES) -> Tensor:
            return (torch.randn(rows, columns, generator=generator, dtype=torch.float64) * 2).to(device)

        self.by_token, self.by_position, self.by_text = table(CODES + 1), table(POSITIONS), table(5)
        self.scores = table(CODES + 1, POSITIONS)
        self.carries, self.spoilt = case.carry, spoilt

    def logits(
        self, tokens: Tensor, conditioning: Conditioning, where: Tensor, previous: Tensor | None
    ) -> tuple[Tensor, Tensor | None]:
        context = self.by_token[tokens[:, :3]].sum(1, keepdim=True)
        logits = context + self.by_position + self.by_text[conditioning["text"]][:, None]
        if previous is not None:
            logits = logits + previous.roll(1, dims=-1) / 2
        if self.spoilt:
            logits = logits.index_fill(2, torch.zeros_like(where[:1]), torch.nan)
        return logits.flatten(0, 1).index_select(0, where), logits if self.carries else None

    def score(self, tokens: Tensor, conditioning: Conditioning) -> Tensor:
        return self.scores[tokens].diagonal(dim1=1, dim2=2) + self.by_text[conditioning["text"]][:, :1]


MASKED_CASES: Mapping[str, MaskedCase] = {
    "plain": MaskedCase(),
    "padding": MaskedCase(padding=True),
    "guidance": MaskedCase({"guidance_scale": 3.0}),
    "guidance that starts and ends": MaskedCase(
        {"guidance_scale": 3.0, "guidance_schedule": lambda progress: 1.0 * ((progress > 0.3) & (progress < 0.8))},
        carry=True,
    ),
    "growing guidance": MaskedCase({"guidance_scale": 4.0, "guidance_schedule": cosine_growth}, padding=True),
    "projected guidance": MaskedCase({"guidance_scale": 3.0, "guidance_projection": True}),
    "critic": MaskedCase(critic=True),
    "critic, guidance and padding": MaskedCase({"guidance_scale": 2.0}, critic=True, padding=True),
    "top_k": MaskedCase({"top_k": 3}),
    "top_k as a fraction": MaskedCase({"top_k": 0.4}),
    "top_p": MaskedCase({"top_p": 0.7}),
    "top_k, top_p and guidance": MaskedCase({"top_k": 5, "top_p": 0.8, "guidance_scale": 2.0}),
    "greedy": MaskedCase({"temperature": 0.0}),
    "falling temperature": MaskedCase({"temperature": 2.0, "temperature_schedule": TEMPERATURE_SCHEDULES["linear"]}),
    "no choice noise": MaskedCase({"choice_temperature": 0.0}),
    "linear schedule": MaskedCase({"schedule": linear}),
    "rising schedule": MaskedCase({"schedule": linear_growth, "steps": 9}),
    "greedy last step": MaskedCase({"greedy_last_step": True}, padding=True),
    "greedy last step with top_k": MaskedCase({"greedy_last_step": True, "top_k": 4, "steps": 3}, padding=True),
    "remask_kept": MaskedCase({"remask_kept": True}),
    "remask_kept, guidance and padding": MaskedCase({"remask_kept": True, "guidance_scale": 3.0}, padding=True),
    "remask_kept, carry and greedy last step": MaskedCase(
        {"remask_kept": True, "greedy_last_step": True}, carry=True, padding=True
    ),
    "self-conditioning": MaskedCase(carry=True),
    "self-conditioning with guidance": MaskedCase({"guidance_scale": 2.5}, carry=True, padding=True),
    "logits of the mask token": MaskedCase(has_mask_code=True),
    "one step": MaskedCase({"steps": 1}),
    "more steps than tokens": MaskedCase({"steps": 20}, padding=True),
}
