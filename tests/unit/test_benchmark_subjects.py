"""How the text-to-image benchmark measures subjects: which captions it generates, and what counts as recognized."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from types import ModuleType

import pytest
import torch

from quintet.errors import UsageError

MODULES = ("nearest", "subjects", "subject_features")
CAPTIONS = [f"thing {number}, {style}" for number in range(40) for style in ("Noto", "Twemoji")]


@pytest.fixture
def benchmark(monkeypatch: pytest.MonkeyPatch) -> dict[str, ModuleType]:
    monkeypatch.syspath_prepend(str(Path(__file__).parents[2] / "benchmarks"))
    for name in MODULES:
        monkeypatch.delitem(sys.modules, name, raising=False)
    return {name: importlib.import_module(name) for name in MODULES}


def test_captions_are_of_different_subjects_and_alternate_in_style(benchmark: dict[str, ModuleType]) -> None:
    chosen = benchmark["subjects"].choose_captions(CAPTIONS, 20)
    subjects, styles = zip(*map(benchmark["subjects"].parts, chosen), strict=True)
    assert len(set(subjects)) == 20
    assert styles == 10 * ("Noto", "Twemoji")
    assert set(chosen) <= set(CAPTIONS)


def test_the_choice_depends_on_the_seed_and_not_on_the_order(benchmark: dict[str, ModuleType]) -> None:
    choose = benchmark["subjects"].choose_captions
    assert choose(CAPTIONS, 20) == choose([*reversed(CAPTIONS), CAPTIONS[0]], 20)
    assert choose(CAPTIONS, 20) != choose(CAPTIONS, 20, seed=1)


def test_the_choice_ends_when_a_style_has_no_other_subject(benchmark: dict[str, ModuleType]) -> None:
    captions = ["cat, Noto", "cat, Twemoji", "dog, Noto", "owl, Noto"]
    chosen = benchmark["subjects"].choose_captions(captions, 100)
    assert len(chosen) in (1, 3)  # a Noto cat leaves no subject for Twemoji
    assert len({benchmark["subjects"].parts(text)[0] for text in chosen}) == len(chosen)


def test_a_caption_without_a_style_is_named(benchmark: dict[str, ModuleType]) -> None:
    assert benchmark["subjects"].parts("flag: Bonaire, Saba, Noto") == ("flag: Bonaire, Saba", "Noto")
    with pytest.raises(UsageError, match="'broken heart' does not end in a style"):
        benchmark["subjects"].parts("broken heart")


def test_the_other_style_is_the_subject_but_not_the_very_picture(benchmark: dict[str, ModuleType]) -> None:
    nearest = benchmark["nearest"]
    captions = ["cat, Noto", "cat, Twemoji", "dog, Noto", "owl, Twemoji"]
    pictures = torch.eye(4).reshape(4, 1, 2, 2)
    samples = 0.9 * pictures[[0, 1, 3, 3]] + 0.05
    found = nearest.nearest_images(samples, pictures)
    asked = ["cat, Noto", "cat, Noto", "dog, Noto", "owl, Twemoji"]
    assert found.indices.tolist() == [0, 1, 3, 3]
    assert benchmark["subjects"].recognized(found, asked, captions) == {"own_subject": 0.75, "own_picture": 0.5}


def test_features_find_the_pictures_of_moved_and_blurred_views(benchmark: dict[str, ModuleType]) -> None:
    features = benchmark["subject_features"]
    generator = torch.Generator().manual_seed(0)
    small = torch.rand(24, 3, 4, 4, generator=generator)
    pictures = torch.nn.functional.interpolate(small, (32, 32), mode="nearest")
    pictures = torch.nn.functional.pad(pictures[..., 4:-4, 4:-4], [4] * 4, value=1.0)
    blurred = torch.nn.functional.avg_pool2d(pictures, 3, 1, 1)
    state = torch.get_rng_state()
    trained = features.train_features(pictures, blurred, steps=40, batch_size=24)
    assert torch.equal(torch.get_rng_state(), state)
    views = blurred.roll((2, -2), (-2, -1))
    found = features.nearest_features(trained, views, pictures)
    assert (found.indices == torch.arange(24)).double().mean() > 0.9
