"""Sampling one code from logits: top-k and top-p filters, temperature, and uniform random numbers per item.

Comparisons that decide a sample are made in float64 or in integers, whose sums are the same in any order, so they do
not depend on the device. A GPU is not waited for, unless it has no float64.
"""

from __future__ import annotations

import math

import numpy as np
import torch
from torch import Tensor

from quintet.common.precision import at_least_fp32
from quintet.common.rng import ItemRNG
from quintet.errors import UsageError
from quintet.sampling.on_device import decision_device

_GREEDY_BELOW = 1e-9  # below this temperature sampling is greedy, and division would overflow
_MAX_WEIGHT = 2.0**40  # of the most likely code; sums over four million codes fit in int64


def check_filters(top_k: int | float | None, top_p: float | None) -> None:
    """Raise `UsageError` if `top_k` or `top_p` is out of range; the message names the key."""
    if isinstance(top_k, float) and not 0 < top_k <= 1:
        raise UsageError(f"sample.top_k is {top_k}; use a fraction above 0 and up to 1, or an integer number of codes.")
    if isinstance(top_k, int) and top_k < 1:
        raise UsageError(f"sample.top_k is {top_k}; it must be at least 1, or null.")
    if top_p is not None and not 0 < top_p <= 1:
        raise UsageError(f"sample.top_p is {top_p}; it must be above 0 and at most 1, or null.")


def check_not_negative(**values: float) -> None:
    for key, value in values.items():
        if not 0 <= value < math.inf:
            raise UsageError(f"sample.{key} is {value}; it must be finite and at least 0.")


def filter_top_k(logits: Tensor, k: int | float) -> Tensor:
    """Set all but the `k` largest logits to -inf (float `k`: that fraction of the codes); ties are kept."""
    codes = logits.shape[-1]
    count = max(round(k * codes) if isinstance(k, float) else k, 1)
    if count >= codes:
        return logits
    least = _descending(logits)[..., count - 1, None]
    return logits.masked_fill(logits < least, -math.inf)


def filter_top_p(logits: Tensor, p: float) -> Tensor:
    """Set all logits to -inf except the smallest set of most likely codes with total probability `p`, plus ties."""
    if p >= 1:
        return logits
    ordered = _descending(logits)
    sums = _weights(ordered).cumsum(-1)
    totals = sums[..., -1:]
    limit = (totals.to(decision_device(totals.device)).double() * p).ceil().long().to(logits.device).minimum(totals)
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
    """Sample one code per row of `logits` (rows, codes) by inverse CDF; `chances` (rows,) are uniform in (0, 1).

    `chances` are float64 on the `decision_device` of the logits. Logits that are not finite give arbitrary codes.
    """
    if temperature < _GREEDY_BELOW:
        return logits.argmax(-1)
    if top_k is not None:
        logits = filter_top_k(logits, top_k)
    if top_p is not None:
        logits = filter_top_p(logits, top_p)
    sums = _weights(logits, temperature).cumsum(-1)
    totals = sums[:, -1].to(chances.device)
    aims = (chances * totals.double()).long().minimum(totals - 1)
    chosen = torch.searchsorted(sums, aims.to(sums.device)[:, None], right=True)[:, 0]
    # On a CPU, logits that are not finite have raised an error.
    return chosen if chosen.device.type == "cpu" else chosen.clamp(max=logits.shape[-1] - 1)


def uniform(rng: ItemRNG, name: str, count: int) -> Tensor:
    """Uniform float64 numbers in the open interval (0, 1), (items, count); a longer row starts with a shorter one."""
    words = rng.bits(name, count) >> np.uint64(12)
    return torch.from_numpy((words.astype(np.float64) + 0.5) * 2.0**-52)


def sample_on_device(logits: Tensor, chances: Tensor) -> Tensor:
    """Sample one code per row of `logits` (rows, codes) without GPU synchronisation; `chances` (rows,) in [0, 1)."""
    sums = _weights(logits).cumsum(-1)
    totals = sums[:, -1:]
    aims = (chances.to(logits.device)[:, None] * totals).long().minimum(totals - 1)
    return torch.searchsorted(sums, aims, right=True)[:, 0]


def _weights(logits: Tensor, temperature: float = 1.0) -> Tensor:
    """Probabilities as int64, scaled so that the most likely code has 2^40.

    Integer sums are exact in any order: they are the same on every device, cumulative sums never decrease, and they
    are allowed on CUDA with deterministic algorithms, unlike a cumulative sum of floats.
    """
    relative = at_least_fp32(logits - logits.amax(-1, keepdim=True)) / temperature
    return (relative.exp() * _MAX_WEIGHT).long()


def _descending(logits: Tensor) -> Tensor:
    """Sorted in descending order along the last axis. On a CPU by numpy, which is about ten times as fast as torch."""
    if logits.device.type == "cpu" and logits.dtype in (torch.float32, torch.float64):
        return torch.from_numpy(np.sort(logits.detach().numpy(), axis=-1)).flip(-1)
    return logits.sort(dim=-1, descending=True).values
