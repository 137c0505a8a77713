"""Decoding decided on the host, the definition of its result: every token and every mask is read from the device.

`quintet.sampling` decides on the device instead, and must give the same tokens (`test_decoding.py`).
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from quintet.common.precision import at_least_fp32
from quintet.common.rng import ItemRNG
from quintet.sampling import autoregressive, masked
from quintet.sampling.autoregressive import Begin, Decoded, Legal, Rows
from quintet.sampling.filters import filter_top_k, uniform
from quintet.sampling.guidance import Conditioning, concat_conditioning, guide_halves, repeat_batch
from quintet.sampling.masked import Critic, Logits, masked_counts

GREEDY_BELOW = 1e-9
MAX_WEIGHT = 2.0**40


def fill(
    logits: Logits,
    tokens: Tensor,
    generate: Tensor,
    *,
    mask_id: int,
    rng: ItemRNG,
    settings: masked.Sampling,
    cond: Conditioning,
    uncond: Conditioning | None = None,
    valid: Tensor | None = None,
    critic: Critic | None = None,
    name: str = "decode",
) -> Tensor:
    """As `masked.decode`."""
    generate = generate if valid is None else generate & valid
    left = generate.sum(1).cpu()
    counts = masked_counts(left, settings.steps, settings.schedule)
    both = None if settings.guidance_scale == 1 or uncond is None else concat_conditioning(cond, uncond)
    tokens, hidden = tokens.masked_fill(generate, mask_id), generate
    previous: Tensor | None = None
    reconsiders = settings.remask_kept and critic is None
    for step in range(settings.steps):
        if not left.any():
            break
        left, progress = counts[step], (step + 1) / settings.steps
        scale = settings.guidance_at(progress)
        asked = generate if reconsiders else hidden
        projected = settings.guidance_projection
        at_asked, previous = _predict(logits, tokens, asked, cond, both, previous, scale, projected)
        at_asked = _without_mask(at_asked, mask_id)
        predicted = at_asked[hidden[asked]] if reconsiders else at_asked
        chances = uniform(rng, f"{name}-token-{step}", tokens.shape[1])[hidden.cpu()]
        sampled = choose(predicted, chances, settings.temperature_at(progress), settings.top_k, settings.top_p)
        if settings.greedy_last_step:
            # Rows end at different steps: a short row may have fewer tokens than there are steps.
            ends = (left == 0).to(tokens.device)[:, None].expand_as(hidden)[hidden]
            sampled = torch.where(ends, predicted.argmax(-1), sampled)
        tokens = tokens.masked_scatter(hidden, sampled.to(tokens.dtype))

        if left.any():
            noise = _gumbel(uniform(rng, f"{name}-choice-{step}", tokens.shape[1]))
            noise *= settings.choice_temperature * (1 - progress)
            if critic is None:
                log_probability = _log_probability(at_asked, tokens[asked])
                confidence, among = torch.zeros_like(noise).masked_scatter(asked.cpu(), log_probability), asked
            else:
                confidence = -critic(tokens, cond).cpu().double()
                noise, among = -noise, generate  # noise is added to the score, which is minus the confidence
            hidden = _lowest(confidence + noise, among.cpu(), left).to(tokens.device)
        else:
            hidden = torch.zeros_like(hidden)
        tokens = tokens.masked_fill(hidden, mask_id)
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
    """Guided logits of the positions in the mask `where`, (positions, codes), and the carry of the model."""
    if scale == 1 or both is None:
        predicted, carry = logits(tokens, cond, flat_indices(where), _with_rows(previous, len(tokens)))
        return at_least_fp32(predicted), carry
    predicted, carry = logits(
        repeat_batch(tokens), both, flat_indices(repeat_batch(where)), _with_rows(previous, 2 * len(tokens))
    )
    return guide_halves(at_least_fp32(predicted), scale, projected), carry


def _with_rows(previous: Tensor | None, rows: int) -> Tensor | None:
    if previous is None or len(previous) == rows:
        return previous
    return previous[:rows] if len(previous) > rows else torch.cat([previous, previous])


def flat_indices(mask: Tensor) -> Tensor:
    return mask.flatten().nonzero()[:, 0]


def _without_mask(predicted: Tensor, mask_id: int) -> Tensor:
    if 0 <= mask_id < predicted.shape[-1]:
        predicted[:, mask_id] = -math.inf
    return predicted


def _log_probability(predicted: Tensor, sampled: Tensor) -> Tensor:
    chosen = predicted.gather(-1, sampled[:, None])[:, 0]
    return (chosen - predicted.logsumexp(-1)).cpu().double()


def _lowest(values: Tensor, among: Tensor, counts: Tensor) -> Tensor:
    """A bool mask (batch, positions) of the `counts` (batch,) lowest values in `among`; ties by position."""
    limits = torch.finfo(values.dtype)
    # Finite, so that excluded positions come last.
    values = values.nan_to_num(nan=limits.min, posinf=limits.max, neginf=limits.min)
    order = values.masked_fill(~among, math.inf).argsort(dim=1, stable=True)
    return order.argsort(dim=1) < counts[:, None]


def _gumbel(chances: Tensor) -> Tensor:
    return -torch.log(-torch.log(chances))


def filter_top_p(logits: Tensor, p: float) -> Tensor:
    """Set all logits to -inf except the smallest set of most likely codes with total probability `p`, plus ties."""
    if p >= 1:
        return logits
    ordered = logits.sort(dim=-1, descending=True).values
    sums = _weights(ordered).cumsum(-1)
    totals = sums[..., -1:]
    limit = (totals.cpu().double() * p).ceil().long().to(logits.device).minimum(totals)
    needed = (sums < limit).sum(-1, keepdim=True)  # index of the first code whose cumulative sum reaches the limit
    least = ordered.gather(-1, needed)
    return logits.masked_fill(logits < least, -math.inf)


def choose(
    logits: Tensor,
    chances: Tensor,
    temperature: float = 1.0,
    top_k: int | float | None = None,
    top_p: float | None = None,
) -> Tensor:
    """Sample one code per row of `logits` (rows, codes) by inverse CDF; `chances` (rows,) are uniform in (0, 1)."""
    if temperature < GREEDY_BELOW:
        return logits.argmax(-1)
    if top_k is not None:
        logits = filter_top_k(logits, top_k)
    if top_p is not None:
        logits = filter_top_p(logits, top_p)
    sums = _weights(logits, temperature).cumsum(-1)
    totals = sums[:, -1].cpu()
    aims = (chances * totals.double()).long().minimum(totals - 1)
    return torch.searchsorted(sums, aims.to(sums.device)[:, None], right=True)[:, 0]


def _weights(logits: Tensor, temperature: float = 1.0) -> Tensor:
    relative = at_least_fp32(logits - logits.amax(-1, keepdim=True)) / temperature
    return (relative.exp() * MAX_WEIGHT).long()


def extend(
    begin: Begin,
    prompts: Tensor,
    lengths: Tensor,
    *,
    end_id: int,
    max_length: int,
    rng: ItemRNG,
    settings: autoregressive.Sampling,
    cond: Conditioning,
    uncond: Conditioning | None = None,
    legal: Legal | None = None,
    name: str = "decode",
) -> Decoded:
    """As `autoregressive.decode`."""
    tokens = prompts.new_full((len(prompts), max(max_length, prompts.shape[1])), end_id)
    is_prompt = torch.arange(prompts.shape[1], device=prompts.device) < lengths[:, None]
    tokens[:, : prompts.shape[1]] = prompts.masked_fill(~is_prompt, end_id)
    decoded = Decoded(tokens, lengths.clone(), torch.zeros_like(lengths, dtype=torch.bool))
    if bool((lengths < max_length).any()):
        conditioning = cond if settings.guidance_scale == 1 or uncond is None else concat_conditioning(cond, uncond)
        _grow(begin, decoded, end_id, max_length, uniform(rng, name, max_length), settings, conditioning, legal)
    return decoded


def _grow(
    begin: Begin,
    decoded: Decoded,
    end_id: int,
    max_length: int,
    chances: Tensor,
    settings: autoregressive.Sampling,
    conditioning: Conditioning,
    legal: Legal | None,
) -> None:
    tokens, lengths, ended = decoded
    guided = settings.guidance_scale != 1
    live = (lengths < max_length).nonzero()[:, 0]
    indices = _in_both(live, len(lengths), guided)
    rows = begin({key: value[indices] for key, value in conditioning.items()}, len(indices))
    # Copies of the live rows, so that a step only slices.
    own, prompted, chances = tokens[live], lengths[live], chances[live.cpu()]
    position, last_prompted = int(prompted.min()), int(prompted.max())
    unseen = own[:, :position]
    while True:
        logits = _logits(rows, unseen, settings)
        if legal is not None:
            logits = logits.masked_fill(~legal(own[:, :position]), -math.inf)
        chosen = choose(logits, chances[:, position], settings.temperature, settings.top_k, settings.top_p)
        stops = chosen == end_id
        if position < last_prompted:
            free = prompted <= position
            chosen, stops = torch.where(free, chosen, own[:, position]), stops & free
        own[:, position] = chosen  # rows that stop already contain the end token here
        position += 1
        if position == max_length or stops.any():
            tokens[live], ended[live] = own, stops
            lengths[live] = torch.where(stops, position - 1, prompted.clamp(min=position))
            active = (~stops).nonzero()[:, 0]
            if position == max_length or not len(active):
                return
            rows.select(_in_both(active, len(live), guided))
            live, own, prompted, chances = live[active], own[active], prompted[active], chances[active.cpu()]
        unseen = own[:, position - 1 : position]


def _in_both(indices: Tensor, count: int, guided: bool) -> Tensor:
    """The indices of rows among `count`, in both halves of a guided batch."""
    return torch.cat([indices, indices + count]) if guided else indices


def _logits(rows: Rows, unseen: Tensor, settings: autoregressive.Sampling) -> Tensor:
    if settings.guidance_scale == 1:
        return at_least_fp32(rows.advance(unseen))
    both = at_least_fp32(rows.advance(repeat_batch(unseen)))
    return guide_halves(both, settings.guidance_scale, settings.guidance_projection)
