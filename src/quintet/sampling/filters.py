"""How one code is drawn from scores: top-k and top-p filters, temperature, and chances that belong to an item.

What is decided by, is compared in float64 on the CPU, or as integers: the numbers are few, some devices have no
float64, and sums of integers are the same in any order.
"""

from __future__ import annotations

import math

import numpy as np
import torch
from torch import Tensor

from quintet.common.precision import at_least_fp32
from quintet.common.rng import ItemRNG
from quintet.errors import RunError, UsageError

_GREEDY_BELOW = 1e-9  # a temperature at which only the likeliest code is left, and division would overflow
_WEIGHT_OF_THE_LIKELIEST = 2.0**40  # sums over four million codes stay within int64


def check_filters(top_k: int | float | None, top_p: float | None) -> None:
    """Refuse what `choose` could not do, by the name of its key."""
    if isinstance(top_k, float) and not 0 < top_k <= 1:
        raise UsageError(f"sample.top_k is {top_k}; give a share above 0 and up to 1, or a whole number of codes.")
    if isinstance(top_k, int) and top_k < 1:
        raise UsageError(f"sample.top_k is {top_k}; give at least 1 code, or leave it out.")
    if top_p is not None and not 0 < top_p <= 1:
        raise UsageError(f"sample.top_p is {top_p}; give a number above 0 and up to 1, or leave it out.")


def check_not_negative(**values: float) -> None:
    for key, value in values.items():
        if not 0 <= value < math.inf:
            raise UsageError(f"sample.{key} is {value}; give a finite number of at least 0.")


def check_scores(scores: Tensor) -> Tensor:
    """The scores, refused if they are no distribution."""
    if not scores.amax(-1).isfinite().all():
        raise RunError("The model's logits are not finite, so nothing can be sampled; use an earlier checkpoint.")
    return scores


def filter_top_k(logits: Tensor, k: int | float) -> Tensor:
    """Rule out all but the `k` likeliest codes (a float: that share of them); equals of the last one stay."""
    codes = logits.shape[-1]
    count = max(round(k * codes) if isinstance(k, float) else k, 1)
    if count >= codes:
        return logits
    least = _descending(logits)[..., count - 1, None]
    return logits.masked_fill(logits < least, -math.inf)


def filter_top_p(logits: Tensor, p: float) -> Tensor:
    """Rule out all but the fewest likeliest codes that together have probability `p`; equals of the last one stay."""
    if p >= 1:
        return logits
    ordered = _descending(logits)
    sums = _weights(ordered).cumsum(-1)
    totals = sums[..., -1:]
    limit = (totals.cpu().double() * p).ceil().long().to(logits.device).minimum(totals)
    needed = (sums < limit).sum(-1, keepdim=True)  # the place of the first code whose sum reaches the limit
    least = ordered.gather(-1, needed)
    return logits.masked_fill(logits < least, -math.inf)


def choose(
    scores: Tensor,
    chances: Tensor,
    temperature: float = 1.0,
    top_k: int | float | None = None,
    top_p: float | None = None,
) -> Tensor:
    """One code for each row of scores: the one in whose share of the distribution the row's chance falls."""
    if temperature < _GREEDY_BELOW:
        return scores.argmax(-1)
    if top_k is not None:
        scores = filter_top_k(scores, top_k)
    if top_p is not None:
        scores = filter_top_p(scores, top_p)
    sums = _weights(scores, temperature).cumsum(-1)
    totals = sums[:, -1].cpu()
    aims = (chances * totals.double()).long().minimum(totals - 1)
    return torch.searchsorted(sums, aims.to(sums.device)[:, None], right=True)[:, 0]


def uniform(rng: ItemRNG, name: str, places: int) -> Tensor:
    """Float64 numbers within (0, 1), never 0 nor 1, (items, places); a longer row begins with the shorter one."""
    words = rng.bits(name, places) >> np.uint64(12)
    return torch.from_numpy((words.astype(np.float64) + 0.5) * 2.0**-52)


def guesses(logits: Tensor, chances: Tensor) -> Tensor:
    """A code for each row of logits, drawn by the row's chance in [0, 1); nothing is read from the device."""
    sums = _weights(logits).cumsum(-1)
    totals = sums[:, -1:]
    aims = (chances.to(logits.device)[:, None] * totals).long().minimum(totals - 1)
    return torch.searchsorted(sums, aims, right=True)[:, 0]


def _weights(logits: Tensor, temperature: float = 1.0) -> Tensor:
    """Probabilities as int64 on a scale on which the likeliest code has 2^40.

    Sums of integers are exact in any order, so they are the same on every device, never fall, and are allowed
    on CUDA under deterministic algorithms, where a cumulative sum of floats is not.
    """
    relative = at_least_fp32(logits - logits.amax(-1, keepdim=True)) / temperature
    return (relative.exp() * _WEIGHT_OF_THE_LIKELIEST).long()


def _descending(logits: Tensor) -> Tensor:
    """Sorted along the last axis. On the CPU by numpy, which sorts values alone some ten times as fast as torch."""
    if logits.device.type == "cpu" and logits.dtype in (torch.float32, torch.float64):
        return torch.from_numpy(np.sort(logits.detach().numpy(), axis=-1)).flip(-1)
    return logits.sort(dim=-1, descending=True).values
