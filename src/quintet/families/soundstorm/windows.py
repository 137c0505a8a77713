"""Clips longer than the model: windows over the grid of codes, each continuing what the window before has generated."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from typing import Any

import torch
from torch import Tensor

from quintet.common.rng import ItemRNG, seed_from

FRAMES_AT_ONCE = 1024
"""Frames that are decoded to samples at once."""

Generate = Callable[[Tensor, ItemRNG], Tensor]
"""Completes the canvas (batch, frames, quantizers) of one window."""


def window_starts(num_frames: int, window: int, overlap: float) -> list[int]:
    """First frame of each window of a clip. The last window ends with the clip, so it may overlap more."""
    step = max(1, window - round(window * overlap))
    return [*range(0, max(0, num_frames - window), step), max(0, num_frames - window)]


def generate_windows(generate: Generate, canvas: Tensor, window: int, overlap: float, rng: ItemRNG) -> Tensor:
    """Codes (batch, frames, quantizers) of clips of any length; `canvas` holds the known codes, and -1 elsewhere."""
    codes = canvas.clone()
    for number, start in enumerate(window_starts(canvas.shape[1], window, overlap)):
        # The first window has the random numbers of a clip that is no longer than the model.
        own = ItemRNG(seed_from(rng.seed, "window", number), rng.epochs, rng.items) if number else rng
        part = codes[:, start : start + window]
        if (part < 0).any():
            codes[:, start : start + window] = generate(part, own)
    return codes


def decoded_chunks(
    codec: Any, codes: Tensor, inference: Callable[[], AbstractContextManager[None]]
) -> Iterator[Tensor]:
    """The samples of a clip of codes (frames, quantizers), chunk by chunk, if the codec can stream.

    Chunks are (samples,) or (2, samples). `inference` is the context of a forward pass.
    """
    if not hasattr(codec, "decode_stream"):
        with inference():
            wave = codec.decode(codes[None])[0].float().cpu()
        yield wave
        return
    stream = codec.decode_stream()
    for part in (*torch.split(codes, FRAMES_AT_ONCE), None):
        with inference():
            samples = stream.finish() if part is None else stream.push(part[None])
        if samples.shape[-1]:
            yield samples[0].float().cpu()
