"""Video decoding with FFmpeg (through PyAV): frames as a player displays them.

A frame is rotated upright, has square pixels, and its transparency is blended with a colour.
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
from quintet.media.video_header import (
    FOLDER_RATE,
    Colour,
    Fit,
    Frames,
    VideoHeader,
    check_pixels,
    header_from_durations,
)

_CONTAINERS = "avi,matroska,mov"  # some others are lists of files or URLs, which FFmpeg would open
_WITH_INDEX = ("mov", "matroska")  # their header and index are enough; other files are partly decoded when opened
_CAN_SKIP = ("h264", "hevc")  # decoders that can skip frames that no other frame refers to
_WORTH_A_SEEK = 8  # from this many frames between two requested ones on, seeking is faster than decoding
_FARTHEST_START = 1000  # frames that are decoded before one that its keyframe alone does not complete
_HIGH_DEFINITION = 720  # lines; a larger file without a colour space is assumed to be BT.709
_UNSPECIFIED = 2


@contextmanager
def _ffmpeg(file: MediaRef, kind: str) -> Iterator[tuple[Any, Any, Any]]:
    """The container, its video stream and a decoder. FFmpeg opens no other file or URL."""
    import av
    from av.stream import Disposition

    with open_file(file) as opened:
        options = {"format_whitelist": _CONTAINERS, "protocol_whitelist": "none"}
        if kind.startswith(_WITH_INDEX):
            options["codec_whitelist"] = "none"  # for the container only; the video has its own decoder
        with av.open(opened, container_options=options) as container:
            # An audio file may have a cover image.
            video_streams = [
                each for each in container.streams.video if not each.disposition & Disposition.attached_pic
            ]
            if not video_streams:
                raise UnreadableItem("not a video: there is no moving picture in it")
            stream = video_streams[0]
            check_pixels(stream.codec_context.width, stream.codec_context.height)
            decoder = _decoder(stream)
            decoder.thread_count = 1  # data workers share the cores already
            yield container, stream, decoder


def _decoder(stream: Any) -> Any:
    """The decoder of a stream; FFmpeg's own VP8 and VP9 decoders ignore transparency."""
    import av

    name = stream.codec_context.name
    if name in ("vp8", "vp9") and stream.metadata.get("alpha_mode") == "1":
        return av.CodecContext.create("libvpx" if name == "vp8" else "libvpx-vp9", "r")
    return stream.codec_context


def ffmpeg_header(file: MediaRef, kind: str) -> VideoHeader:
    with _ffmpeg(file, kind) as (container, stream, decoder):
        name, base, expected = container.format.name.split(",")[0], Fraction(stream.time_base or 0), stream.frames
        hidden = _is_hidden_vp8 if stream.codec_context.name == "vp8" else _never
        # AVI has no display times for frames that are stored in another order.
        unordered = name == "avi" and decoder.has_b_frames
        packets = [
            (packet.pts, packet.duration or 0, packet.is_keyframe)
            for packet in container.demux(stream)
            if packet.size and not packet.is_discard and not hidden(packet)
        ]
        kind = f"{name} {stream.codec_context.name}"
    if not packets:
        raise UnreadableItem("holds no frame")
    if len(packets) < expected and name == "mov":
        raise UnreadableItem(f"truncated: {expected} frames promised, {len(packets)} there")
    if unordered or base <= 0 or any(packet[0] is None for packet in packets):
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


def _is_hidden_vp8(packet: Any) -> bool:
    """Whether this is a frame that is never displayed and only serves as a reference."""
    return not memoryview(packet)[0] & 0x10


def _counted_header(file: MediaRef, kind: str) -> VideoHeader:
    """The header of a file without time stamps: all of it is decoded to count its frames."""
    with _ffmpeg(file, kind) as (container, stream, decoder):
        rate = float(stream.average_rate or FOLDER_RATE)
        return header_from_durations(
            [1 / rate] * sum(len(decoder.decode(packet)) for packet in container.demux(stream)), kind
        )


def ffmpeg_frames(
    file: MediaRef, header: VideoHeader, indices: Sequence[int], fit: Fit | None, background: Colour
) -> Frames:
    with _ffmpeg(file, header.format) as (container, stream, decoder):
        show = _DisplayConverter(background, lambda: _aspect(stream, decoder))
        for index, frame in _decoded(container, stream, decoder, header, indices):
            image = show(frame, fit)
            fit = fit or Fit(*image.shape[:2])
            yield index, image


def _decoded(
    container: Any, stream: Any, decoder: Any, header: VideoHeader, indices: Sequence[int]
) -> Iterator[tuple[int, Any]]:
    """The frames at these indices, in any order; of the others only their references are decoded."""
    import av

    if header.stamps is None or header.starts is None:
        yield from _counted_frames(container, stream, decoder, header, set(indices))
        return
    for run in _runs(indices, header.starts):
        due = {int(header.stamps[index]): index for index in run}
        problem: Exception | None = None
        for attempt, start in enumerate(_starting_points(run[0], header.starts)):
            if attempt or start or run[0] != indices[0]:
                container.seek(int(header.stamps[start]), stream=stream)
                decoder.flush_buffers()
            try:
                for frame in _decoded_run(container, stream, decoder, set(due)):
                    if frame.is_corrupt and frame.pts in due:
                        problem = problem or _broken(header, due[frame.pts])
                    elif frame.pts in due:
                        yield due.pop(frame.pts), frame
            except av.FFmpegError as error:  # a damaged packet, or one that an earlier start completes
                problem = problem or error
            if not due:
                break
        if due and problem is not None:
            raise problem


def _counted_frames(
    container: Any, stream: Any, decoder: Any, header: VideoHeader, chosen: set[int]
) -> Iterator[tuple[int, Any]]:
    frames = (frame for packet in container.demux(stream) for frame in decoder.decode(packet))
    for index, frame in enumerate(frames):
        if index in chosen:
            if frame.is_corrupt:
                raise _broken(header, index)
            yield index, frame


def _broken(header: VideoHeader, index: int) -> UnreadableItem:
    return UnreadableItem(f"damaged: its frame at {header.times[index]:.2f} s is broken")


def _starting_points(index: int, starts: npt.NDArray[np.int64]) -> Iterator[int]:
    """Where to start decoding a frame: at its keyframe, and if the frame is not complete then, at earlier keyframes.

    With intra refresh, keyframes are only recovery points: frames are complete a while after them.
    """
    yield int(starts[index])
    earlier = np.unique(starts[:index])[::-1]
    earlier = earlier[earlier < starts[index]]
    for back in (2**power for power in range(len(earlier).bit_length())):
        start = int(earlier[back - 1])
        if back > 1 and index - start > _FARTHEST_START:
            return
        yield start


def _decoded_run(container: Any, stream: Any, decoder: Any, unsent: set[int]) -> Iterator[Any]:
    """Decoded frames, until the packets with these time stamps have been sent to the decoder."""
    skips = decoder.name in _CAN_SKIP
    for packet in container.demux(stream):
        if skips:
            decoder.skip_frame = "DEFAULT" if packet.pts is None or packet.pts in unsent else "NONREF"
        unsent.discard(packet.pts)
        yield from decoder.decode(packet)
        if not unsent and packet.size:
            yield from decoder.decode(None)
            return


def _runs(indices: Sequence[int], starts: npt.NDArray[np.int64]) -> list[list[int]]:
    """The indices in runs that are best decoded without a seek."""
    runs = [[indices[0]]]
    for index in indices[1:]:
        if starts[index] - runs[-1][-1] > _WORTH_A_SEEK:
            runs.append([])
        runs[-1].append(index)
    return runs


class _DisplayConverter:
    """Converts decoded frames to RGB (height, width, 3), as a player displays them."""

    def __init__(self, background: Colour, aspect: Callable[[], float]) -> None:
        from av.video.reformatter import Interpolation, VideoReformatter

        self.background = background
        self.aspect = aspect
        self.convert = VideoReformatter().reformat
        self.exact = Interpolation.ACCURATE_RND | Interpolation.FULL_CHR_H_INT | Interpolation.BITEXACT
        # Area averaging for smaller sizes; enlarging with it would show squares.
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
        image = np.rot90(self._rgb(frame, *stored), turns)
        if mirrored:
            image = image[:, ::-1]
        if fit is not None:
            left, top = round((width - fit.width) * fit.x), round((height - fit.height) * fit.y)
            image = image[top : top + fit.height, left : left + fit.width]
        return image

    def _rgb(self, frame: Any, width: int, height: int) -> npt.NDArray[np.uint8]:
        from av.video.reformatter import Colorspace

        if any(component.is_alpha for component in frame.format.components) or frame.format.name == "pal8":
            frame = self._blended(frame)
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

    def _blended(self, frame: Any) -> Any:
        """Blend with the background before scaling: otherwise hidden colours would bleed at the edges."""
        import av

        pixels = self.convert(frame, format="rgba", threads=1).to_ndarray()
        opacity = pixels[..., 3:].astype(np.float32) / 255
        blended = np.asarray(pixels[..., :3] * opacity + np.asarray(self.background, np.float32) * (1 - opacity))
        return av.VideoFrame.from_ndarray(np.rint(blended).astype(np.uint8), "rgb24")


def _aspect(stream: Any, decoder: Any) -> float:
    """Pixel aspect ratio, of the file or else of its first decoded frame."""
    aspect = stream.sample_aspect_ratio or decoder.sample_aspect_ratio
    return float(aspect) if aspect and 0.1 < aspect < 10 else 1.0


def _orientation(frame: Any) -> tuple[int, bool]:
    """Counter-clockwise quarter turns that make a frame upright, and whether to mirror it, from its display matrix."""
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
