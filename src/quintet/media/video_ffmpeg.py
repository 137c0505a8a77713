"""Frames of films, decoded by FFmpeg (through PyAV) as a player shows them.

A frame is turned as the phone was held, as wide as its pixels say, and its transparency lies over a colour.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from fractions import Fraction
from typing import Any

import numpy as np
import numpy.typing as npt

from quintet.errors import UnreadableItem
from quintet.media.files import MediaRef, open_file
from quintet.media.video_header import FOLDER_RATE, Colour, Fit, Frames, VideoHeader, check_pixels, timed

_CONTAINERS = "avi,matroska,mov"  # some others are lists of files or addresses, which FFmpeg would open
_TELLING = ("mov", "matroska")  # those whose header and index tell all; of others frames are decoded to find out
_SKIPPING = ("h264", "hevc")  # decoders that can leave out single frames from which no other is made
_WORTH_A_SEEK = 8  # frames between two wanted ones that are sooner decoded than sought over
_HIGH_DEFINITION = 720  # lines, from which on a file that does not say has the colours of television in HD
_UNSPECIFIED = 2


@contextmanager
def _ffmpeg(file: MediaRef, kind: str) -> Iterator[tuple[Any, Any, Any]]:
    """The file, its film and a decoder. FFmpeg opens nothing else."""
    import av
    from av.stream import Disposition

    with open_file(file) as stream:
        options = {"format_whitelist": _CONTAINERS, "protocol_whitelist": "none"}
        if kind.startswith(_TELLING):
            options["codec_whitelist"] = "none"  # of who opens it; the decoder of the film is another
        with av.open(stream, container_options=options) as container:
            # A sound file may have a picture on its cover.
            films = [each for each in container.streams.video if not each.disposition & Disposition.attached_pic]
            if not films:
                raise UnreadableItem("not a video: there is no moving picture in it")
            film = films[0]
            check_pixels(film.codec_context.width, film.codec_context.height)
            decoder = _decoder(film)
            decoder.thread_count = 1  # data workers share the cores already
            yield container, film, decoder


def _decoder(film: Any) -> Any:
    """FFmpeg's own decoders of VP8 and VP9 leave transparency out."""
    import av

    name = film.codec_context.name
    if name in ("vp8", "vp9") and film.metadata.get("alpha_mode") == "1":
        return av.CodecContext.create("libvpx" if name == "vp8" else "libvpx-vp9", "r")
    return film.codec_context


def ffmpeg_header(file: MediaRef, kind: str) -> VideoHeader:
    with _ffmpeg(file, kind) as (container, film, decoder):
        name, base, promised = container.format.name.split(",")[0], Fraction(film.time_base or 0), film.frames
        hidden = _hidden_vp8 if film.codec_context.name == "vp8" else _never
        # An AVI does not tell when frames are shown that are stored in another order.
        untold = name == "avi" and decoder.has_b_frames
        packets = [
            (packet.pts, packet.duration or 0, packet.is_keyframe)
            for packet in container.demux(film)
            if packet.size and not packet.is_discard and not hidden(packet)
        ]
        kind = f"{name} {film.codec_context.name}"
    if not packets:
        raise UnreadableItem("holds no frame")
    if len(packets) < promised and name == "mov":
        raise UnreadableItem(f"truncated: {promised} frames promised, {len(packets)} there")
    if untold or base <= 0 or any(packet[0] is None for packet in packets):
        return _counted_header(file, kind)
    packets = list({packet[0]: packet for packet in sorted(packets, key=lambda packet: int(packet[0] or 0))}.values())
    stamps = np.array([packet[0] for packet in packets], np.int64)
    keys = np.array([packet[2] for packet in packets])
    starts = np.maximum.accumulate(np.where(keys, np.arange(len(keys)), 0))
    times = (stamps - stamps[0]) * float(base)
    last = float(packets[-1][1] * base) or float(np.median(np.diff(times)) if len(times) > 1 else 1 / FOLDER_RATE)
    return VideoHeader(times, float(times[-1]) + last, kind, stamps, starts)


def _never(packet: Any) -> bool:
    return False


def _hidden_vp8(packet: Any) -> bool:
    """Whether this is a frame that is never shown, and only there for others to be made from."""
    return not memoryview(packet)[0] & 0x10


def _counted_header(file: MediaRef, kind: str) -> VideoHeader:
    """Of a file without times: all of it is decoded to count its frames."""
    with _ffmpeg(file, kind) as (container, film, decoder):
        rate = float(film.average_rate or FOLDER_RATE)
        return timed([1 / rate] * sum(len(decoder.decode(packet)) for packet in container.demux(film)), kind)


def ffmpeg_frames(
    file: MediaRef, header: VideoHeader, wanted: Sequence[int], fit: Fit | None, background: Colour
) -> Frames:
    with _ffmpeg(file, header.format) as (container, film, decoder):
        show = _Shown(background, lambda: _aspect(film, decoder))
        for place, frame in _decoded(container, film, decoder, header, wanted):
            if frame.is_corrupt:
                raise UnreadableItem(f"damaged: its frame at {header.times[place]:.2f} s is broken")
            picture = show(frame, fit)
            fit = fit or Fit(*picture.shape[:2])
            yield place, picture


def _decoded(
    container: Any, film: Any, decoder: Any, header: VideoHeader, wanted: Sequence[int]
) -> Iterator[tuple[int, Any]]:
    """The wanted frames, in any order; of the others only what they are made from is decoded."""
    if header.stamps is None or header.starts is None:
        frames = (frame for packet in container.demux(film) for frame in decoder.decode(packet))
        chosen = set(wanted)
        yield from ((place, frame) for place, frame in enumerate(frames) if place in chosen)
        return
    for run in _runs(wanted, header.starts):
        due = {int(header.stamps[place]): place for place in run}
        start = header.starts[run[0]]
        if start or run[0] != wanted[0]:
            container.seek(int(header.stamps[start]), stream=film)
            decoder.flush_buffers()
        for frame in _decoded_run(container, film, decoder, set(due)):
            if frame.pts in due:
                yield due.pop(frame.pts), frame


def _decoded_run(container: Any, film: Any, decoder: Any, unsent: set[int]) -> Iterator[Any]:
    """All frames that come out until those with these stamps have gone in, and nothing more need go in."""
    skips = decoder.name in _SKIPPING
    for packet in container.demux(film):
        if skips:
            decoder.skip_frame = "DEFAULT" if packet.pts is None or packet.pts in unsent else "NONREF"
        unsent.discard(packet.pts)
        yield from decoder.decode(packet)
        if not unsent and packet.size:
            yield from decoder.decode(None)
            return


def _runs(wanted: Sequence[int], starts: npt.NDArray[np.int64]) -> list[list[int]]:
    """Wanted frames that are best decoded in one go."""
    runs = [[wanted[0]]]
    for place in wanted[1:]:
        if starts[place] - runs[-1][-1] > _WORTH_A_SEEK:
            runs.append([])
        runs[-1].append(place)
    return runs


class _Shown:
    """Turns decoded frames into what a player shows, RGB."""

    def __init__(self, background: Colour, aspect: Callable[[], float]) -> None:
        from av.video.reformatter import Interpolation, VideoReformatter

        self.background = background
        self.aspect = aspect
        self.convert = VideoReformatter().reformat
        self.exact = Interpolation.ACCURATE_RND | Interpolation.FULL_CHR_H_INT | Interpolation.BITEXACT
        # Averages over what falls into a pixel; enlarged, that would show as squares.
        self.smaller, self.larger = Interpolation.AREA, Interpolation.BICUBIC

    def __call__(self, frame: Any, fit: Fit | None) -> npt.NDArray[np.uint8]:
        check_pixels(frame.width, frame.height)
        turns, mirrored = _orientation(frame)
        width, height = max(1, round(frame.width * self.aspect())), frame.height
        if turns % 2:
            width, height = height, width
        if fit is not None:
            scale = max(fit.width / width, fit.height / height)
            width, height = max(fit.width, round(width * scale)), max(fit.height, round(height * scale))
        stored = (height, width) if turns % 2 else (width, height)
        picture = np.rot90(self._rgb(frame, *stored), turns)
        if mirrored:
            picture = picture[:, ::-1]
        if fit is not None:
            left, top = round((width - fit.width) * fit.x), round((height - fit.height) * fit.y)
            picture = picture[top : top + fit.height, left : left + fit.width]
        return picture

    def _rgb(self, frame: Any, width: int, height: int) -> npt.NDArray[np.uint8]:
        from av.video.reformatter import Colorspace

        if any(component.is_alpha for component in frame.format.components) or frame.format.name == "pal8":
            frame = self._laid_on_background(frame)
        guessed = frame.colorspace == _UNSPECIFIED and min(frame.width, frame.height) >= _HIGH_DEFINITION
        enlarged = width > frame.width or height > frame.height
        shown = self.convert(
            frame,
            width,
            height,
            "rgb24",
            src_colorspace=Colorspace.ITU709 if guessed else None,
            interpolation=(self.larger if enlarged else self.smaller) | self.exact,
            threads=1,
        )
        return np.asarray(shown.to_ndarray())

    def _laid_on_background(self, frame: Any) -> Any:
        """At its own size: scaled first, the colours of what is not seen would shine through at the edges."""
        import av

        pixels = self.convert(frame, format="rgba", threads=1).to_ndarray()
        opacity = pixels[..., 3:].astype(np.float32) / 255
        laid = np.asarray(pixels[..., :3] * opacity + np.asarray(self.background, np.float32) * (1 - opacity))
        return av.VideoFrame.from_ndarray(np.rint(laid).astype(np.uint8), "rgb24")


def _aspect(film: Any, decoder: Any) -> float:
    """How much wider than high its pixels are: the file says it, or else its first decoded frame."""
    aspect = film.sample_aspect_ratio or decoder.sample_aspect_ratio
    return float(aspect) if aspect and 0.1 < aspect < 10 else 1.0


def _orientation(frame: Any) -> tuple[int, bool]:
    """Quarter turns against the clock to put a frame upright, and whether to mirror it then, by its matrix."""
    from av.sidedata.sidedata import Type

    try:
        data = frame.side_data[Type.DISPLAYMATRIX]
    except KeyError:
        return 0, False
    a, b, _, c, d = np.frombuffer(bytes(data), np.int32)[:5].tolist()
    mirrored = a * d - b * c < 0
    if mirrored:
        a, c = -a, -c
    turns = round(np.degrees(np.arctan2(-b, a)) / 90) % 4
    return int(turns), mirrored
