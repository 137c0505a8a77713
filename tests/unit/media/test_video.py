"""Video files: every frame is read once, at its time, as a player displays it, or there is a reason."""

from __future__ import annotations

import os
import shutil
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import soundfile
from PIL import Image

from films import Clip, counted, places_of, red_corner, write_film
from quintet.errors import UnreadableItem
from quintet.media.video import (
    Fit,
    VideoHeader,
    clip_frames,
    clip_tensor,
    frame_order,
    probe_video,
    read_header,
    read_video,
)
from quintet.media.video_header import DEFAULT_SECONDS
from quintet.media.video_writing import write_video

UNEVEN = [0, 10, 20, 60, 61, 62, 63, 64, 65, 66, 100, 150]
"""Hundredths of a second."""


def write_folder(path: Path, clip: Clip, name: str = "frame-{}.png") -> Path:
    path.mkdir(parents=True)
    for number, image in enumerate(clip):
        Image.fromarray(image).save(path / name.format(number))
    return path


def written(path: Path, clip: Clip) -> Path:
    """Write a video of ten frames per second by the extension, or a folder without one."""
    if path.suffix in (".gif", ".webp"):
        return write_video(clip, path, 10)
    return write_film(path, clip) if path.suffix else write_folder(path, clip)


def truncate(path: Path, fraction: float) -> Path:
    path.write_bytes(path.read_bytes()[: int(fraction * path.stat().st_size)])
    return path


KINDS = [".mp4", ".mov", ".mkv", ".webm", ".avi", ".gif", ".webp", ""]


# --- all frames, in order, at their times -------------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
def test_every_frame_comes_once_and_in_order(tmp_path: Path, kind: str) -> None:
    path = written(tmp_path / f"film{kind}", counted(12))
    header = read_header(path)
    full = read_video(path)
    assert (full.dtype, full.shape, header.frames) == (np.uint8, (12, 48, 64, 3), 12)
    assert places_of(full) == list(range(12))
    assert red_corner(full[0]) == "top left"
    assert np.abs(full.astype(int) - counted(12))[:, 20:].max() <= 8
    seconds = 1.2 if kind else 12 / 25
    assert header.seconds == pytest.approx(seconds)
    np.testing.assert_allclose(header.times, np.arange(12) * seconds / 12, atol=1e-6)
    assert header.steady


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("few key frames.mp4", {"g": "250", "bf": "3"}),
        ("open groups.mp4", {"x264-params": "open-gop=1:keyint=8:bframes=3:scenecut=0"}),
        ("many key frames.mkv", {"g": "4"}),
        ("without an index.mkv", {"g": "5", "container_options": {"live": "1"}}),
        ("hidden frames.webm", {"codec": "libvpx", "auto-alt-ref": "1", "lag-in-frames": "16", "deadline": "good"}),
        ("in another order.avi", {"bf": "2", "qmax": "2"}),
        ("each by itself.avi", {"codec": "mjpeg", "pixels": "yuvj420p"}),
        ("the newest.mp4", {"codec": "libsvtav1", "svtav1-params": "lp=1", "preset": "12"}),
    ],
)
def test_single_frames_equal_those_of_the_full_video(tmp_path: Path, name: str, options: dict[str, Any]) -> None:
    path = write_film(tmp_path / name, counted(34), **options)
    header = read_header(path)
    full = read_video(path)
    assert places_of(full) == list(range(34))
    for indices in ([17], [33], [0, 33], [3, 4, 5], [8, 8, 9, 21, 21], list(range(1, 34, 4))):
        assert np.array_equal(read_video(path, indices, header=header), full[indices]), indices


@pytest.mark.parametrize("kind", [".gif", ".webp", ""])
def test_single_frames_of_animations_and_folders(tmp_path: Path, kind: str) -> None:
    path = written(tmp_path / f"film{kind}", counted(12))
    assert places_of(read_video(path, [0, 3, 3, 11])) == [0, 3, 3, 11]


@pytest.mark.parametrize("kind", [".mp4", ".webm"])
def test_times_of_a_variable_rate_are_those_of_the_file(tmp_path: Path, kind: str) -> None:
    path = write_film(tmp_path / f"film{kind}", counted(12), times=UNEVEN)
    header = read_header(path)
    np.testing.assert_allclose(header.times, np.array(UNEVEN) / 100, atol=1e-6)
    assert not header.steady
    assert places_of(read_video(path)) == list(range(12))
    at_ten = clip_frames(header, 15, rate=10)
    assert at_ten == [0, 1, 2, 2, 2, 2, 3, 9, 9, 9, 10, 10, 10, 10, 10]


def test_times_of_animations_are_read(tmp_path: Path) -> None:
    first, *rest = (Image.fromarray(image) for image in counted(4))
    for kind in ("gif", "webp"):
        path = tmp_path / f"film.{kind}"
        first.save(path, save_all=True, append_images=rest, duration=[50, 200, 0, 1000], lossless=True)
        # Old programs write a duration of 0; browsers use a tenth of a second.
        np.testing.assert_allclose(read_header(path).times, np.cumsum([0, 0.05, 0.2, DEFAULT_SECONDS]))
        assert read_header(path).seconds == pytest.approx(1.25 + DEFAULT_SECONDS)


def test_a_still_image_is_a_video_of_one_frame(tmp_path: Path) -> None:
    for kind in ("gif", "webp"):
        Image.fromarray(counted(1)[0]).save(tmp_path / f"still.{kind}")
        assert read_video(tmp_path / f"still.{kind}").shape == (1, 48, 64, 3)


@pytest.mark.parametrize("kind", KINDS)
def test_a_video_of_one_frame(tmp_path: Path, kind: str) -> None:
    path = written(tmp_path / f"film{kind}", counted(1))
    assert read_video(path).shape == (1, 48, 64, 3)
    header = read_header(path)
    assert (header.seconds > 0, header.steady) == (True, True)
    for keys in ({"stride": 3}, {"rate": 7.0}):
        assert clip_frames(header, 17, start=0.99, **keys) == [0]


# --- frame indices of a clip --------------------------------------------------------------------------------------


def steady(frames: int, rate: float, digits: int = 9) -> VideoHeader:
    times = np.round(np.arange(frames) / rate, digits)
    return VideoHeader(times, frames / rate, "test")


def test_a_stride_takes_every_nth_frame_from_any_start() -> None:
    header = steady(20, 10)
    found = {tuple(clip_frames(header, 5, stride=3, start=start)) for start in np.linspace(0, 0.999, 50)}
    assert found == {tuple(range(first, first + 13, 3)) for first in range(8)}


@pytest.mark.parametrize("rate", [24, 25, 29.97, 30, 60])
@pytest.mark.parametrize("digits", [9, 3])
def test_the_rate_of_a_file_yields_each_frame_once(rate: float, digits: int) -> None:
    """Also if its times are rounded to milliseconds, as in WebM."""
    header = steady(40, rate, digits)
    starts = set()
    for start in np.linspace(0, 0.999, 30):
        indices = clip_frames(header, 17, rate=rate, start=start)
        assert indices == list(range(indices[0], indices[0] + 17))
        starts.add(indices[0])
    assert {0, 23} <= starts
    assert max(starts) == 23


def test_other_rates_go_by_time() -> None:
    header = steady(60, 30)
    assert clip_frames(header, 5, rate=15) == [0, 2, 4, 6, 8]
    assert clip_frames(header, 6, rate=60) == [0, 0, 1, 1, 2, 2]
    assert clip_frames(header, 4, rate=20) == [0, 1, 3, 4]
    assert clip_frames(header, 3, rate=1.0) == [0, 30]
    last = clip_frames(header, 2, rate=1.0, start=0.9999)
    assert last == [29, 59]


def test_a_short_file_yields_all_frames_from_its_first() -> None:
    header = steady(7, 10)
    for start in (0.0, 0.5, 0.99):
        assert clip_frames(header, 17, start=start) == list(range(7))
        assert clip_frames(header, 17, stride=3, start=start) == [0, 3, 6]
        assert clip_frames(header, 17, rate=5.0, start=start) == [0, 2, 4, 6]
    assert clip_frames(steady(7, 10), 7, start=0.99) == list(range(7))


# --- as a player displays it --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("turn", "mirror", "corner"),
    [
        (0, True, "top right"),
        (90, False, "bottom left"),
        (180, False, "bottom right"),
        (270, False, "top right"),
        (90, True, "bottom right"),
        (270, True, "top left"),
    ],
)
def test_a_phone_held_in_any_way(tmp_path: Path, turn: int, mirror: bool, corner: str) -> None:
    path = write_film(tmp_path / "phone.mp4", counted(3), turn=turn, mirror=mirror)
    size = (64, 48) if turn % 180 else (48, 64)
    clip = read_video(path)
    assert clip.shape == (3, *size, 3)
    assert red_corner(clip[0]) == corner
    assert places_of(clip) == [0, 1, 2]
    fitted = read_video(path, fit=Fit(20, 20))
    assert fitted.shape == (3, 20, 20, 3)
    assert red_corner(fitted[0]) == corner
    facts = probe_video(path)
    assert (facts.height, facts.width) == size


def test_the_matrix_that_phones_write(tmp_path: Path) -> None:
    """Portrait, as in any file of a phone: a clockwise quarter turn."""
    path = write_film(tmp_path / "phone.mp4", counted(2))
    data = bytearray(path.read_bytes())
    position = data.index(b"tkhd") + 4 + 40
    portrait = (0, 1 << 16, 0, -(1 << 16), 0, 0, 48 << 16, 0, 1 << 30)
    data[position : position + 36] = b"".join(number.to_bytes(4, "big", signed=True) for number in portrait)
    path.write_bytes(data)
    clip = read_video(path)
    assert clip.shape == (2, 64, 48, 3)
    assert red_corner(clip[0]) == "top right"


def test_pixels_that_are_not_square(tmp_path: Path) -> None:
    path = write_film(tmp_path / "old.mp4", counted(2), aspect=Fraction(2, 1))
    assert read_video(path).shape == (2, 48, 128, 3)
    # A square crop of its middle lacks the left third, where the corner is, except for coding artefacts.
    square = read_video(path, fit=Fit(24, 24))[:, :, 4:].astype(int)
    assert np.abs(square[..., 0] - square[..., 1]).max() < 20


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("odd.mkv", {"codec": "ffv1", "pixels": "yuv420p"}),
        ("odd.mp4", {"pixels": "yuv444p"}),
        ("odd.webm", {}),
        ("odd.gif", None),
        ("odd.webp", None),
    ],
)
def test_odd_sizes(tmp_path: Path, name: str, options: dict[str, str] | None) -> None:
    clip = counted(4, 47, 63)
    path = tmp_path / name
    path = write_video(clip, path, 10) if options is None else write_film(path, clip, **options)
    assert read_video(path).shape == (4, 47, 63, 3)
    assert places_of(read_video(path, fit=Fit(31, 17))) == [0, 1, 2, 3]


def transparent() -> Clip:
    """Frames whose lower half is transparent."""
    clip = np.concatenate([counted(4), np.full((4, 48, 64, 1), 255, np.uint8)], axis=3)
    clip[:, 24:] = (0, 255, 0, 0)
    return clip


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("runs.mov", {"codec": "qtrle", "pixels": "argb"}),
        ("pictures.mov", {"codec": "png", "pixels": "rgba"}),
        ("film.webm", {"codec": "libvpx-vp9", "pixels": "yuva420p"}),
        ("film.webp", None),
        ("film.gif", None),
        ("folder", None),
    ],
)
@pytest.mark.parametrize("fit", [None, Fit(24, 32)])
def test_transparency_is_blended_with_the_background(
    tmp_path: Path, name: str, options: dict[str, str] | None, fit: Fit | None
) -> None:
    path = tmp_path / name
    if options is not None:
        write_film(path, transparent(), **options)
    elif path.suffix:
        first, *rest = (Image.fromarray(image) for image in transparent())
        first.save(path, save_all=True, append_images=rest, duration=100, disposal=2)
    else:
        write_folder(path, transparent())
    for colour in ((255, 255, 255), (10, 60, 200)):
        clip = read_video(path, fit=fit, background=colour).astype(int)
        half = clip.shape[1] // 2
        assert np.abs(clip[:, half + 3 :] - colour).max() <= 8
        assert places_of(clip[:, : half - 2].astype(np.uint8)) == [0, 1, 2, 3]
        # Nothing of the transparent green is visible, except for coding artefacts.
        assert path.suffix == ".webm" or (clip[..., 1] - clip[..., [0, 2]].max(axis=3)).max() <= 8


def test_colours_are_red_green_and_blue_in_this_order(tmp_path: Path) -> None:
    clip = np.zeros((3, 32, 48, 3), np.uint8)
    clip[..., 0], clip[..., 1], clip[..., 2] = 210, 120, 40
    for name in ("a.mp4", "a.webm", "a.avi", "a.gif", "a.webp"):
        read = read_video(written(tmp_path / name, clip)).astype(int)
        assert np.abs(read - clip).max() <= 6, name


@pytest.mark.parametrize("kind", [".mov", ".webp", ""])
def test_all_frames_of_a_clip_have_the_same_crop(tmp_path: Path, kind: str) -> None:
    """A square crop of a wide video: from the left edge, the middle or the right edge."""
    clip = np.zeros((2, 40, 120, 3), np.uint8)
    clip[:, :, :40, 0] = clip[:, :, 40:80, 1] = clip[:, :, 80:, 2] = 200
    clip[1, 0, 0] = 9  # equal frames would be merged into one
    path = tmp_path / f"wide{kind}"
    written(path, clip) if kind != ".mov" else write_film(path, clip, codec="qtrle", pixels="rgb24")
    for x, channel in ((0.0, 0), (0.5, 1), (1.0, 2)):
        fitted = read_video(path, fit=Fit(20, 20, x=x))
        assert fitted.shape == (2, 20, 20, 3)
        assert fitted[:, :, 2:-2].mean(axis=(0, 1, 2)).argmax() == channel
        assert fitted[:, :, 2:-2, channel].min() >= 190
    assert np.array_equal(read_video(path, fit=Fit(40, 120)), clip)


def test_small_videos_are_enlarged_smoothly(tmp_path: Path) -> None:
    ramp = np.repeat(np.linspace(0, 255, 16)[None, None, :, None], 3, axis=3) * np.ones((1, 16, 1, 1))
    path = write_film(tmp_path / "small.mov", ramp.astype(np.uint8), codec="qtrle", pixels="rgb24")
    row = read_video(path, fit=Fit(64, 64))[0, 32, :, 0].astype(int)
    assert (np.diff(row) >= 0).all()
    assert np.diff(row).max() <= 8


def test_a_clip_as_a_tensor() -> None:
    tensor = clip_tensor(counted(5))
    assert tensor.shape == (3, 5, 48, 64)
    assert tensor[:, 2, 0, 0].tolist() == [200, 20, 20]


# --- folders of images --------------------------------------------------------------------------------------------


def test_images_of_a_folder_are_ordered_by_their_numbers(tmp_path: Path) -> None:
    path = write_folder(tmp_path / "film", counted(12), "shot {}.png")
    assert places_of(read_video(path)) == list(range(12))
    (path / "notes.txt").write_text("no frame")
    (path / ".hidden99.png").write_text("no frame")
    assert read_header(path).frames == 12
    assert frame_order(["a9.png", "a10.png", "a08.png"]) == ["a08.png", "a9.png", "a10.png"]
    assert frame_order(["a1.png", "b2.png"]) is None
    assert frame_order(["a1.png", "a1.jpg"]) is None
    assert frame_order(["a1.png", "cover.png"]) is None


def test_folders_that_are_not_image_sequences(tmp_path: Path) -> None:
    with pytest.raises(UnreadableItem, match="without pictures"):
        read_header(tmp_path)
    Image.fromarray(counted(1)[0]).save(tmp_path / "holiday.png")
    with pytest.raises(UnreadableItem, match="not numbered in one series"):
        read_header(tmp_path)


def test_intra_refresh_is_read_from_any_frame_on(tmp_path: Path) -> None:
    """Keyframes of such a file are recovery points: decoding from one yields complete frames only after a while."""
    noise = np.random.default_rng(0).integers(0, 255, (90, 48, 64, 3), dtype=np.uint8)
    path = write_film(tmp_path / "film.mp4", noise, **{"intra-refresh": "1", "g": "20"})
    header = read_header(path)
    assert probe_video(path).frames == 90
    assert header.starts is not None
    assert len(np.unique(header.starts)) > 3
    whole = read_video(path)
    for start in range(82):
        clip = read_video(path, range(start, start + 9), header=header)
        assert np.array_equal(clip, whole[start : start + 9])


def test_a_damaged_image_in_a_folder_is_named(tmp_path: Path) -> None:
    path = write_folder(tmp_path / "film", counted(4))
    (path / "frame-2.png").write_bytes(b"not an image")
    with pytest.raises(UnreadableItem, match=r"frame-2\.png: not a picture"):
        read_video(path)
    assert places_of(read_video(path, [0, 1, 3])) == [0, 1, 3]


# --- unusable files -----------------------------------------------------------------------------------------------

FILES = [kind for kind in KINDS if kind]


@pytest.mark.parametrize("kind", FILES)
@pytest.mark.parametrize("fraction", [0.97, 0.5, 0.1])
def test_a_truncated_video_is_refused(tmp_path: Path, kind: str, fraction: float) -> None:
    path = truncate(written(tmp_path / f"film{kind}", counted(34)), fraction)
    with pytest.raises(UnreadableItem, match=r"truncated|no decoder|no known video format"):
        probe_video(path)


def test_a_truncated_faststart_video_is_refused(tmp_path: Path) -> None:
    """Its index comes first, so it can be opened."""
    path = write_video(counted(34), tmp_path / "film.mp4", 10)
    with pytest.raises(UnreadableItem, match="truncated"):
        read_header(truncate(path, 0.8))


@pytest.mark.parametrize("kind", FILES)
@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"", "empty file"),
        (b"a shopping list\n" * 20, "not a video"),
        (b"\x89PNG\r\n\x1a\n" + bytes(100), "not a video"),
        (b"\x00\x00\x00\x18ftypisom" + bytes(12), "not a video"),
        (b"GIF89a" + bytes(7) + b";", "holds no frame"),
        (b"GIF89a\x04", "damaged|truncated"),
        (b"RIFF\x04\x00\x00\x00WEBP", "not a picture|damaged|truncated|not a video|cannot identify"),
        (b"RIFF\x00\x00\x00\x00AVI ", "not a video"),
        (b"\x1aE\xdf\xa3" + bytes(40), "not a video"),
        (b"ffconcat version 1.0\nfile private.mp4\n", "not a video"),
        (b"#EXTM3U\n#EXT-X-TARGETDURATION:1\n#EXTINF:1,\nprivate.mp4\n", "not a video"),
        (b"v=0\nc=IN IP4 127.0.0.1\nm=video 5004 RTP/AVP 96\n", "not a video"),
    ],
)
def test_files_that_are_not_videos_are_refused_with_the_reason(
    tmp_path: Path, kind: str, content: bytes, reason: str
) -> None:
    (tmp_path / f"film{kind}").write_bytes(content)
    with pytest.raises(UnreadableItem, match=reason) as raised:
        probe_video(tmp_path / f"film{kind}")
    assert "\n" not in str(raised.value)


def test_a_video_without_frames_is_refused(tmp_path: Path) -> None:
    for kind in (".mkv", ".avi", ".mp4"):
        path = write_film(tmp_path / f"none{kind}", counted(0))
        with pytest.raises(UnreadableItem, match=r"holds no frame|no decoder|no moving picture"):
            read_header(path)


def test_audio_alone_is_not_a_video(tmp_path: Path) -> None:
    import av

    with av.open(str(tmp_path / "sound.mp4"), "w") as container:
        stream = container.add_stream("aac", rate=16_000)
        frame = av.AudioFrame.from_ndarray(np.zeros((1, 16_000), np.float32), "fltp", "mono")
        frame.rate = 16_000
        container.mux(stream.encode(frame))
        container.mux(stream.encode())
    with pytest.raises(UnreadableItem, match="no moving picture"):
        read_header(tmp_path / "sound.mp4")
    soundfile.write(tmp_path / "sound.avi", np.zeros(100), 8000, format="WAV")
    with pytest.raises(UnreadableItem, match="not a video"):
        read_header(tmp_path / "sound.avi")


def test_a_missing_file_and_a_special_file(tmp_path: Path) -> None:
    with pytest.raises(UnreadableItem, match="No such file"):
        read_header(tmp_path / "none.mp4")
    os.mkfifo(tmp_path / "pipe.mp4")
    with pytest.raises(UnreadableItem, match="not a regular file"):
        read_header(tmp_path / "pipe.mp4")


def test_the_content_decides_and_not_the_name(tmp_path: Path) -> None:
    written(tmp_path / "a.mp4", counted(3))
    written(tmp_path / "b.gif", counted(3))
    shutil.copy(tmp_path / "a.mp4", tmp_path / "c.gif")
    shutil.copy(tmp_path / "b.gif", tmp_path / "d.mp4")
    for name in ("c.gif", "d.mp4"):
        assert places_of(read_video(tmp_path / name)) == [0, 1, 2]


@pytest.mark.parametrize("kind", FILES)
def test_damage_anywhere_yields_frames_or_a_reason(tmp_path: Path, kind: str) -> None:
    path = written(tmp_path / f"film{kind}", counted(8))
    content = path.read_bytes()
    rng = np.random.default_rng(0)
    reasons = []
    for _ in range(25):
        damaged = np.frombuffer(content, np.uint8).copy()
        indices = rng.integers(0, len(damaged), 6)
        damaged[indices] ^= rng.integers(1, 256, 6).astype(np.uint8)
        path.write_bytes(damaged.tobytes())
        try:
            header = read_header(path)
            assert len(read_video(path, clip_frames(header, 5), fit=Fit(16, 16), header=header)) <= 5
        except UnreadableItem as problem:
            reasons.append(str(problem))
    assert all(reason and "\n" not in reason for reason in reasons)


def test_missing_frames_are_a_value_error(tmp_path: Path) -> None:
    path = written(tmp_path / "film.webp", counted(4))
    for indices in ([], [4], [-1], [2, 1]):
        with pytest.raises(ValueError, match="of a file of 4"):
            read_video(path, indices)
