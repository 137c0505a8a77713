"""The pitch that benchmarks measure notes by, on tones whose pitch is known."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

RATE = 16_000


@pytest.fixture(scope="module")
def pitch() -> ModuleType:
    path = Path(__file__).parents[2] / "benchmarks" / "pitch.py"
    spec = importlib.util.spec_from_file_location("benchmark_pitch", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def tone(key: float, partials: list[float], seconds: float = 0.6, decay: float = 3.0) -> np.ndarray:
    time = np.arange(int(seconds * RATE)) / RATE
    hertz = 440 * 2 ** ((key - 69) / 12)
    waves = [height * np.sin(2 * np.pi * number * hertz * time) for number, height in enumerate(partials, start=1)]
    return 0.3 * np.sum(waves, axis=0) * np.exp(-decay * time)


@pytest.mark.parametrize(
    "partials",
    [[1.0], [1.0, 0.5, 0.33, 0.25, 0.2], [0.1, 1.0, 0.6, 0.4], [1.0, 0.0, 0.4, 0.0, 0.2]],
    ids=["sine", "saw", "weak fundamental", "odd partials"],
)
def test_the_class_of_a_tone_is_found_from_deep_to_high(pitch: ModuleType, partials: list[float]) -> None:
    keys = range(31, 92)
    assert [pitch.pitch_class(tone(key, partials), RATE) for key in keys] == [key % 12 for key in keys]


def test_it_holds_under_noise_detuning_and_other_rates(pitch: ModuleType) -> None:
    noise = 0.02 * np.random.default_rng(0).standard_normal(int(0.6 * RATE))
    saw = [1.0, 0.5, 0.33, 0.25]
    for key in (40, 51, 64, 77):
        assert pitch.pitch_class(tone(key, saw) + noise, RATE) == key % 12
        assert pitch.pitch_class(tone(key + 0.3, saw), RATE) == key % 12
        # Twice as many samples a second make it an octave higher, which is the same class.
        assert pitch.pitch_class(tone(key, saw), 2 * RATE) == key % 12


def test_silence_noise_and_next_to_nothing_have_no_pitch(pitch: ModuleType) -> None:
    assert pitch.pitch_class(np.zeros(RATE), RATE) is None
    assert pitch.pitch_class(np.zeros(0), RATE) is None
    assert pitch.pitch_class(np.ones(1), RATE) is None
    assert pitch.pitch_class(np.random.default_rng(0).standard_normal(RATE), RATE) is None


def test_captions_tell_the_class(pitch: ModuleType) -> None:
    captions = ["accordian, note C4", "celesta, note F sharp 5", "oboe, note B flat 3", "low timbale, percussion kit"]
    assert [pitch.captioned_class(caption) for caption in captions] == [0, 6, 10, None]


def test_what_has_no_pitch_counts_as_wrong(pitch: ModuleType) -> None:
    found = pitch.accuracy([(0, 0), (1, 2), (3, None), (4, 4)])
    assert (found["right"], found["no_pitch"], found["clips"]) == (0.5, 0.25, 4)
