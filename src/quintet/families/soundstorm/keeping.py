"""Inpainting: the parts of a prompt that a generated clip keeps, in seconds, frames and samples."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import Tensor

from quintet.errors import UsageError

Spans = tuple[tuple[float, float], ...]
"""Starts and ends in seconds, in order and without overlap."""

KEEP_OPTIONS = ("keep", "keep_every", "keep_quantizers")
ROUNDING = 1e-6
"""Of a frame: seconds with few decimals are no exact binary fractions."""
FADE_SECONDS = 0.01
"""Length of the cross-fade from a kept span to what is generated around it."""
_SPAN = re.compile(r"\s*(\d+(?:\.\d*)?|\.\d+)\s*-\s*(\d+(?:\.\d*)?|\.\d+)\s*")


@dataclass(frozen=True)
class Keep:
    """What is kept of a prompt: some spans of seconds (None: all of it), every N-th frame, the first quantizers."""

    spans: Spans | None = None
    every: int | None = None
    num_quantizers: int | None = None

    @classmethod
    def of(
        cls,
        spans: str | Sequence[tuple[float, float]] | None,
        every: int | None = None,
        num_quantizers: int | None = None,
    ) -> Keep | None:
        """From the options; None if nothing is said about what is kept."""
        if spans is None and every is None and num_quantizers is None:
            return None
        if every is not None and every < 2:
            raise UsageError(f"--keep-every {every} must be at least 2")
        if num_quantizers is not None and num_quantizers < 1:
            raise UsageError(f"--keep-quantizers {num_quantizers} must be at least 1")
        return cls(None if spans is None else parse_spans(spans), every, num_quantizers)

    @property
    def is_exact(self) -> bool:
        """Whether the samples of the spans are kept, not only some of their codes."""
        return self.spans is not None and self.every is None and self.num_quantizers is None


def parse_spans(keep: str | Sequence[tuple[float, float]]) -> Spans:
    """The spans of `--keep 0-2,5-7`, or of pairs of seconds."""
    if isinstance(keep, str):
        matches = [_SPAN.fullmatch(part) for part in keep.split(",")]
        wrong = [part for part, match in zip(keep.split(","), matches, strict=True) if match is None]
        if wrong:
            raise UsageError(
                f"--keep {keep}: '{wrong[0].strip()}' is not a range of seconds; write start-end, such as 0-2,5-7"
            )
        spans = [(float(match[1]), float(match[2])) for match in matches if match is not None]
    else:
        try:
            spans = [(float(start), float(end)) for start, end in keep]
        except (TypeError, ValueError):
            raise UsageError(f"keep={keep!r} is not pairs of seconds, such as [(0, 2), (5, 7)]") from None
    if not spans:
        raise UsageError("--keep names no seconds; write start-end, such as 0-2,5-7")
    for start, end in spans:
        if not 0 <= start < end < math.inf:
            raise UsageError(f"--keep {start:g}-{end:g}: a range must end after its start, and start at 0 or later")
    spans.sort()
    for (start, end), (after, after_end) in pairwise(spans):
        if after < end:
            raise UsageError(f"--keep {start:g}-{end:g} and {after:g}-{after_end:g} overlap; write them as one range")
    return tuple(spans)


def kept_frames(keep: Keep, prompt_frames: int, frame_rate: float, seconds: float) -> Tensor:
    """Mask (prompt frames,) of the kept frames of a prompt of `seconds`."""
    mask = torch.ones(prompt_frames, dtype=torch.bool)
    if keep.spans is not None:
        mask[:] = False
        for start, end in keep.spans:
            if end > seconds + 0.5 / frame_rate:
                raise UsageError(f"--keep {start:g}-{end:g} is outside of the clip, which has {seconds:.2f} s")
            first, last = frame_span(start, end, frame_rate)
            mask[first:last] = True
    if keep.every is not None:
        mask &= torch.arange(prompt_frames) % keep.every == 0
        if not mask.any():
            raise UsageError(f"--keep-every {keep.every} keeps no frame of the seconds in --keep; use a smaller number")
    return mask


def frame_span(start: float, end: float, frame_rate: float) -> tuple[int, int]:
    """First and last frame (exclusive) of a span of seconds: all frames that have a part in it."""
    return math.floor(start * frame_rate + ROUNDING), math.ceil(end * frame_rate - ROUNDING)


def composite(generated: Tensor, original: Tensor, keep: Keep, frame_rate: float, rate: int) -> Tensor:
    """Generated samples with those of `original` in the kept spans, cross-faded around them; both are (samples,) or
    (2, samples).

    Frames are decoded together with their neighbours, so that generated frames change the samples of kept ones.
    """
    assert keep.spans is not None
    weights = original.new_zeros(original.shape[-1])
    fade = max(1, round(FADE_SECONDS * rate))
    ramp = torch.linspace(0, 1, fade + 2)[1:-1].to(original)
    for start, end in keep.spans:
        first, last = (round(frame * rate / frame_rate) for frame in frame_span(start, end, frame_rate))
        weights[first:last] = 1
        before, after = weights[max(0, first - fade) : first], weights[last : last + fade]
        before.copy_(torch.maximum(before, ramp[fade - len(before) :]))
        after.copy_(torch.maximum(after, ramp.flip(0)[: len(after)]))
    mixed = generated.clone()
    own = mixed[..., : len(weights)]
    mixed[..., : len(weights)] = torch.where(weights == 1, original, own + weights * (original - own))
    return mixed
