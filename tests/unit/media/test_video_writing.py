"""Video writing: written files can be read and played."""

from __future__ import annotations

from pathlib import Path

import av
import numpy as np
import pytest
import torch

from films import counted, places_of
from quintet.errors import UsageError
from quintet.media.video import clip_tensor, read_header, read_video
from quintet.media.video_writing import filmstrip, write_video


@pytest.mark.parametrize("kind", ["mp4", "gif", "webp"])
@pytest.mark.parametrize("form", ["array", "bytes", "floats"])
def test_a_written_video_is_read(tmp_path: Path, kind: str, form: str) -> None:
    clip = counted(9)
    bytes_tensor = clip_tensor(clip)
    video = {"array": clip, "bytes": bytes_tensor, "floats": bytes_tensor.double() / 255}[form]
    path = write_video(video, tmp_path / "new" / f"film.{kind}", rate=5)
    read = read_video(path)
    assert places_of(read) == list(range(9))
    assert np.abs(read.astype(int) - clip).mean() < 2
    assert read_header(path).seconds == pytest.approx(1.8)
    assert [each.name for each in path.parent.iterdir()] == [path.name]


def test_webp_loses_nothing(tmp_path: Path) -> None:
    clip = np.random.default_rng(0).integers(0, 256, (4, 20, 30, 3)).astype(np.uint8)
    assert np.array_equal(read_video(write_video(clip, tmp_path / "noise.webp")), clip)


def test_an_mp4_is_what_browsers_play(tmp_path: Path) -> None:
    path = write_video(counted(5, 33, 47), tmp_path / "film.mp4", rate=8)
    with av.open(str(path)) as container:
        stream = container.streams.video[0]
        context = stream.codec_context
        assert (context.name, context.pix_fmt, context.width, context.height) == ("h264", "yuv420p", 48, 34)
        assert (context.colorspace, context.color_range, stream.average_rate) == (1, 1, 8)
    data = path.read_bytes()
    assert data.index(b"moov") < data.index(b"mdat")  # plays before the full download
    # The last row and column are repeated.
    assert np.abs(read_video(path)[:, 20:33, 20:47].astype(int) - counted(5, 33, 47)[:, 20:, 20:]).max() <= 8


def test_nan_is_written_as_black(tmp_path: Path) -> None:
    video = torch.full((3, 2, 16, 16), 2.0)
    video[:, :, 8:] = torch.nan
    video[:, 1, :2] = -1
    read = read_video(write_video(video, tmp_path / "film.webp"))
    assert (read[:, 2:8].min(), read[:, 8:].max(), read[1, :2].max()) == (255, 0, 0)


def test_invalid_formats_and_clips_are_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"'\.mpg' is not among \.mp4, \.gif, \.webp"):
        write_video(counted(2), tmp_path / "film.mpg")
    for wrong in (torch.zeros(2, 4, 8, 8), torch.zeros(3, 8, 8), np.zeros((2, 8, 8, 3)), torch.zeros(3, 0, 8, 8)):
        with pytest.raises(ValueError, match="a clip is a tensor 3 x frames"):
            write_video(wrong, tmp_path / "film.mp4")  # type: ignore[arg-type]
    assert list(tmp_path.iterdir()) == []


def test_a_filmstrip_shows_frames_from_left_to_right() -> None:
    strip = filmstrip(clip_tensor(counted(5)))
    assert strip.shape == (50, 5 * 66, 3)
    assert places_of(strip[None, 1:-1, 67:131]) == [1]
    assert places_of(strip[None, 1:-1, -65:-1]) == [4]
    few = filmstrip(counted(33), max_frames=5)
    assert [places_of(few[None, 1:-1, 66 * each + 1 : 66 * each + 65])[0] for each in range(5)] == [0, 8, 16, 24, 32]
