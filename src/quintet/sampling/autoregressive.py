"""Autoregressive generation: rows of tokens that grow one by one, each until its end token.

Nothing in this file knows a model, a text or a mesh. A model is a callable that begins rows, and the rows it began:

    rows = begin(conditioning, batch)  conditioning: named tensors with the batch first; it may be empty
    rows.advance(tokens)               tokens (batch, new) after all before them -> scores (batch, codes) of the next
    rows.select(numbers)               go on with these rows of the batch alone

All rows are at the same place at any time, so that a cache needs no lengths: those whose prompt is longer than others'
are given their own tokens until it ends. A row that has ended is left out of the batch.

Every random number belongs to one item and one place, so neither the split into batches, the order of rows nor the
prompts of others change what an item becomes.
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
from quintet.sampling.filters import check_filters, check_not_negative, check_scores, choose, uniform
from quintet.sampling.guidance import Conditioning, check_guidance, combined, joined, twice

Legal = Callable[[Tensor], Tensor]
"""Rows of tokens so far, (batch, tokens), to which codes may come next, (batch, codes) of bool; never none."""


class Rows(Protocol):
    """A model in the middle of a batch of rows."""

    def advance(self, tokens: Tensor) -> Tensor: ...

    def select(self, numbers: Tensor) -> None: ...


Begin = Callable[[Conditioning, int], Rows]


@dataclass(frozen=True)
class Sampling:
    """How to decode. `temperature` 0 is greedy; `top_k` is a number of codes, or as a float the share of the codes."""

    temperature: float = 1.0
    top_k: int | float | None = None
    top_p: float | None = None
    guidance_scale: float = 1.0

    def __post_init__(self) -> None:
        check_not_negative(temperature=self.temperature, guidance_scale=self.guidance_scale)
        check_filters(self.top_k, self.top_p)


class Decoded(NamedTuple):
    """`tokens` (batch, places) with the end token in the places from `lengths` (batch,) on; which rows have `ended`."""

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
    """Continue `prompts` (batch, places), of which the first `lengths` (batch,) are given, to at most `max_length`.

    `uncond` is what guidance leads away from (no text, or a negative prompt); it names the tensors of `cond` that
    differ. Where guidance is not 1, both run as one batch, `cond` in its first half.
    `legal` rules out codes, the end token among them. Decodings that share a `rng` need a `name` each, or their
    noise is the same.
    """
    _check(prompts, lengths, rng, max_length)
    check_guidance(settings.guidance_scale, uncond)
    tokens = prompts.new_full((len(prompts), max(max_length, prompts.shape[1])), end_id)
    given = torch.arange(prompts.shape[1], device=prompts.device) < lengths[:, None]
    tokens[:, : prompts.shape[1]] = prompts.masked_fill(~given, end_id)
    decoded = Decoded(tokens, lengths.clone(), torch.zeros_like(lengths, dtype=torch.bool))
    if bool((lengths < max_length).any()):
        conditioning = cond if settings.guidance_scale == 1 or uncond is None else joined(cond, uncond)
        _grow(begin, decoded, end_id, max_length, uniform(rng, name, max_length), settings, conditioning, legal)
    return decoded


@torch.inference_mode()
def _grow(
    begin: Begin,
    decoded: Decoded,
    end_id: int,
    max_length: int,
    chances: Tensor,
    settings: Sampling,
    conditioning: Conditioning,
    legal: Legal | None,
) -> None:
    """Write into `decoded` what comes behind its lengths. A step is short: what autograd keeps would be felt."""
    tokens, lengths, ended = decoded
    guides = settings.guidance_scale != 1
    live = (lengths < max_length).nonzero()[:, 0]
    numbers = _in_both(live, len(lengths), guides)
    rows = begin({key: value[numbers] for key, value in conditioning.items()}, len(numbers))
    # Of the live rows alone, so that a step takes slices and searches nothing.
    own, prompted, chances = tokens[live], lengths[live], chances[live.cpu()]
    place, last_prompted = int(prompted.min()), int(prompted.max())
    unseen = own[:, :place]
    while True:
        scores = _scores(rows, unseen, settings.guidance_scale)
        if legal is not None:
            scores = _restricted(scores, legal(own[:, :place]))
        chosen = choose(scores, chances[:, place], settings.temperature, settings.top_k, settings.top_p)
        stops = chosen == end_id
        if place < last_prompted:
            free = prompted <= place
            chosen, stops = torch.where(free, chosen, own[:, place]), stops & free
        own[:, place] = chosen  # the end token is what stands there anyway
        place += 1
        if place == max_length or stops.any():
            tokens[live], ended[live] = own, stops
            lengths[live] = torch.where(stops, place - 1, prompted.clamp(min=place))
            on = (~stops).nonzero()[:, 0]
            if place == max_length or not len(on):
                return
            rows.select(_in_both(on, len(live), guides))
            live, own, prompted, chances = live[on], own[on], prompted[on], chances[on.cpu()]
        unseen = own[:, place - 1 : place]


def _in_both(numbers: Tensor, count: int, guides: bool) -> Tensor:
    """The numbers of rows among `count`, in both halves of a guided batch."""
    return torch.cat([numbers, numbers + count]) if guides else numbers


def _scores(rows: Rows, unseen: Tensor, guidance_scale: float) -> Tensor:
    """Of the next token, guided and sound, (batch, codes)."""
    if guidance_scale == 1:
        return check_scores(at_least_fp32(rows.advance(unseen)))
    return check_scores(combined(at_least_fp32(rows.advance(twice(unseen))), guidance_scale))


def _restricted(scores: Tensor, legal: Tensor) -> Tensor:
    if not legal.any(-1).all():
        raise ValueError("the grammar leaves a row no code that may come next")
    return scores.masked_fill(~legal, -math.inf)


def _check(prompts: Tensor, lengths: Tensor, rng: ItemRNG, max_length: int) -> None:
    if prompts.dim() != 2 or lengths.shape != prompts.shape[:1] or len(rng) != len(prompts):
        raise ValueError(f"prompts {tuple(prompts.shape)}, lengths {tuple(lengths.shape)} and draw {len(rng)} disagree")
    if len(lengths) and not 0 <= int(lengths.min()) <= int(lengths.max()) <= prompts.shape[1]:
        raise ValueError(f"prompts of {lengths.tolist()} tokens do not lie in rows of {prompts.shape[1]}")
    if max_length < 0:
        raise ValueError(f"max_length is {max_length}")
