"""Reading of audio files in full and by windows, refused files, and writing."""

from __future__ import annotations

import itertools
import struct
from pathlib import Path
from typing import Any

import av
import numpy as np
import pytest
import soundfile
import torch

from quintet.errors import UnreadableItem, UsageError
from quintet.media.audio import Samples, probe_audio, read_audio, read_header, window_starts, write_audio

RATE = 16_000
FORMATS: dict[str, dict[str, str]] = {"wav": {}, "flac": {}, "mp3": {}, "ogg": {}, "aiff": {}}


def sweep(seconds: float, rate: int = RATE, channels: int = 1) -> Samples:
    """A sweep from 100 Hz, so that no two windows are equal."""
    time = np.arange(int(seconds * rate)) / rate
    waves = [0.5 * np.sin(2 * np.pi * (100 + 150 * time + 20 * channel) * time) for channel in range(channels)]
    return np.stack(waves).astype(np.float32)


def write(path: Path, samples: Samples, rate: int = RATE, **options: Any) -> Path:
    with soundfile.SoundFile(path, "w", rate, len(samples), **options) as file:
        for start in range(0, samples.shape[1], 8192):  # libsndfile cannot take much Vorbis at once
            file.write(samples[:, start : start + 8192].T)
    return path


def write_m4a(path: Path, samples: Samples, rate: int = RATE, movflags: str = "") -> Path:
    with av.open(str(path), "w", format="mp4", options={"movflags": movflags} if movflags else {}) as container:
        stream = container.add_stream("aac", rate=rate, layout="mono")
        for start in range(0, samples.shape[1], 1024):
            frame = av.AudioFrame.from_ndarray(samples[:, start : start + 1024].copy(), format="fltp", layout="mono")
            frame.sample_rate, frame.pts = rate, start
            container.mux(stream.encode(frame))
        container.mux(stream.encode(None))
    return path


def write_mp3(path: Path, samples: Samples, rate: int = RATE, *, constant: bool) -> Path:
    """Write an MP3 like a stream, without its length."""
    with av.open(str(path), "w", format="mp3", options={"write_xing": "0"}) as container:
        stream: Any = container.add_stream("mp3", rate=rate, layout="mono")
        if not constant:
            stream.codec_context.qscale = True
            stream.codec_context.global_quality = 4 * 118
        for start in range(0, samples.shape[1], 1152):
            frame = av.AudioFrame.from_ndarray(samples[:, start : start + 1152].copy(), format="fltp", layout="mono")
            frame.sample_rate, frame.pts = rate, start
            container.mux(stream.encode(frame))
        container.mux(stream.encode(None))
    return path


def truncate(path: Path, fraction: float = 0.5) -> Path:
    content = path.read_bytes()
    path.write_bytes(content[: int(len(content) * fraction)])
    return path


@pytest.mark.parametrize("kind", FORMATS)
def test_a_window_equals_that_part_of_the_full_clip(tmp_path: Path, kind: str) -> None:
    path = write(tmp_path / f"a.{kind}", sweep(5))
    full = read_audio(path)
    assert full.shape == (1, 5 * RATE)
    assert np.abs(full[:, 1600:-1600] - sweep(5)[:, 1600:-1600]).max() < 0.08
    for start in (0, 7, 30_001, 79_000):
        window = read_audio(path, start=start, frames=1000)
        assert window.shape == (1, 1000)
        assert np.abs(window - full[:, start : start + 1000]).max() < (0.002 if kind in ("mp3", "ogg") else 1e-9)


@pytest.mark.parametrize("rate", [8000, 11_025, 22_050, 44_100, 48_000, 44_101])
def test_a_window_at_another_rate_equals_that_part_of_the_full_clip(tmp_path: Path, rate: int) -> None:
    path = write(tmp_path / "a.flac", sweep(2, rate), rate)
    full = read_audio(path, RATE)
    assert full.shape == (1, 2 * RATE)
    for start in (0, 777, 31_500):
        window = read_audio(path, RATE, start=start, frames=500)
        np.testing.assert_allclose(window, full[:, start : start + 500], atol=2e-6)
    assert np.abs(full[:, 800:-800] - sweep(2)[:, 800:-800]).max() < 2e-3


def test_ffmpeg_reads_formats_unknown_to_libsndfile(tmp_path: Path) -> None:
    path = write_m4a(tmp_path / "a.m4a", sweep(4))
    header = read_header(path)
    assert (header.decoder, header.rate, header.channels) == ("ffmpeg", RATE, 1)
    assert abs(header.seconds - 4) < 0.1
    full = read_audio(path)
    assert np.abs(full[:, 3000:50_000] - sweep(4)[:, 3000:50_000]).max() < 0.1
    for start in (0, 5000, 40_001):
        window = read_audio(path, start=start, frames=3000)
        assert np.abs(window - full[:, start : start + 3000]).max() < 0.01


def test_a_window_ends_where_the_file_ends(tmp_path: Path) -> None:
    path = write(tmp_path / "a.wav", sweep(1))
    assert read_audio(path, start=15_000, frames=5000).shape == (1, 1000)
    with pytest.raises(ValueError, match="16000"):
        read_audio(path, start=16_000)


def test_eight_channels_are_mixed_or_returned(tmp_path: Path) -> None:
    samples = sweep(0.5, channels=8)
    path = write(tmp_path / "a.wav", samples)
    np.testing.assert_allclose(read_audio(path), samples.mean(axis=0, keepdims=True), atol=1e-4)
    np.testing.assert_allclose(read_audio(path, mono=False), samples, atol=1e-4)


@pytest.mark.parametrize("rate", [8000, 192_000])
def test_unusual_rates_are_read_and_reported(tmp_path: Path, rate: int) -> None:
    path = write(tmp_path / "a.wav", sweep(1, rate), rate)
    facts = probe_audio(path)
    assert (facts.rate, facts.seconds, facts.channels, facts.format) == (rate, 1.0, 1, "WAV")
    assert read_audio(path, RATE).shape == (1, RATE)


def test_silent_and_clipped_files_are_read_and_reported(tmp_path: Path) -> None:
    silent = write(tmp_path / "silent.wav", np.zeros((1, 4000), np.float32))
    clipped = write(tmp_path / "clipped.wav", np.clip(4 * sweep(1), -1, 1))
    clean = write(tmp_path / "clean.wav", sweep(1))
    facts = [probe_audio(path) for path in (silent, clipped, clean)]
    assert [(one.silent, one.clipped) for one in facts] == [(True, False), (False, True), (False, False)]
    assert facts[1].clipped_fraction > 0.3
    assert read_audio(silent).max() == 0.0


@pytest.mark.parametrize("kind", FORMATS)
@pytest.mark.parametrize("fraction", [0.4, 0.93])
def test_a_truncated_file_is_refused(tmp_path: Path, kind: str, fraction: float) -> None:
    path = truncate(write(tmp_path / f"a.{kind}", sweep(6)), fraction)
    with pytest.raises(UnreadableItem, match="truncated"):
        read_header(path)


def test_a_truncated_m4a_is_refused(tmp_path: Path) -> None:
    path = truncate(write_m4a(tmp_path / "a.m4a", sweep(6), movflags="faststart"), 0.6)
    with pytest.raises(UnreadableItem, match="truncated"):
        read_header(path)
    with pytest.raises(UnreadableItem, match="no decoder"):
        read_header(truncate(write_m4a(tmp_path / "b.m4a", sweep(6)), 0.6))  # its index was at the end


@pytest.mark.parametrize("constant", [True, False])
@pytest.mark.parametrize("rate", [RATE, 44_100])
def test_an_mp3_without_a_length_is_read_to_its_end(tmp_path: Path, constant: bool, rate: int) -> None:
    # Silence first: a length guessed from the first frames would be wrong.
    samples = np.concatenate([np.zeros((1, 4 * rate), np.float32), sweep(8, rate)], axis=1)
    path = write_mp3(tmp_path / "a.mp3", samples, rate, constant=constant)
    header = read_header(path)
    assert 12 <= header.seconds < 12.2
    full = read_audio(path)
    assert np.abs(full[:, -2 * rate :]).max() > 0.4
    for start in (0, 7, 5 * rate + 1, header.frames - 1000):
        np.testing.assert_allclose(read_audio(path, start=start, frames=1000), full[:, start : start + 1000], atol=1e-6)
    with pytest.raises(UnreadableItem, match="truncated"):
        read_header(truncate(path, 0.501))


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"", "empty file"),
        (b"a shopping list\n" * 20, "no decoder"),
        (b"\x89PNG\r\n\x1a\n" + bytes(100), "no decoder|no sound"),
        (b"RIFF\x24\x00\x00\x00WAVEfmt ", "no decoder|damaged|zero"),
    ],
)
@pytest.mark.parametrize("kind", ["wav", "flac", "mp3", "m4a"])
def test_files_that_are_not_audio_are_refused_with_the_reason(
    tmp_path: Path, kind: str, content: bytes, reason: str
) -> None:
    path = tmp_path / f"a.{kind}"
    path.write_bytes(content)
    with pytest.raises(UnreadableItem, match=reason):
        read_header(path)


def test_the_content_decides_not_the_extension(tmp_path: Path) -> None:
    path = write(tmp_path / "a.flac", sweep(1)).rename(tmp_path / "a.mp3")
    assert read_header(path).format == "FLAC"
    assert read_audio(path).shape == (1, RATE)


@pytest.mark.parametrize("kind", ["wav", "flac", "mp3", "m4a"])
def test_a_list_of_other_files_is_not_audio(tmp_path: Path, kind: str) -> None:
    write(tmp_path / "private.mp3", sweep(1))
    (tmp_path / f"list.{kind}").write_text("ffconcat version 1.0\nfile private.mp3\n")
    with pytest.raises(UnreadableItem, match="not a sound file"):
        read_header(tmp_path / f"list.{kind}")


def test_a_header_without_samples_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UnreadableItem, match="length is zero"):
        read_header(write(tmp_path / "a.wav", np.zeros((1, 0), np.float32)))


def test_a_missing_file_and_a_folder_are_refused(tmp_path: Path) -> None:
    with pytest.raises(UnreadableItem, match="No such file"):
        read_header(tmp_path / "none.wav")
    with pytest.raises(UnreadableItem, match="not a regular file"):
        read_header(tmp_path)


def test_samples_that_are_not_finite_are_refused(tmp_path: Path) -> None:
    samples = sweep(1)
    samples[0, 900] = np.nan
    path = write(tmp_path / "a.wav", samples, subtype="FLOAT")
    with pytest.raises(UnreadableItem, match="no numbers"):
        read_audio(path)
    assert read_audio(path, start=1000, frames=10).shape == (1, 10)


def test_samples_on_another_scale_are_refused(tmp_path: Path) -> None:
    loud = write(tmp_path / "loud.wav", 4 * sweep(1), subtype="FLOAT")
    assert np.abs(read_audio(loud)).max() > 1.9
    for scale in (32_767, 1e38):
        path = write(tmp_path / "a.wav", (sweep(1) * scale).astype(np.float32), subtype="FLOAT")
        with pytest.raises(UnreadableItem, match="where 1 is full scale"):
            read_audio(path)


def test_a_hole_in_the_middle_is_found_when_it_is_read(tmp_path: Path) -> None:
    path = write(tmp_path / "a.flac", sweep(20))
    content = bytearray(path.read_bytes())
    middle = len(content) // 2
    content[middle : middle + 30_000] = bytes(30_000)
    path.write_bytes(content)
    read_header(path)
    with pytest.raises(UnreadableItem, match=r"damaged|truncated"):
        probe_audio(path)


def test_streams_without_a_length_are_read(tmp_path: Path) -> None:
    flac = write(tmp_path / "a.flac", sweep(1))
    content = bytearray(flac.read_bytes())
    content[21] &= 0xF0  # the 36 bits of the number of frames, after magic, block header and 13 bytes and a half
    content[22:26] = bytes(4)
    flac.write_bytes(content)
    assert read_audio(flac).shape == (1, RATE)
    wav = write(tmp_path / "a.wav", sweep(1))
    content = bytearray(wav.read_bytes())
    position = content.index(b"data") + 4
    content[position : position + 4] = struct.pack("<I", 0xFFFFFFFF)
    wav.write_bytes(content)
    assert read_audio(wav).shape == (1, RATE)


@pytest.mark.parametrize(
    ("channels", "reason"),
    [(65, "65 channels, more than 64"), (0, "no valid number"), (65535, "no valid number")],
)
def test_a_number_of_channels_that_cannot_be_meant_is_named(tmp_path: Path, channels: int, reason: str) -> None:
    path = write(tmp_path / "a.wav", sweep(1))
    content = bytearray(path.read_bytes())
    content[22:24] = struct.pack("<H", channels)
    path.write_bytes(content)
    with pytest.raises(UnreadableItem, match=reason):
        read_header(path)


def test_windows_cover_a_clip_from_its_start_to_its_end() -> None:
    assert window_starts(5, 10, 3, 8) == [0]
    assert window_starts(10, 10, 3, 8) == [0]
    assert window_starts(40, 10, 10, 8) == [0, 10, 20, 30]
    starts = window_starts(1000, 10, 3, 8)
    assert (starts[0], starts[-1], len(starts)) == (0, 990, 8)
    assert max(b - a for a, b in itertools.pairwise(starts)) - min(b - a for a, b in itertools.pairwise(starts)) <= 1
    assert window_starts(1000, 10, 3, 1) == [495]


@pytest.mark.parametrize("kind", ["wav", "flac"])
def test_written_audio_is_read(tmp_path: Path, kind: str) -> None:
    samples = sweep(0.3, channels=2)
    path = write_audio(torch.from_numpy(samples), tmp_path / "new" / f"a.{kind}", 24_000)
    read = read_audio(path, mono=False)
    assert read_header(path).rate == 24_000
    assert np.abs(read - samples).max() <= 0.5 / 32768 + 1e-9
    again = write_audio(read, tmp_path / f"b.{kind}", 24_000)
    assert np.array_equal(read_audio(again, mono=False), read)
    assert [file.name for file in path.parent.iterdir()] == [f"a.{kind}"]


def test_values_beyond_full_scale_are_clipped_and_nan_is_silence(tmp_path: Path) -> None:
    path = write_audio([0.0, 2.0, -2.0, float("nan"), float("inf")], tmp_path / "a.wav", RATE)
    np.testing.assert_allclose(read_audio(path)[0], [0, 1, -1, 0, 1], atol=1e-4)
    with pytest.raises(UsageError, match=r"\.mp3"):
        write_audio([0.0], tmp_path / "a.mp3", RATE)
