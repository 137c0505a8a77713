"""Pixels outside of [0, 1] and integers other than bytes are never used in silence."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from quintet.common import logging
from quintet.common.rng import ItemRNG
from quintet.config import ImageDataConfig, VideoDataConfig, build
from quintet.data.image import python_splits
from quintet.data.splits import Splits
from quintet.data.video import python_video_splits
from quintet.errors import UnreadableItem
from quintet.families.cvivit.config import CViViTConfig
from quintet.families.cvivit.model import CViViT
from quintet.families.cvivit.pipeline import CViViTPipeline
from quintet.families.phenaki.model import MaskGit, Phenaki
from quintet.families.vqgan.config import VQGanConfig
from quintet.families.vqgan.model import VQGanVAE
from quintet.families.vqgan.pipeline import VQGanPipeline


@pytest.fixture(autouse=True)
def _nothing_said_yet(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(logging, "_said", set())


def images_of(value: Tensor) -> Splits:
    return python_splits([value] * 3, ImageDataConfig(path=None), (8, 8), 3)


def videos_of(value: Tensor) -> Splits:
    return python_video_splits([value] * 3, VideoDataConfig(path=None, frames=3), (8, 8))


DATA = {"image": (images_of, (3, 8, 8)), "video": (videos_of, (3, 3, 8, 8))}


def load_two(splits: Splits) -> None:
    for item in range(2):
        splits.train.load(item, ItemRNG(0, [0], [item]))


@pytest.mark.parametrize("medium", DATA)
@pytest.mark.parametrize("scale", [(-1.0, 1.0), (0.0, 255.0)])
def test_floats_outside_of_the_range_are_said_once(
    medium: str, scale: tuple[float, float], capsys: pytest.CaptureFixture[str]
) -> None:
    make, shape = DATA[medium]
    low, high = scale
    load_two(make(torch.linspace(low, high, torch.Size(shape).numel()).view(shape)))
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 1
    assert (
        f"a{'n' if medium == 'image' else ''} {medium} of the dataset has pixels from {low:.3g} to {high:.3g}"
        in (lines[0])
    )


@pytest.mark.parametrize("medium", DATA)
def test_each_data_set_of_a_process_says_it(medium: str, capsys: pytest.CaptureFixture[str]) -> None:
    make, shape = DATA[medium]
    for _ in range(2):
        load_two(make(-torch.ones(shape)))
    assert len(capsys.readouterr().err.splitlines()) == 2


@pytest.mark.parametrize("medium", DATA)
def test_floats_and_bytes_in_their_range_are_not_mentioned(medium: str, capsys: pytest.CaptureFixture[str]) -> None:
    make, shape = DATA[medium]
    load_two(make(torch.rand(shape)))
    load_two(make(torch.randint(0, 256, shape, dtype=torch.uint8)))
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize("medium", DATA)
def test_integers_that_are_not_bytes_are_unreadable(medium: str) -> None:
    make, shape = DATA[medium]
    with pytest.raises(UnreadableItem, match=r"has pixels of type torch\.int64; expected uint8"):
        load_two(make(torch.randint(0, 256, shape)))


def test_a_tokenizer_says_that_its_input_is_out_of_range(capsys: pytest.CaptureFixture[str]) -> None:
    vae = VQGanVAE(image_size=8, dim=8, layers=1, codebook_size=16)
    config = build(VQGanConfig, overrides={"data.path": None, "model": vae.config.model_dump(mode="json")})
    pipeline = VQGanPipeline(config, {"vae": vae})
    pipeline.encode(torch.rand(1, 3, 8, 8))
    assert capsys.readouterr().err == ""
    pipeline.encode(torch.rand(1, 3, 8, 8) * 2 - 1)
    assert "the input has pixels from -" in capsys.readouterr().err


def test_prime_frames_may_be_bytes() -> None:
    cvivit = CViViT(image_size=8, patch_size=4, dim=16, spatial_depth=1, temporal_depth=1, heads=1, head_dim=16)
    config = build(CViViTConfig, overrides={"data.path": None, "model": cvivit.config.model_dump(mode="json")})
    assert CViViTPipeline(config, {"cvivit": cvivit}).cvivit is cvivit
    maskgit = MaskGit(grid=(3, 2, 2), num_codes=cvivit.num_codes, dim=16, depth=1, heads=1, text="none")
    frames = torch.randint(0, 256, (3, 3, 8, 8), dtype=torch.uint8)
    primed = Phenaki(maskgit, cvivit).prime_batch(frames, 2)
    torch.testing.assert_close(primed[0], frames / 255)
