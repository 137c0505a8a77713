"""The readers that are fuzzed, as training, `quintet data check` and sampling use them, by the name of their corpus."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from fuzz.limits import Read
from quintet import config as configs
from quintet import registry
from quintet.data.index.captions import read_caption
from quintet.data.index.listing import list_media
from quintet.errors import UnreadableItem
from quintet.media import audio, image, mesh, points, video
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


def read_points(path: Path) -> None:
    points.normalise_cloud(points.read_points(path))


def read_captions(path: Path) -> None:
    for text in read_caption(path):
        text.encode()


def read_folder(path: Path) -> None:
    """The folder of a metadata file or of a shard: its items, with their images."""
    found = list_media(path.parent, image.EXTENSIONS, cache=str(path.parent / "cache"))
    for entry in found.entries:
        with suppress(UnreadableItem):
            image.probe_image(entry.media(path.parent))


def read_config(path: Path) -> None:
    registry.read_config(path)
    configs.build(registry.find("vqgan").config_class(), file=path)


READERS: Mapping[str, Read] = {
    "image": read_image,
    "audio": read_audio,
    "video": read_video,
    "mesh": read_mesh,
    "points": read_points,
    "captions": read_captions,
    "metadata": read_folder,
    "tar": read_folder,
    "parquet": read_folder,
    "config": read_config,
}
