"""The readers of media, as training, `quintet data check` and sampling use them."""

from __future__ import annotations

from pathlib import Path

from quintet.media import audio, image, mesh, video
from quintet.media.video_header import Fit

_SIDE = 64
_RATE = 16_000


def read_image(path: Path) -> None:
    image.probe_image(path)
    image.resize_and_crop(image.read_image(path, truncated="use", side=_SIDE), _SIDE, _SIDE)
    image.read_image(path)


def read_audio(path: Path) -> None:
    audio.probe_audio(path)
    header = audio.read_header(path)
    length = audio.resampled_length(header.frames, header.rate, _RATE)
    audio.read_audio(path, _RATE, start=length // 2, frames=_RATE, header=header)
    audio.to_loudness(audio.read_audio(path, _RATE, header=header), _RATE, -20.0, in_place=True)


def read_video(path: Path) -> None:
    video.probe_video(path)
    header = video.read_header(path)
    video.read_video(path, video.clip_frames(header, 17, start=0.5), fit=Fit(_SIDE, _SIDE), header=header)


def read_mesh(path: Path) -> None:
    mesh.probe_mesh(path)
    mesh.read_mesh(path)
