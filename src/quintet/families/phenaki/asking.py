"""Owns what a person asks for beside words: how many frames, and a clip to go on from."""

from __future__ import annotations

from pathlib import Path

from torch import Tensor

from quintet.common.logging import say
from quintet.errors import UnreadableItem, UsageError
from quintet.families.phenaki.config import PhenakiDataConfig
from quintet.families.phenaki.model import Phenaki
from quintet.media import video as films
from quintet.media.video import Fit, VideoHeader

_LAST = 1 - 1e-9
"""Of all places to begin the last one."""


def check_frames(what: str, frames: int, step: int) -> None:
    """A tokenizer has the first frame, and then `step` at a time."""
    if (frames - 1) % step:
        below = 1 + (frames - 1) // step * step
        raise UsageError(
            f"{what}={frames} is not 1 and a multiple of {step}, the frames that one code of the tokenizer stands "
            f"for; the nearest that are: {below} and {below + step}"
        )


def read_prime(path: Path, phenaki: Phenaki, data: PhenakiDataConfig, frames: int | None) -> Tensor:
    """The end of a clip, as much of it as leaves room to go on, (3, frames, height, width) in [0, 1].

    Its frames are taken at the pace of the training clips, up to its last one.
    """
    try:
        header = films.read_header(path)
        places = _up_to_the_end(header, data)
        kept = phenaki.shown_of(len(places))
        clip = films.read_video(path, places[-kept:], fit=Fit(*phenaki.cvivit.config.size), header=header)
    except UnreadableItem as problem:
        raise UsageError(f"--prime {path}: {problem}") from None
    if frames is not None and frames <= kept:
        raise UsageError(
            f"--prime {path} gives {kept} frames, and {frames} are asked for, with those: nothing would be left to make"
        )
    if kept < len(places):
        say(f"warning: of the {len(places)} frames of {path} the last {kept} are used, which leave the model room")
    return films.clip_tensor(clip).float() / 255


def _up_to_the_end(header: VideoHeader, data: PhenakiDataConfig) -> list[int]:
    count = 1 + (header.frames - 1) // data.stride if data.fps is None else max(1, int(header.seconds * data.fps))
    return films.clip_frames(header, count, stride=data.stride, rate=data.fps, start=_LAST)
