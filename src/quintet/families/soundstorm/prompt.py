"""Owns how long a clip is asked for, and the beginning of one that a person gives."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from quintet.common.logging import say
from quintet.errors import UnreadableItem, UsageError
from quintet.media.audio import read_audio, read_header
from quintet.media.loudness import to_loudness


def frames_of(seconds: float, frame_rate: float, longest: int) -> int:
    """Frames of a clip of so many seconds, of which a model makes `longest` at most."""
    if not (math.isfinite(seconds) and seconds > 0):
        raise UsageError(f"--seconds {seconds:g} is no length; give a number above 0")
    frames = max(1, round(seconds * frame_rate))
    if frames > longest:
        raise UsageError(
            f"--seconds {seconds:g} is longer than what this model makes: {longest / frame_rate:g} s "
            f"(model.max_frames={longest})"
        )
    return frames


def read_prompt(path: Path, codec: Any, loudness: float | None, frames: int, longest: int) -> Tensor:
    """The codes (1, frames of it, levels) of a file, of which a clip of so many frames is to be the continuation."""
    try:
        header = read_header(path)
        samples = read_audio(path, codec.rate, frames=(longest + 1) * codec.hop, header=header)
    except UnreadableItem as problem:
        raise UsageError(f"--prompt {path}: {problem}") from None
    if header.rate != codec.rate:
        say(f"{path}: resampled from {header.rate} Hz to the {codec.rate} Hz of the tokenizer")
    # Whole frames: what filled up the last one would be silence in the middle of the clip.
    whole = max(1, samples.shape[1] // codec.hop)
    if whole >= frames:
        limit, what = (longest, "this model makes") if frames == longest else (frames, "--seconds asks for")
        raise UsageError(
            f"--prompt {path} is {header.seconds:.2f} s long, and {what} clips of {limit / codec.frame_rate:g} s: "
            "nothing would be left to make"
        )
    samples = samples[:, : whole * codec.hop]
    if loudness is not None:
        samples = to_loudness(samples, codec.rate, loudness)
    device = next(codec.parameters()).device
    codes: Tensor = codec.encode(torch.from_numpy(samples).to(device))
    return codes
