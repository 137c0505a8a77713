"""Autoregressive decoding: rows of tokens are extended token by token until the end token.

This module is independent of models and media. A model is a callable that starts a batch of rows:

    rows = begin(conditioning, batch)  conditioning: named tensors, batch first; may be empty
    rows.advance(tokens)               appends tokens (batch, new) -> logits (batch, codes) of the next token
    rows.select(indices)               keeps only these rows of the batch

All rows are at the same position at any time, so a KV cache needs no lengths: a row with a longer prompt than others
takes its tokens from the prompt until the prompt ends. A row that has ended is removed from the batch: on a CPU at
once, on a GPU once in `GPU_READ_INTERVAL` tokens, because the process has to wait for the GPU to learn which rows have
ended. Until then the model gets token 0 for such a row, and its result is not changed.

Every random number belongs to one item and one position. So a result does not depend on the batch size, the order of
rows or the prompts of other items.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import torch
from torch import Tensor

from quintet.common.precision import at_least_fp32
from quintet.common.rng import ItemRNG
from quintet.sampling.filters import check_filters, check_not_negative, choose, uniform
from quintet.sampling.guidance import Conditioning, check_guidance, concat_conditioning, guide_halves, repeat_batch
from quintet.sampling.on_device import Checks, copy_to, decision_device

GPU_READ_INTERVAL = 16
"""Number of tokens between two reads from a GPU."""

Legal = Callable[[Tensor], Tensor]
"""Maps the tokens so far (batch, tokens) to a bool mask (batch, codes) of allowed next codes, at least one per row.

A row with the end token has ended, and its mask is ignored."""


class Rows(Protocol):
    """The state of a model that is decoding a batch of rows."""

    def advance(self, tokens: Tensor) -> Tensor: ...

    def select(self, indices: Tensor) -> None: ...


Begin = Callable[[Conditioning, int], Rows]


@dataclass(frozen=True)
class Sampling:
    """Decoding settings. `temperature` 0 is greedy; `top_k` is a number of codes, or as a float a fraction of them.

    `guidance_projection` removes the part of the guidance that is parallel to the logits.
    """

    temperature: float = 1.0
    top_k: int | float | None = None
    top_p: float | None = None
    guidance_scale: float = 1.0
    guidance_projection: bool = False

    def __post_init__(self) -> None:
        check_not_negative(temperature=self.temperature, guidance_scale=self.guidance_scale)
        check_filters(self.top_k, self.top_p)


class Decoded(NamedTuple):
    """`tokens` (batch, positions), end tokens from `lengths` (batch,) on; `ended` (batch,) marks ended rows."""

    tokens: Tensor
    lengths: Tensor
    ended: Tensor


def decode(
    begin: Begin,
    prompts: Tensor,
    lengths: Tensor,
    *,
    end_id: int,
    max_length: int,
    rng: ItemRNG,
    settings: Sampling,
    cond: Conditioning,
    uncond: Conditioning | None = None,
    legal: Legal | None = None,
    name: str = "decode",
) -> Decoded:
    """Continue `prompts` (batch, positions), with `lengths` (batch,) prompt tokens each, to at most `max_length`.

    `uncond` is the conditioning that guidance steers away from (no text, or a negative prompt); it contains only the
    tensors that differ from `cond`. If the guidance scale is not 1, both run as one batch, `cond` in its first half.
    `legal` restricts the codes, including the end token. Calls that share `rng` need different values of `name`, or
    their random numbers are identical.
    """
    prompt_lengths: list[int] = lengths.tolist()
    _check(prompts, prompt_lengths, rng, max_length)
    check_guidance(settings.guidance_scale, uncond)
    tokens = prompts.new_full((len(prompts), max(max_length, prompts.shape[1])), end_id)
    is_prompt = torch.arange(prompts.shape[1], device=prompts.device) < lengths[:, None]
    tokens[:, : prompts.shape[1]] = prompts.masked_fill(~is_prompt, end_id)
    decoded = Decoded(tokens, lengths.clone(), torch.zeros_like(lengths, dtype=torch.bool))
    live = [row for row, length in enumerate(prompt_lengths) if length < max_length]
    if live:
        conditioning = cond if settings.guidance_scale == 1 or uncond is None else concat_conditioning(cond, uncond)
        bounds = _Bounds(
            min(prompt_lengths[row] for row in live), max(prompt_lengths[row] for row in live), max_length, end_id
        )
        chances = copy_to(uniform(rng, name, max_length)[live], decision_device(tokens.device))
        _grow(begin, decoded, live, bounds, chances, settings, conditioning, legal)
    return decoded


class _Bounds(NamedTuple):
    """Positions of the live rows: the shortest and the longest prompt, and the maximum length; and the end token."""

    first: int
    last_prompted: int
    max_length: int
    end_id: int


@torch.inference_mode()
def _grow(
    begin: Begin,
    decoded: Decoded,
    live_rows: list[int],
    bounds: _Bounds,
    chances: Tensor,
    settings: Sampling,
    conditioning: Conditioning,
    legal: Legal | None,
) -> None:
    """Extend `decoded` in place. Inference mode: steps are short, so the overhead of autograd would be noticeable."""
    tokens, lengths, ended = decoded
    device, guided, checks = tokens.device, settings.guidance_scale != 1, Checks()
    interval = 1 if device.type == "cpu" else GPU_READ_INTERVAL
    live = copy_to(torch.tensor(live_rows), device)
    indices = _in_both(live, len(lengths), guided)
    rows = begin({key: value[indices] for key, value in conditioning.items()}, len(indices))
    # Copies of the live rows, so that a step only slices.
    own, prompted = tokens[live], lengths[live]
    stopped: Tensor | None = None  # rows that have ended since the last read
    stop_lengths: Tensor | int = 0  # lengths of rows that have ended, including those that end at this token
    position = bounds.first
    unseen = own[:, :position]
    while True:
        logits = checks.require_finite(_logits(rows, unseen, settings), stopped)
        if legal is not None:
            logits = _restricted(logits, legal(own[:, :position]), checks, stopped)
        chosen = choose(logits, chances[:, position], settings.temperature, settings.top_k, settings.top_p)
        stops = chosen == bounds.end_id
        if position < bounds.last_prompted:
            free = prompted <= position
            chosen, stops = torch.where(free, chosen, own[:, position]), stops & free
        stop_lengths = position if stopped is None else torch.where(stopped, stop_lengths, position)
        if stopped is not None:
            stops |= stopped
            chosen = chosen.masked_fill(stops, bounds.end_id)
        own[:, position] = chosen  # rows that stop already contain the end token here
        position += 1
        if position < bounds.max_length and (position - bounds.first) % interval:
            stopped, unseen = stops, chosen.masked_fill(stops, 0)[:, None]
            continue
        has_stopped = checks.read(stops)
        if position == bounds.max_length or any(has_stopped):
            tokens[live], ended[live] = own, stops
            lengths[live] = torch.where(stops, stop_lengths, prompted.clamp(min=position))
            active_rows = [row for row, stop in enumerate(has_stopped) if not stop]
            if position == bounds.max_length or not active_rows:
                return
            active = copy_to(torch.tensor(active_rows), device)
            rows.select(_in_both(active, len(live), guided))
            live, own, prompted = live[active], own[active], prompted[active]
            chances = chances[active.to(chances.device)]
        stopped, unseen = None, own[:, position - 1 : position]


def _in_both(indices: Tensor, count: int, guided: bool) -> Tensor:
    """The indices of rows among `count`, in both halves of a guided batch."""
    return torch.cat([indices, indices + count]) if guided else indices


def _logits(rows: Rows, unseen: Tensor, settings: Sampling) -> Tensor:
    """Guided logits of the next token, (batch, codes)."""
    if settings.guidance_scale == 1:
        return at_least_fp32(rows.advance(unseen))
    both = at_least_fp32(rows.advance(repeat_batch(unseen)))
    return guide_halves(both, settings.guidance_scale, settings.guidance_projection)


def _restricted(logits: Tensor, legal: Tensor, checks: Checks, ignored: Tensor | None) -> Tensor:
    has_legal = legal.any(-1)
    valid = has_legal if ignored is None else has_legal | ignored
    checks.require(valid, ValueError, "`legal` allows no next code for a row")
    return logits.masked_fill(~legal, -math.inf)


def _check(prompts: Tensor, lengths: list[int], rng: ItemRNG, max_length: int) -> None:
    if prompts.dim() != 2 or len(lengths) != len(prompts) or len(rng) != len(prompts):
        raise ValueError(f"prompts {tuple(prompts.shape)}, {len(lengths)} lengths and rng {len(rng)} disagree")
    if lengths and not 0 <= min(lengths) <= max(lengths) <= prompts.shape[1]:
        raise ValueError(f"prompt lengths {lengths} exceed the {prompts.shape[1]} positions of `prompts`")
    if max_length < 0:
        raise ValueError(f"max_length is {max_length}")
