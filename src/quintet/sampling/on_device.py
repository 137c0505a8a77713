"""Decoding on a GPU without waiting for it: where samples are decided, copies to the device, and deferred checks.

Reading a tensor on a GPU stops the process until the GPU has done all the work it was given, and the GPU then stands
still until the process gives it more. So decisions are made where the logits are, random numbers are copied from pinned
memory, and the conditions that end decoding are read together, once in several steps.
"""

from __future__ import annotations

import torch
from torch import Tensor

from quintet.common.precision import has_float64
from quintet.errors import RunError

NOT_FINITE = "The model's logits are not finite, so nothing can be sampled; use an earlier checkpoint."


def decision_device(device: torch.device) -> torch.device:
    """Where samples from logits on `device` are decided: there, or on the CPU if it has no float64, as MPS."""
    return device if has_float64(device) else torch.device("cpu")


def copy_to(tensor: Tensor, device: torch.device) -> Tensor:
    """Copy a tensor from the CPU; a GPU is not waited for."""
    if device.type == "cpu":
        return tensor
    return (tensor.pin_memory() if device.type == "cuda" else tensor).to(device, non_blocking=True)


def masked_indices(mask: Tensor, count: int) -> Tensor:
    """The flat indices (count,) of a mask with `count` true values, in order.

    A GPU is not waited for, because the number of indices is known.
    """
    flat = mask.flatten()
    if flat.device.type == "cpu":
        return flat.nonzero()[:, 0]
    return flat.int().argsort(descending=True, stable=True)[:count]


class Checks:
    """Conditions of decoding: on a CPU an error is raised at once, on a GPU by the next `read`.

    Until then decoding continues with arbitrary tokens, which the error discards.
    """

    def __init__(self) -> None:
        self._pending: dict[tuple[type[Exception], str], Tensor] = {}

    def require(self, valid: Tensor, error: type[Exception], message: str) -> None:
        """Raise the error if `valid`, a bool tensor, is not true everywhere."""
        holds = valid.all()
        if holds.device.type != "cpu":
            before = self._pending.get((error, message))
            self._pending[error, message] = holds if before is None else holds & before
        elif not holds:
            raise error(message)

    def require_finite(self, logits: Tensor, ignored: Tensor | None = None) -> Tensor:
        """Return logits (rows, codes); raise `RunError` if they are not finite, except in `ignored` (rows,) rows."""
        finite = logits.amax(-1).isfinite()
        self.require(finite if ignored is None else finite | ignored, RunError, NOT_FINITE)
        return logits

    def read(self, flags: Tensor | None = None) -> list[bool]:
        """The values of bool `flags` (count,), read from the device together with the conditions."""
        parts = [holds[None] for holds in self._pending.values()] + ([] if flags is None else [flags])
        if not parts:
            return []
        values: list[bool] = (parts[0] if len(parts) == 1 else torch.cat(parts)).tolist()
        conditions, self._pending = self._pending, {}
        for holds, (error, message) in zip(values, conditions, strict=False):
            if not holds:
                raise error(message)
        return values[len(conditions) :]
