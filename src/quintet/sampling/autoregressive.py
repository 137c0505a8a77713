"""Autoregressive decoding: rows of tokens are extended token by token until the end token.

This module is independent of models and media. A model is a callable that starts a batch of rows:

    rows = begin(conditioning, batch)  conditioning: named tensors, batch first; may be empty
    rows.advance(tokens)               appends tokens (batch, new) -> logits (batch, codes) of the next token
    rows.select(indices)               keeps only these rows of the batch

All rows are at the same position at any time, so a KV cache needs no lengths: a row with a longer prompt than others
takes its tokens from the prompt until the prompt ends. A row that has ended is removed from the batch.

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
from quintet.sampling.filters import check_filters, check_logits, check_not_negative, choose, uniform
from quintet.sampling.guidance import Conditioning, check_guidance, concat_conditioning, guide_halves, repeat_batch

Legal = Callable[[Tensor], Tensor]
"""Maps the tokens so far (batch, tokens) to a bool mask (batch, codes) of allowed next codes, at least one per row."""


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
    _check(prompts, lengths, rng, max_length)
    check_guidance(settings.guidance_scale, uncond)
    tokens = prompts.new_full((len(prompts), max(max_length, prompts.shape[1])), end_id)
    is_prompt = torch.arange(prompts.shape[1], device=prompts.device) < lengths[:, None]
    tokens[:, : prompts.shape[1]] = prompts.masked_fill(~is_prompt, end_id)
    decoded = Decoded(tokens, lengths.clone(), torch.zeros_like(lengths, dtype=torch.bool))
    if bool((lengths < max_length).any()):
        conditioning = cond if settings.guidance_scale == 1 or uncond is None else concat_conditioning(cond, uncond)
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
    """Extend `decoded` in place. Inference mode: steps are short, so the overhead of autograd would be noticeable."""
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
            logits = _restricted(logits, legal(own[:, :position]))
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


def _logits(rows: Rows, unseen: Tensor, settings: Sampling) -> Tensor:
    """Guided and checked logits of the next token, (batch, codes)."""
    if settings.guidance_scale == 1:
        return check_logits(at_least_fp32(rows.advance(unseen)))
    both = at_least_fp32(rows.advance(repeat_batch(unseen)))
    return check_logits(guide_halves(both, settings.guidance_scale, settings.guidance_projection))


def _restricted(logits: Tensor, legal: Tensor) -> Tensor:
    if not legal.any(-1).all():
        raise ValueError("`legal` allows no next code for a row")
    return logits.masked_fill(~legal, -math.inf)


def _check(prompts: Tensor, lengths: Tensor, rng: ItemRNG, max_length: int) -> None:
    if prompts.dim() != 2 or lengths.shape != prompts.shape[:1] or len(rng) != len(prompts):
        raise ValueError(f"prompts {tuple(prompts.shape)}, lengths {tuple(lengths.shape)} and rng {len(rng)} disagree")
    if len(lengths) and not 0 <= int(lengths.min()) <= int(lengths.max()) <= prompts.shape[1]:
        raise ValueError(f"prompt lengths {lengths.tolist()} exceed the {prompts.shape[1]} positions of `prompts`")
    if max_length < 0:
        raise ValueError(f"max_length is {max_length}")
