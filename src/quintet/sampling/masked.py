"""Masked-token generation (MaskGIT): which tokens a training step masks, and how decoding fills masked ones in.

Muse's grid, Phenaki's video and SoundStorm's levels are all rows of tokens here; nothing in this file knows a
model, a text or an image. A model is a callable

    logits(tokens, conditioning, where, previous) -> (scores of every code at the places asked for, carry)

with `tokens` (batch, places), `conditioning` named tensors with the batch first, `where` (batch, places) the places
that are asked for, and `carry` any tensor with the batch first that the model wants to be given as `previous` at the
next step (self-conditioning), or None.
`previous` is None at the first step. A model that needs to know the padding is told by its conditioning.

Every random number belongs to one item, one step and one place by its index, so neither the split into batches,
the order of rows nor the length of the padding changes what an item becomes. How a code is drawn from scores is in
`filters.py`, and guidance in `guidance.py`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from quintet.common.precision import at_least_fp32
from quintet.common.rng import ItemRNG
from quintet.config.masked import MaskedSampleConfig
from quintet.errors import UsageError
from quintet.sampling.filters import check_filters, check_not_negative, check_scores, choose, uniform
from quintet.sampling.guidance import Conditioning, check_guidance, combined, joined, twice

Schedule = Callable[[Tensor], Tensor]
"""A share as a function of progress in [0, 1]; given and giving float64 on the CPU, element by element."""

Logits = Callable[[Tensor, Conditioning, Tensor, Tensor | None], tuple[Tensor, Tensor | None]]
"""Tokens, conditioning, which places are asked for, (batch, places), and what was carried from the step before, to the
scores of these places alone, (asked for, codes), and what is carried to the next step, batch first, if anything."""
Critic = Callable[[Tensor, Conditioning], Tensor]
"""(batch, places) of whole rows of tokens: the higher, the more likely a token is not the original one."""
Observer = Callable[[int, Tensor, Tensor], None]
"""Told the step, the tokens after it, and which of them are masked."""

# Schedules


def cosine(progress: Tensor) -> Tensor:
    """From 1 to 0, slowly at first: MaskGIT's share of masked tokens."""
    return torch.cos(progress * (math.pi / 2))


def linear(progress: Tensor) -> Tensor:
    """From 1 to 0, evenly."""
    return 1 - progress


def constant(progress: Tensor) -> Tensor:
    """Always 1."""
    return torch.ones_like(progress)


def linear_growth(progress: Tensor) -> Tensor:
    """From 0 to 1, evenly."""
    return progress


def cosine_growth(progress: Tensor) -> Tensor:
    """From 0 to 1, slowly at both ends."""
    return (1 - torch.cos(progress * math.pi)) / 2


MASK_SCHEDULES: Mapping[str, Schedule] = {"cosine": cosine, "linear": linear}
"""Share of tokens that are masked."""

TEMPERATURE_SCHEDULES: Mapping[str, Schedule] = {"constant": constant, "linear": linear}
"""Share of the temperature."""

GUIDANCE_SCHEDULES: Mapping[str, Schedule] = {
    "constant": constant,
    "linear": linear_growth,
    "cosine": cosine_growth,
    "falling": linear,
}
"""Share of the way from no guidance to full guidance."""


@dataclass(frozen=True)
class Sampling:
    """How to decode. The progress that schedules see is the share of steps done after the present one: 1 at the last.

    The guidance of a step is 1 + (guidance - 1) * guidance_schedule: between none, which is 1, and all of it.
    `top_k` is a number of codes, or as a float the share of the codes. `choice_temperature` 4.5 is MaskGIT's. With
    `greedy_last_step` a row's last tokens, after which it has none masked, are the likeliest ones.
    """

    steps: int = 18
    schedule: Schedule = cosine
    temperature: float = 1.0
    temperature_schedule: Schedule = constant
    top_k: int | float | None = None
    top_p: float | None = None
    guidance_scale: float = 1.0
    guidance_schedule: Schedule = constant
    choice_temperature: float = 4.5
    greedy_last_step: bool = False

    def __post_init__(self) -> None:
        if not isinstance(self.steps, int) or self.steps < 1:
            raise UsageError(f"sample.steps is {self.steps}; give a whole number of at least 1.")
        check_not_negative(
            temperature=self.temperature, guidance_scale=self.guidance_scale, choice_temperature=self.choice_temperature
        )
        check_filters(self.top_k, self.top_p)
        named = {
            "schedule": MASK_SCHEDULES,
            "temperature_schedule": TEMPERATURE_SCHEDULES,
            "guidance_schedule": GUIDANCE_SCHEDULES,
        }
        for key, table in named.items():
            value = getattr(self, key)
            if not callable(value):
                raise UsageError(f"sample.{key} is {value!r}; give a function of progress, such as {', '.join(table)}.")

    def temperature_at(self, progress: float) -> float:
        return self.temperature * max(_value(self.temperature_schedule, progress), 0.0)

    def guidance_at(self, progress: float) -> float:
        return 1 + (self.guidance_scale - 1) * _value(self.guidance_schedule, progress)


def sampling_from_config(
    config: MaskedSampleConfig,
    steps: int,
    guidance_scale: float,
    top_k: int | float | None = None,
    greedy_last_step: bool = False,
) -> Sampling:
    """As the keys `sample.*` say, with as much guidance as the model can be led by."""
    return Sampling(
        steps=steps,
        temperature=config.temperature,
        temperature_schedule=TEMPERATURE_SCHEDULES[config.temperature_schedule],
        top_k=top_k,
        top_p=config.top_p,
        guidance_scale=guidance_scale,
        guidance_schedule=GUIDANCE_SCHEDULES[config.guidance_schedule],
        choice_temperature=config.choice_temperature,
        greedy_last_step=greedy_last_step,
    )


# Training


def training_mask(
    rng: ItemRNG, valid: Tensor, schedule: Schedule = cosine, name: str = "mask", span: int = 1
) -> Tensor:
    """Which tokens a model has to guess, as (batch, places) of bool: a share of each row's `valid` ones.

    The share is the schedule at a random progress; at least one token is masked in every row that has any. With a
    `span` they are masked in stretches of so many places (Ziv et al. 2024, 2401.04577), which may overlap, and of
    which the last one is cut where the count is reached.
    """
    lengths = valid.sum(1)
    shares = _values(schedule, rng.uniform(f"{name}-progress").double()).float().to(valid.device)
    counts = torch.round(shares * lengths).long().clamp(min=1).minimum(lengths)
    # float32 on the device of the batch: a training step must not wait to read from it
    orders = -rng.uniform(f"{name}-places", valid.shape[1] + span - 1).to(valid.device)
    if span > 1:
        # A stretch has one number, and a place that of the first stretch to cover it. Some begin before the row, so
        # that its first places are masked as often as others.
        orders = orders.unfold(1, span, 1).amin(-1)
    return _lowest(orders, valid, counts)


# Decoding


def masked_counts(lengths: Tensor, steps: int, schedule: Schedule = cosine) -> Tensor:
    """How many of `lengths` tokens a row are still masked after each step, (steps, batch).

    Every step reveals at least one token of a row that has any left, and the last step all of them, so any
    schedule ends with nothing masked.
    """
    shares = _values(schedule, torch.arange(1, steps + 1, dtype=torch.float64) / steps)
    wanted = torch.round(shares[:, None] * lengths.cpu()).long().clamp(min=0)
    wanted[-1] = 0
    counts, left = [], lengths.cpu()
    for row in wanted:
        left = row.minimum((left - 1).clamp(min=0))
        counts.append(left)
    return torch.stack(counts).to(lengths.device)


@torch.no_grad()
def decode(
    logits: Logits,
    tokens: Tensor,
    generate: Tensor,
    *,
    mask_id: int,
    rng: ItemRNG,
    settings: Sampling,
    cond: Conditioning,
    uncond: Conditioning | None = None,
    valid: Tensor | None = None,
    critic: Critic | None = None,
    on_step: Observer | None = None,
    name: str = "decode",
) -> Tensor:
    """Fill in `tokens` (batch, places) where `generate` is True; all others are given and stay what they are.

    Each step guesses all masked tokens, keeps the ones it trusts and masks as many as `masked_counts` says. Trust
    is the log-probability of the guess, and what is kept stays; with a `critic` it is the critic's opinion of
    all generated tokens, and kept ones may be masked again. Gumbel noise of `choice_temperature`, falling to 0, is added.
    `uncond` is what guidance leads away from (no text, or a negative prompt); it names the tensors of `cond` that
    differ. Where guidance is not 1, both run as one batch, `cond` in its first half.
    Where `valid` is False there is padding, which is neither masked nor generated. Decodings that share a `rng`
    need a `name` each, or their noise is the same. It ends when nothing is masked, if need be before `steps`.
    """
    if tokens.shape != generate.shape or len(rng) != len(tokens):
        raise ValueError(f"tokens {tuple(tokens.shape)}, generate {tuple(generate.shape)} and draw {len(rng)} disagree")
    check_guidance(settings.guidance_scale, uncond)
    generate = generate if valid is None else generate & valid
    left = generate.sum(1).cpu()
    counts = masked_counts(left, settings.steps, settings.schedule)
    both = None if settings.guidance_scale == 1 or uncond is None else joined(cond, uncond)
    tokens, masked = tokens.masked_fill(generate, mask_id), generate
    previous: Tensor | None = None
    for step in range(settings.steps):
        if not left.any():
            break
        left, progress = counts[step], (step + 1) / settings.steps
        scale = settings.guidance_at(progress)
        scores, previous = _predict(logits, tokens, masked, cond, both, previous, scale)
        scores = _checked(scores, mask_id)
        chances = uniform(rng, f"{name}-token-{step}", tokens.shape[1])[masked.cpu()]
        guesses = choose(scores, chances, settings.temperature_at(progress), settings.top_k, settings.top_p)
        if settings.greedy_last_step:
            # Rows end at steps of their own: a short one has fewer tokens than there are steps.
            ends = (left == 0).to(tokens.device)[:, None].expand_as(masked)[masked]
            guesses = torch.where(ends, scores.argmax(-1), guesses)
        tokens = tokens.masked_scatter(masked, guesses.to(tokens.dtype))

        if left.any():
            noise = _gumbel(uniform(rng, f"{name}-choice-{step}", tokens.shape[1]))
            noise *= settings.choice_temperature * (1 - progress)
            if critic is None:
                trust = torch.zeros_like(noise).masked_scatter(masked.cpu(), _log_probability(scores, guesses))
                among = masked
            else:
                trust = -critic(tokens, cond).cpu().double()
                noise, among = -noise, generate
            masked = _lowest(trust + noise, among.cpu(), left).to(tokens.device)
        else:
            masked = torch.zeros_like(masked)
        tokens = tokens.masked_fill(masked, mask_id)
        if on_step is not None:
            on_step(step, tokens, masked)
    return tokens


def _predict(
    logits: Logits,
    tokens: Tensor,
    masked: Tensor,
    cond: Conditioning,
    both: Conditioning | None,
    previous: Tensor | None,
    scale: float,
) -> tuple[Tensor, Tensor | None]:
    """The guided scores of the masked tokens alone, (masked, codes), and what the model carries to its next step."""
    if scale == 1 or both is None:
        scores, carry = logits(tokens, cond, masked, _with_rows(previous, len(tokens)))
        return at_least_fp32(scores), carry
    scores, carry = logits(twice(tokens), both, twice(masked), _with_rows(previous, 2 * len(tokens)))
    return combined(at_least_fp32(scores), scale), carry


def _with_rows(previous: Tensor | None, rows: int) -> Tensor | None:
    """What was carried, where a schedule turned guidance on or off since: the conditional half serves for both."""
    if previous is None or len(previous) == rows:
        return previous
    return previous[:rows] if len(previous) > rows else torch.cat([previous, previous])


def _checked(scores: Tensor, mask_id: int) -> Tensor:
    """Never proposing the mask itself, and refused if they are no distribution."""
    if 0 <= mask_id < scores.shape[-1]:
        scores[:, mask_id] = -math.inf
    return check_scores(scores)


def _log_probability(scores: Tensor, guesses: Tensor) -> Tensor:
    chosen = scores.gather(-1, guesses[:, None])[:, 0]
    return (chosen - scores.logsumexp(-1)).cpu().double()


def _lowest(values: Tensor, among: Tensor, counts: Tensor) -> Tensor:
    """The places of each row's `counts` lowest values among some; equals in the order of their places."""
    limits = torch.finfo(values.dtype)
    values = values.nan_to_num(nan=limits.min, posinf=limits.max, neginf=limits.min)  # none beyond the excluded ones
    order = values.masked_fill(~among, math.inf).argsort(dim=1, stable=True)
    return order.argsort(dim=1) < counts[:, None]


def _gumbel(chances: Tensor) -> Tensor:
    return -torch.log(-torch.log(chances))


def _values(schedule: Schedule, progress: Tensor) -> Tensor:
    """The schedule at every progress; a function that gives a plain number is as good."""
    values = torch.as_tensor(schedule(progress), dtype=torch.float64).expand(progress.shape)
    if not values.isfinite().all():
        raise UsageError(f"The schedule {schedule!r} gives numbers that are not finite; mend it for all of [0, 1].")
    return values


def _value(schedule: Schedule, progress: float) -> float:
    return _values(schedule, torch.tensor([progress], dtype=torch.float64)).item()
