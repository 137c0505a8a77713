"""Range of pixels that a user passes: bytes from 0 to 255, or floating-point values from 0 to 1.

Values outside are accepted, because scripts try a model with random normal numbers, but never in silence.
"""

from __future__ import annotations

import torch
from torch import Tensor

from quintet.common.logging import say, say_once
from quintet.errors import UnreadableItem

TOLERANCE = 1e-2
"""Resizing with a sharp filter may exceed the range by this much."""


def report_range(pixels: Tensor, what: str, consequence: str) -> None:
    """Say once per process that floating-point pixels of `what` are outside [0, 1], and what happens to them."""
    warning = _range_warning(pixels, what, consequence)
    if warning:
        say_once(consequence, warning)


class RangeReport:
    """As `report_range`, but once per data set: a process may train on several."""

    def __init__(self, what: str, consequence: str) -> None:
        self.what, self.consequence, self.is_said = what, consequence, False

    def __call__(self, pixels: Tensor) -> None:
        warning = "" if self.is_said else _range_warning(pixels, self.what, self.consequence)
        if warning:
            self.is_said = True
            say(warning)


def _range_warning(pixels: Tensor, what: str, consequence: str) -> str:
    """The warning for floating-point pixels outside [0, 1]; empty for others."""
    if not pixels.is_floating_point() or not pixels.numel():
        return ""
    low, high = float(pixels.min()), float(pixels.max())
    if low >= -TOLERANCE and high <= 1 + TOLERANCE:
        return ""
    return (
        f"warning: {what} has pixels from {low:.3g} to {high:.3g}, but floating-point pixels are from 0 to 1: "
        f"{consequence}; pass (x - low) / (high - low), or bytes from 0 to 255 as uint8"
    )


def check_type(pixels: Tensor) -> None:
    """Raise `UnreadableItem` for pixels of integers other than bytes, whose range is unknown."""
    if pixels.dtype != torch.uint8 and not pixels.is_floating_point():
        raise UnreadableItem(f"has pixels of type {pixels.dtype}; expected uint8, or floating-point values from 0 to 1")
