"""Masked-token generation (MaskGIT): the masks of training steps, and iterative decoding.

Image grids (Muse), video grids (Phenaki) and quantizer levels (SoundStorm) are all rows of tokens here; this module is
independent of models and media. A model is a callable

    logits(tokens, conditioning, where, previous) -> (logits of the positions in `where`, carry)

with `tokens` (batch, positions), `conditioning` named tensors with the batch first, `where` (requested,) the ascending
flat indices of the requested positions over the batch, and `carry` an optional tensor with the batch first that the
model gets as `previous` in the next step (self-conditioning). `previous` is None in the first step. Padding is part of
the conditioning.

Every random number belongs to one item, one step and one position. So a result does not depend on the batch size, the
order of rows or the length of the padding. `filters.py` samples a code from logits; `guidance.py` has guidance.

A decoding step does not wait for a GPU: how many tokens are masked after each step is known at the start, so no shape
depends on the logits.
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
from quintet.sampling.filters import check_filters, check_not_negative, choose, uniform
from quintet.sampling.guidance import Conditioning, check_guidance, concat_conditioning, guide_halves, repeat_batch
from quintet.sampling.on_device import Checks, copy_to, decision_device, masked_indices

Schedule = Callable[[Tensor], Tensor]
"""A fraction as a function of progress in [0, 1]: float64 on the CPU in and out, elementwise."""

Logits = Callable[[Tensor, Conditioning, Tensor, Tensor | None], tuple[Tensor, Tensor | None]]
"""(tokens, conditioning, where, previous) -> (logits (requested positions, codes), carry); see the module docstring."""
Critic = Callable[[Tensor, Conditioning], Tensor]
"""(tokens, conditioning) -> scores (batch, positions): the higher, the more likely a token is not the original."""
Observer = Callable[[int, Tensor, Tensor], None]
"""Called after each step with the step, the tokens and the mask, both (batch, positions)."""

# Schedules


def cosine(progress: Tensor) -> Tensor:
    """From 1 to 0, slowly at first: MaskGIT's fraction of masked tokens."""
    return torch.cos(progress * (math.pi / 2))


def linear(progress: Tensor) -> Tensor:
    """From 1 to 0, linearly."""
    return 1 - progress


def constant(progress: Tensor) -> Tensor:
    """Always 1."""
    return torch.ones_like(progress)


def linear_growth(progress: Tensor) -> Tensor:
    """From 0 to 1, linearly."""
    return progress


def cosine_growth(progress: Tensor) -> Tensor:
    """From 0 to 1, slowly at both ends."""
    return (1 - torch.cos(progress * math.pi)) / 2


MASK_SCHEDULES: Mapping[str, Schedule] = {"cosine": cosine, "linear": linear}
"""Fraction of masked tokens."""

TEMPERATURE_SCHEDULES: Mapping[str, Schedule] = {"constant": constant, "linear": linear}
"""Factor of the temperature."""

GUIDANCE_SCHEDULES: Mapping[str, Schedule] = {
    "constant": constant,
    "linear": linear_growth,
    "cosine": cosine_growth,
    "falling": linear,
}
"""Interpolation from no guidance (0) to the full guidance scale (1)."""


@dataclass(frozen=True)
class Sampling:
    """Decoding settings. Schedules get the progress after the current step: (step + 1) / steps, 1 in the last step.

    The guidance scale of a step is 1 + (guidance_scale - 1) * guidance_schedule(progress). `top_k` is a number of
    codes, or as a float a fraction of them. MaskGIT uses `choice_temperature` 4.5. With `greedy_last_step`, the step
    that unmasks the last tokens of a row takes the most likely codes. `remask_kept` lets a step mask again tokens that
    an earlier one kept. `guidance_projection` removes the part of the guidance that is parallel to the logits.
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
    remask_kept: bool = False
    guidance_projection: bool = False

    def __post_init__(self) -> None:
        if not isinstance(self.steps, int) or self.steps < 1:
            raise UsageError(f"sample.steps is {self.steps}; it must be an integer of at least 1.")
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
                raise UsageError(
                    f"sample.{key} is {value!r}; it must be a function of progress, such as {', '.join(table)}."
                )

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
    """Decoding settings from the keys `sample.*`; `guidance_scale` is the one that the model supports."""
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
        remask_kept=config.remask_kept,
        guidance_projection=config.guidance_projection,
    )


def keys_from_settings(settings: Sampling, num_codes: int) -> dict[str, object]:
    """The keys `sample.*` of decoding settings: the inverse of `sampling_from_config`; `UsageError` without a key."""
    if settings.schedule is not cosine or settings.greedy_last_step:
        raise UsageError("a run decodes with the cosine schedule, without greedy_last_step; leave both out of settings")
    top_k = settings.top_k
    return {
        "sample.steps": settings.steps,
        "sample.temperature": settings.temperature,
        "sample.temperature_schedule": _name_of(settings.temperature_schedule, TEMPERATURE_SCHEDULES),
        "sample.top_k": max(1, math.ceil(top_k * num_codes)) if isinstance(top_k, float) else top_k,
        "sample.top_p": settings.top_p,
        "sample.guidance_scale": settings.guidance_scale,
        "sample.guidance_schedule": _name_of(settings.guidance_schedule, GUIDANCE_SCHEDULES),
        "sample.choice_temperature": settings.choice_temperature,
        "sample.remask_kept": settings.remask_kept,
        "sample.guidance_projection": settings.guidance_projection,
    }


def _name_of(schedule: Schedule, known: Mapping[str, Schedule]) -> str:
    for name, function in known.items():
        if function is schedule:
            return name
    raise UsageError(f"a run decodes with one of the schedules {', '.join(known)}, not with {schedule!r}")


# Training


def training_mask(
    rng: ItemRNG, valid: Tensor, schedule: Schedule = cosine, name: str = "mask", span: int = 1
) -> Tensor:
    """A bool mask (batch, positions) of tokens to predict: a random fraction of the `valid` tokens of each row.

    The fraction is the schedule at a random progress; every row with valid tokens has at least one masked token. With
    `span` > 1, tokens are masked in spans of this length (Ziv et al. 2024, 2401.04577), which may overlap; the last
    span is truncated when the number of masked tokens is reached.
    """
    lengths = valid.sum(1)
    fractions = _values(schedule, rng.uniform(f"{name}-progress").double()).float().to(valid.device)
    counts = torch.round(fractions * lengths).long().clamp(min=1).minimum(lengths)
    # float32 on the device of the batch: a training step must not synchronise with the GPU
    orders = -rng.uniform(f"{name}-places", valid.shape[1] + span - 1).to(valid.device)
    if span > 1:
        # Each span has one random number, and a position takes the lowest number of the spans that cover it. Spans may
        # start before the row, so that its first positions are masked as often as others.
        orders = orders.unfold(1, span, 1).amin(-1)
    return _lowest(orders, valid, counts)


def corrupt(
    rng: ItemRNG,
    codes: Tensor,
    hidden: Tensor,
    mask_id: int,
    visible_prob: float = 0.0,
    random_prob: float = 0.0,
    name: str = "mask",
) -> Tensor:
    """The codes (batch, positions) with `mask_id` where `hidden` is True, the positions to predict.

    As in BERT, a fraction `visible_prob` of these positions keeps its code, and `random_prob` gets a random one.
    """
    tokens = codes.masked_fill(hidden, mask_id)
    if visible_prob == random_prob == 0:
        return tokens
    chances = rng.uniform(f"{name}-corruption", codes.shape[1]).to(codes.device)
    others = rng.integers(f"{name}-replacement", 0, mask_id, codes.shape[1]).to(codes)
    visible = hidden & (chances < visible_prob)
    replaced = hidden & ~visible & (chances < visible_prob + random_prob)
    return torch.where(visible, codes, torch.where(replaced, others, tokens))


# Decoding


def masked_counts(lengths: Tensor, steps: int, schedule: Schedule = cosine) -> Tensor:
    """Number of tokens that are still masked after each step, (steps, batch), of `lengths` (batch,) tokens.

    Every step unmasks at least one token of each row, and the last step all of them, so any schedule ends with no
    masked tokens.
    """
    fractions = _values(schedule, torch.arange(1, steps + 1, dtype=torch.float64) / steps)
    targets = torch.round(fractions[:, None] * lengths.cpu()).long().clamp(min=0)
    targets[-1] = 0
    counts, left = [], lengths.cpu()
    for row in targets:
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
    """Generate `tokens` (batch, positions) where `generate` (batch, positions) is True; other tokens are unchanged.

    Each step predicts all masked tokens, keeps the most confident ones and masks the others again; `masked_counts`
    gives their number. The confidence is the log-probability of the prediction, and a kept token is final. With a
    `critic` the confidence is minus the critic's score, for all generated tokens, and a kept token may be masked
    again. So it may with `remask_kept`: every step then predicts all generated tokens, and compares kept tokens by
    their new log-probability. Gumbel noise with `choice_temperature`, decreasing to 0, is added to the confidence (with
    a critic: to its score).

    `uncond` is the conditioning that guidance steers away from (no text, or a negative prompt); it contains only the
    tensors that differ from `cond`. If the guidance scale is not 1, both run as one batch, `cond` in its first half.
    `valid` (batch, positions) is False at padding, which is neither masked nor generated. Calls that share `rng` need
    different values of `name`, or their random numbers are identical. Decoding ends early if no token is masked.
    """
    if tokens.shape != generate.shape or len(rng) != len(tokens):
        raise ValueError(f"tokens {tuple(tokens.shape)}, generate {tuple(generate.shape)} and rng {len(rng)} disagree")
    check_guidance(settings.guidance_scale, uncond)
    generate = generate if valid is None else generate & valid
    left = generate.sum(1).cpu()
    counts = masked_counts(left, settings.steps, settings.schedule)
    both = None if settings.guidance_scale == 1 or uncond is None else concat_conditioning(cond, uncond)
    tokens, masked = tokens.masked_fill(generate, mask_id), generate
    device, checks = decision_device(tokens.device), Checks()
    generated = masked_indices(generate, int(left.sum()))
    previous: Tensor | None = None
    reconsiders = settings.remask_kept and critic is None
    for step in range(settings.steps):
        if not left.any():
            break
        hidden = masked_indices(masked, int(left.sum()))
        left, progress = counts[step], (step + 1) / settings.steps
        scale = settings.guidance_at(progress)
        asked = generated if reconsiders else hidden
        projected = settings.guidance_projection
        at_asked, previous = _predict(logits, tokens, asked, cond, both, previous, scale, projected)
        at_asked = checks.require_finite(_without_mask(at_asked, mask_id))
        predicted = at_asked
        if reconsiders:
            predicted = at_asked[masked_indices(masked.flatten()[generated], len(hidden))]
        chances = copy_to(uniform(rng, f"{name}-token-{step}", tokens.shape[1]), device)
        chances = chances.flatten()[hidden.to(device)]
        sampled = choose(predicted, chances, settings.temperature_at(progress), settings.top_k, settings.top_p)
        if settings.greedy_last_step:
            # Rows end at different steps: a short row may have fewer tokens than there are steps.
            ends = copy_to(left == 0, tokens.device)[hidden // tokens.shape[1]]
            sampled = torch.where(ends, predicted.argmax(-1), sampled)
        tokens = _with_values(tokens, hidden, sampled.to(tokens.dtype))

        if left.any():
            noise = _gumbel(uniform(rng, f"{name}-choice-{step}", tokens.shape[1]))
            noise = copy_to(noise.mul_(settings.choice_temperature * (1 - progress)), device)
            if critic is None:
                log_probability = _log_probability(at_asked, tokens.flatten()[asked]).to(device).double()
                confidence = _with_values(torch.zeros_like(noise), asked.to(device), log_probability)
                among = generate if reconsiders else masked
            else:
                confidence = -critic(tokens, cond).to(device).double()
                noise, among = -noise, generate  # noise is added to the score, which is minus the confidence
            masked = _lowest(confidence + noise, among.to(device), copy_to(left, device)).to(tokens.device)
        else:
            masked = torch.zeros_like(masked)
        tokens = tokens.masked_fill(masked, mask_id)
        if on_step is not None:
            on_step(step, tokens, masked)
    checks.read()
    return tokens


def _predict(
    logits: Logits,
    tokens: Tensor,
    where: Tensor,
    cond: Conditioning,
    both: Conditioning | None,
    previous: Tensor | None,
    scale: float,
    projected: bool,
) -> tuple[Tensor, Tensor | None]:
    """Guided logits of the positions `where`, (positions, codes), and the carry of the model."""
    if scale == 1 or both is None:
        predicted, carry = logits(tokens, cond, where, _with_rows(previous, len(tokens)))
        return at_least_fp32(predicted), carry
    in_both = torch.cat([where, where + tokens.numel()])
    predicted, carry = logits(repeat_batch(tokens), both, in_both, _with_rows(previous, 2 * len(tokens)))
    return guide_halves(at_least_fp32(predicted), scale, projected), carry


def _with_rows(previous: Tensor | None, rows: int) -> Tensor | None:
    """The carry with the expected number of rows, if a schedule turned guidance on or off since the last step: the
    conditional half is used for both."""
    if previous is None or len(previous) == rows:
        return previous
    return previous[:rows] if len(previous) > rows else torch.cat([previous, previous])


def _without_mask(predicted: Tensor, mask_id: int) -> Tensor:
    """The logits without the mask token."""
    if 0 <= mask_id < predicted.shape[-1]:
        predicted[:, mask_id] = -math.inf
    return predicted


def _log_probability(predicted: Tensor, sampled: Tensor) -> Tensor:
    chosen = predicted.gather(-1, sampled[:, None])[:, 0]
    return chosen - predicted.logsumexp(-1)


def _with_values(tensor: Tensor, where: Tensor, values: Tensor) -> Tensor:
    """A copy of the tensor with these values (positions,) at the flat indices `where` (positions,)."""
    return tensor.flatten().index_copy(0, where, values).view(tensor.shape)


def _lowest(values: Tensor, among: Tensor, counts: Tensor) -> Tensor:
    """A bool mask (batch, positions) of the `counts` (batch,) lowest values in `among`; ties by position."""
    limits = torch.finfo(values.dtype)
    # Finite, so that excluded positions come last.
    values = values.nan_to_num(nan=limits.min, posinf=limits.max, neginf=limits.min)
    order = values.masked_fill(~among, math.inf).argsort(dim=1, stable=True)
    return order.argsort(dim=1) < counts[:, None]


def _gumbel(chances: Tensor) -> Tensor:
    return -torch.log(-torch.log(chances))


def _values(schedule: Schedule, progress: Tensor) -> Tensor:
    """The schedule at every progress; the schedule may also return a single number."""
    values = torch.as_tensor(schedule(progress), dtype=torch.float64).expand(progress.shape)
    if not values.isfinite().all():
        raise UsageError(f"The schedule {schedule!r} returns non-finite values; it must be finite on all of [0, 1].")
    return values


def _value(schedule: Schedule, progress: float) -> float:
    return _values(schedule, torch.tensor([progress], dtype=torch.float64)).item()
