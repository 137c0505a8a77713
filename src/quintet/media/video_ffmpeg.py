"""Video decoding with FFmpeg (through PyAV): frames as a player displays them.

A frame is rotated upright, has square pixels, and its transparency is blended with a colour.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from fractions import Fraction
from typing import Any

import numpy as np
import numpy.typing as npt

from quintet.errors import UnreadableItem
from quintet.media.budget import check_memory, check_steps
from quintet.media.files import MediaRef, open_file
from quintet.media.video_header import (
    FOLDER_RATE,
    WHITE,
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
_HELD_FRAMES = {"h264": 9, "hevc": 9, "vp9": 10, "libvpx-vp9": 10, "av1": 10, "libdav1d": 10}
_USUAL_HELD_FRAMES = 5
_LEAST_BITS = 12  # of a pixel, while its format is not known
_HIGH_DEFINITION = 720  # lines; a larger file without a colour space is assumed to be BT.709
_UNSPECIFIED = 2
_ROWS = 64


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
            _check_frame(stream.codec_context.width, stream.codec_context.height, stream.codec_context)
            decoder = _decoder(stream)
            decoder.thread_count = 1  # data workers share the cores already
            yield container, stream, decoder


def _check_frame(width: int, height: int, decoder: Any, pixel_format: Any = None) -> None:
    """Refuse frames of which a decoder cannot hold as many as its codec refers to."""
    check_pixels(width, height)
    bits = pixel_format.padded_bits_per_pixel if pixel_format is not None else _LEAST_BITS
    held = width * height * bits // 8 * _HELD_FRAMES.get(decoder.name, _USUAL_HELD_FRAMES)
    check_memory(held, f"decoding frames of {width}x{height} pixels")


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
        # Stamps, durations and keyframe flags of all frames; small arrays, as a long file has many frames.
        stamps, durations, flags = array("q"), array("q"), bytearray()
        stamped = True
        for packet in container.demux(stream):
            if packet.size and not packet.is_discard and not hidden(packet):
                check_steps(len(stamps) + 1, "frames")
                stamped = stamped and packet.pts is not None
                stamps.append(packet.pts or 0)
                durations.append(packet.duration or 0)
                flags.append(packet.is_keyframe)
        kind = f"{name} {stream.codec_context.name}"
    if not stamps:
        raise UnreadableItem("holds no frame")
    if len(stamps) < expected and name == "mov":
        raise UnreadableItem(f"truncated: {expected} frames promised, {len(stamps)} there")
    if unordered or base <= 0 or not stamped:
        return _counted_header(file, kind)
    # In order of display; of several frames with one time stamp, the first place and the last flags count.
    order = np.argsort(np.array(stamps), kind="stable")
    sorted_stamps = np.array(stamps)[order]
    last_of_equals = order[np.append(sorted_stamps[1:] != sorted_stamps[:-1], True)]
    distinct = np.array(stamps)[last_of_equals]
    keys = np.frombuffer(flags, np.bool_)[last_of_equals]
    starts = np.maximum.accumulate(np.where(keys, np.arange(len(keys)), 0))
    times = (distinct - distinct[0]) * float(base)
    last = float(durations[last_of_equals[-1]] * base)
    last = last or float(np.median(np.diff(times)) if len(times) > 1 else 1 / FOLDER_RATE)
    return VideoHeader(times, float(times[-1]) + last, kind, distinct, starts)


def _never(packet: Any) -> bool:
    return False


def _is_hidden_vp8(packet: Any) -> bool:
    """Whether this is a frame that is never displayed and only serves as a reference."""
    return not memoryview(packet)[0] & 0x10


def _counted_header(file: MediaRef, kind: str) -> VideoHeader:
    """The header of a file without time stamps: all of it is decoded to count its frames."""
    with _ffmpeg(file, kind) as (container, stream, decoder):
        rate = float(stream.average_rate or FOLDER_RATE)
        count = 0
        for packet in container.demux(stream):
            count += len(decoder.decode(packet))
            check_steps(count, "frames")
        return header_from_durations([1 / rate] * count, kind)


def ffmpeg_frames(
    file: MediaRef, header: VideoHeader, indices: Sequence[int], fit: Fit | None, background: Colour
) -> Frames:
    with _ffmpeg(file, header.format) as (container, stream, decoder):
        show = _DisplayConverter(background, lambda: _aspect(stream, decoder))
        for index, frame in _decoded(container, stream, decoder, header, indices):
            _check_frame(frame.width, frame.height, decoder, frame.format)
            image = show(frame, fit)
            fit = fit or Fit(*image.shape[:2])
            yield index, image


def ffmpeg_size(file: MediaRef, header: VideoHeader) -> tuple[int, int]:
    """Width and height of the first frame, as displayed."""
    with _ffmpeg(file, header.format) as (container, stream, decoder):
        show = _DisplayConverter(WHITE, lambda: _aspect(stream, decoder))
        for _, frame in _decoded(container, stream, decoder, header, [0]):
            return show.size(frame)
    raise UnreadableItem(f"damaged: its frame at {header.times[0]:.2f} s cannot be decoded")


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
        self.orientations: dict[int, tuple[int, bool]] = {}
        self.convert = VideoReformatter().reformat
        self.exact = Interpolation.ACCURATE_RND | Interpolation.FULL_CHR_H_INT | Interpolation.BITEXACT
        # Area averaging for smaller sizes; enlarging with it would show squares.
        self.smaller, self.larger = Interpolation.AREA, Interpolation.BICUBIC

    def __call__(self, frame: Any, fit: Fit | None) -> npt.NDArray[np.uint8]:
        turns, mirrored = self._orientation(frame)
        width, height = self.size(frame)
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

    def size(self, frame: Any) -> tuple[int, int]:
        """Width and height of a frame as displayed."""
        width, height = max(1, round(frame.width * self.aspect())), frame.height
        return (height, width) if self._orientation(frame)[0] % 2 else (width, height)

    def _orientation(self, frame: Any) -> tuple[int, bool]:
        """As `_orientation`, looked up once per rotation, on a small copy: the side data of a frame keep it alive."""
        rotation = frame.rotation
        if rotation not in self.orientations:
            self.orientations[rotation] = _orientation(_small_copy(frame))
        return self.orientations[rotation]

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

        layer = self.convert(frame, format="rgba", threads=1)
        blended = av.VideoFrame(layer.width, layer.height, "rgb24")
        pixels, result = _pixels(layer, 4), _pixels(blended, 3)
        background = np.asarray(self.background, np.float32)
        for top in range(0, len(pixels), _ROWS):  # a few rows at a time: fractions take several times the memory
            rows = pixels[top : top + _ROWS]
            opacity = rows[..., 3:].astype(np.float32) / 255
            result[top : top + _ROWS] = np.rint(rows[..., :3] * opacity + background * (1 - opacity))
        return blended


def _pixels(frame: Any, channels: int) -> npt.NDArray[np.uint8]:
    """The pixels (height, width, channels) of a packed frame, without a copy."""
    plane = frame.planes[0]
    rows = np.frombuffer(plane, np.uint8).reshape(-1, plane.line_size)[: frame.height, : channels * frame.width]
    return rows.reshape(frame.height, frame.width, channels)


def _aspect(stream: Any, decoder: Any) -> float:
    """Pixel aspect ratio, of the file or else of its first decoded frame."""
    aspect = stream.sample_aspect_ratio or decoder.sample_aspect_ratio
    return float(aspect) if aspect and 0.1 < aspect < 10 else 1.0


def _small_copy(frame: Any) -> Any:
    """A copy of 16 by 16 pixels with the side data of a frame."""
    from av.filter import Graph

    graph = Graph()
    source = graph.add_buffer(
        width=frame.width, height=frame.height, format=frame.format, time_base=frame.time_base or Fraction(1, 1)
    )
    scale, sink = graph.add("scale", "16:16"), graph.add("buffersink")
    source.link_to(scale)
    scale.link_to(sink)
    graph.configure()
    graph.vpush(frame)
    return graph.vpull()


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
