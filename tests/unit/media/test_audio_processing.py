"""Processing of audio samples: resampling, mel spectrograms, loudness, spectrogram images."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from quintet.media.audio import input_span, loudness, resample, resampled_length, to_loudness
from quintet.media.chart import spectrogram
from quintet.media.mel import FLOOR, LogMel, hertz_to_mel, mel_filters, mel_to_hertz


def sine(hertz: float, rate: int, seconds: float = 1.0) -> np.ndarray:
    return np.sin(2 * np.pi * hertz * np.arange(int(seconds * rate)) / rate).astype(np.float32)[None]


RATES = [(44_100, 16_000), (8000, 16_000), (192_000, 16_000), (48_000, 44_100), (44_101, 16_000), (16_000, 24_000)]


@pytest.mark.parametrize(("source", "target"), RATES)
def test_a_sine_stays_a_sine_up_to_nine_tenths_of_the_band(source: int, target: int) -> None:
    for share in (0.01, 0.3, 0.89):
        hertz = share * min(source, target) / 2
        resampled = resample(sine(hertz, source), source, target)
        middle = slice(target // 4, 3 * target // 4)
        assert resampled.shape == (1, resampled_length(source, source, target))
        assert np.abs(resampled - sine(hertz, target))[:, middle].max() < 2e-4


@pytest.mark.parametrize(("source", "target"), [pair for pair in RATES if pair[0] > pair[1]])
def test_frequencies_above_the_new_nyquist_are_removed(source: int, target: int) -> None:
    resampled = resample(sine(0.51 * target, source), source, target)
    assert np.abs(resampled[:, target // 4 : 3 * target // 4]).max() < 10 ** (-95 / 20)


@pytest.mark.parametrize(("source", "target"), RATES)
def test_a_window_needs_no_more_input_than_its_span(source: int, target: int) -> None:
    samples = np.random.default_rng(0).standard_normal((2, source // 2)).astype(np.float32)
    full = resample(samples, source, target)
    first, last = input_span(3001, 500, source, target)
    first = max(first, 0)
    piece = resample(samples[:, first:last], source, target, offset=first, start=3001, count=500)
    np.testing.assert_allclose(piece, full[:, 3001:3501], atol=3e-6)


def test_mel_powers_are_those_of_the_reference() -> None:
    """The numbers are librosa 0.11's, of melspectrogram(sr=16000, n_fft=1024, hop_length=160, n_mels=64)."""
    time = np.arange(16_000) / 16_000
    wave = 0.5 * np.sin(2 * np.pi * (200 + 1500 * time) * time) + 0.01 * np.sin(np.arange(16_000) ** 1.5)
    found = LogMel(16_000)(torch.from_numpy(wave.astype(np.float32)))
    assert found.shape == (64, 101)
    expected = {(0, 0): 1.10546, (0, 50): -6.83302, (3, 10): -8.01483, (10, 20): -6.86576, (20, 60): -8.60706}
    expected |= {(31, 77): -9.21495, (40, 90): -7.18663, (63, 100): -6.08991, (50, 5): -6.72686, (63, 50): -6.25055}
    for position, value in expected.items():
        assert found[position].item() == pytest.approx(value, abs=1e-4)
    assert found.mean().item() == pytest.approx(-6.252947, abs=1e-4)
    filters = mel_filters(16_000, 1024, 64)
    assert filters.sum().item() == pytest.approx(4.09588, abs=1e-4)
    for row, (peak, height) in {0: (3, 0.02133115), 30: (101, 0.01221759), 63: (488, 0.00273002)}.items():
        assert (filters[row].argmax().item(), filters[row].max().item()) == (peak, pytest.approx(height, abs=1e-7))


def test_the_mel_scale_is_slaneys() -> None:
    assert hertz_to_mel([0, 200 / 3, 1000, 6400]).tolist() == pytest.approx([0, 1, 15, 42])
    assert mel_to_hertz(hertz_to_mel([50, 999, 1001, 7000])).tolist() == pytest.approx([50, 999, 1001, 7000])


def test_mel_frames_are_counted_and_silence_is_floored() -> None:
    front = LogMel(16_000, n_fft=512, hop_length=100, n_mels=20)
    for samples in (1000, 1001, 1099, 1100):
        assert front(torch.zeros(2, 3, samples)).shape == (2, 3, 20, int(front.frames(torch.tensor(samples))))
    assert torch.equal(front(torch.zeros(1000)), torch.full((20, 11), math.log(FLOOR)))
    assert not list(front.parameters())
    assert not front.state_dict()


@pytest.mark.parametrize("rate", [16_000, 44_100, 48_000])
def test_loudness_of_the_standards_tone(rate: int) -> None:
    assert loudness(sine(997, rate, 3), rate) == pytest.approx(-3.01, abs=0.1)
    assert loudness(0.1 * sine(997, rate, 3), rate) == pytest.approx(-23.01, abs=0.1)
    both = np.concatenate([sine(997, rate, 3)] * 2)
    assert loudness(both, rate) == pytest.approx(0.0, abs=0.1)
    assert loudness(sine(40, rate, 3), rate) < -6  # low frequencies have less weight


def test_silence_between_tones_does_not_count_as_loudness() -> None:
    tone = sine(997, 16_000, 3)
    gap = np.concatenate([tone, np.zeros_like(tone), tone], axis=1)
    assert loudness(gap, 16_000) == pytest.approx(-3.01, abs=0.5)  # counted, the gap would cost 1.8
    assert loudness(np.zeros((1, 16_000), np.float32), 16_000) == -math.inf
    assert math.isfinite(loudness(tone[:, :50], 16_000))


def test_audio_is_normalised_as_far_as_full_scale_allows() -> None:
    tone = 0.01 * sine(997, 16_000, 2)
    assert loudness(to_loudness(tone, 16_000, -23), 16_000) == pytest.approx(-23, abs=0.05)
    assert np.abs(to_loudness(tone, 16_000, 0)).max() == pytest.approx(1.0, abs=1e-5)
    silence = np.zeros((1, 100), np.float32)
    assert np.array_equal(to_loudness(silence, 16_000, -23), silence)


def test_a_spectrogram_has_low_frequencies_below_and_time_to_the_right() -> None:
    late = np.concatenate([np.zeros((1, 8000), np.float32), sine(300, 16_000, 0.5)], axis=1)
    image = spectrogram(late, 16_000, width=80)
    assert (image.dtype, image.shape) == (np.uint8, (96, 80, 3))
    brightness = image.astype(float).sum(axis=2)
    row, column = np.unravel_index(brightness.argmax(), brightness.shape)
    assert row > 70
    assert column > 38
    assert brightness[:, :30].max() < 20
    assert spectrogram(np.zeros(1600, np.float32), 16_000).max() < 20
    broken = late.copy()
    broken[0, :3] = (np.nan, np.inf, -np.inf)
    assert np.array_equal(spectrogram(broken, 16_000, width=80), image)
