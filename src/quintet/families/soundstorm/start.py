"""What a generated clip starts from: an empty canvas of codes, or the codes of a prompt or of parts of it."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from quintet.common.logging import say
from quintet.errors import UnreadableItem, UsageError
from quintet.families.soundstorm.clips import Clip
from quintet.families.soundstorm.keeping import Keep, composite, kept_frames
from quintet.media.audio import read_channels, to_loudness
from quintet.media.audio_formats import read_header

SILENCE = 1e-4
"""Peak amplitude below which a prompt is silent."""


@dataclass(frozen=True)
class Start:
    """The known codes of a clip, and the kept samples of a prompt."""

    canvas: Tensor
    """(frames, quantizers), -1 where codes are generated."""
    keep: Keep | None = None
    original: Tensor | None = None
    """(samples,) or (2, samples): the prompt through the codec, if samples of it are kept."""
    frame_rate: float = 0.0
    rate: int = 0

    def composite(self, clip: Clip) -> Clip:
        """The clip with the samples of the kept spans."""
        if self.original is None or self.keep is None:
            return clip
        mixed = composite(clip.samples(), self.original, self.keep, self.frame_rate, self.rate)
        return replace(clip, wave=mixed)


def read_prompt(path: Path, codec: Any, max_frames: int | None, loudness: float | None) -> tuple[Tensor, float]:
    """The samples of whole frames of a prompt, a batch of one for the pipeline of a codec, and the seconds of its file.

    At most one frame more than `max_frames` is read.
    """
    rate, hop = codec.model.sample_rate, codec.model.hop
    try:
        header = read_header(path)
        count = None if max_frames is None else (max_frames + 1) * hop
        samples = read_channels(path, codec.model.channels, rate, frames=count, header=header)
    except UnreadableItem as problem:
        raise UsageError(f"--prompt {path}: {problem}") from None
    if header.rate != rate:
        say(f"{path}: resampled from {header.rate} Hz to the {rate} Hz of the tokenizer")
    # Whole frames only: a padded last frame would be silence in the middle of the clip.
    samples = samples[:, : max(1, samples.shape[1] // hop) * hop]
    if float(abs(samples).max()) < SILENCE:
        say(f"warning: --prompt {path} is silent")
    samples = samples if loudness is None else to_loudness(samples, rate, loudness)
    # The channel of a mono file is the axis of the batch.
    return torch.from_numpy(samples if codec.model.channels == 1 else samples[None]), header.seconds


def kept_start(
    path: Path, codec: Any, num_quantizers: int, keep: Keep, num_frames: int | None, loudness: float | None
) -> Start:
    """The start of a clip of `num_frames` (None: as long as the prompt) that keeps parts of a prompt."""
    if keep.num_quantizers is not None and keep.num_quantizers > num_quantizers:
        raise UsageError(
            f"--keep-quantizers {keep.num_quantizers} is more than the {num_quantizers} quantizers of this model"
        )
    samples, _ = read_prompt(path, codec, num_frames, loudness)
    codes = codec.encode(samples, num_quantizers=num_quantizers)[0].cpu()
    codes = codes if num_frames is None else codes[:num_frames]
    frame_rate = codec.model.frame_rate
    kept = kept_frames(keep, len(codes), frame_rate, len(codes) / frame_rate)
    canvas = torch.full((len(codes) if num_frames is None else num_frames, num_quantizers), -1)
    own = codes.masked_fill(~kept[:, None], -1)
    own[:, keep.num_quantizers or num_quantizers :] = -1
    canvas[: len(codes)] = own
    if (canvas >= 0).all():
        raise UsageError(
            f"all codes of --prompt {path} are kept and nothing is left to generate; keep fewer seconds (--keep), "
            "frames (--keep-every) or quantizers (--keep-quantizers)"
        )
    original = codec.decode(codes[None])[0].float().cpu() if keep.is_exact else None
    return Start(canvas, keep, original, frame_rate, codec.model.sample_rate)
