"""C-ViViT: nothing looks ahead, so a video's codes are those of its beginning and more."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from quintet.config import UsageError, build, validate
from quintet.families.cvivit.config import CViViTConfig, CViViTModelConfig
from quintet.families.cvivit.model import CViViT

TINY = {
    **{"image_size": (16, 24), "patch": 8, "temporal_patch": 2, "max_frames": 13, "dim": 16, "heads": 2, "head_dim": 8},
    **{"spatial_depth": 1, "temporal_depth": 2, "codebook_size": 256},
}
QUANTIZERS = ("vq", "lfq", "fsq")


def make(**keys: Any) -> CViViT:
    torch.manual_seed(0)
    model = CViViT(**{**TINY, **keys}).double().eval()
    with torch.no_grad():
        model.quantizer.initialise(model.latents(film(9, 4)).flatten(0, 2), seed=0)
    return model


def film(frames: int, batch: int = 2) -> Tensor:
    return torch.rand(batch, 3, frames, 16, 24, dtype=torch.float64, generator=torch.Generator().manual_seed(frames))


@pytest.mark.parametrize("quantizer", QUANTIZERS)
def test_codes_and_videos_have_their_shapes(quantizer: str) -> None:
    model = make(quantizer=quantizer)
    codes = model.encode(film(9))
    assert codes.shape == (2, 5, 2, 3)
    assert 0 <= codes.min() <= codes.max() < model.num_codes
    assert len(codes.unique()) > 5
    decoded = model.decode(codes)
    assert decoded.shape == (2, 3, 9, 16, 24)
    assert 0 <= decoded.min() <= decoded.max() <= 1
    result = model(film(9))
    assert torch.equal(result.codes, codes)
    torch.testing.assert_close(result.videos.clamp(0, 1), decoded)
    levels = make(quantizer=quantizer, quantizer_levels=2)
    assert levels.encode(film(5)).shape == (2, 3, 2, 3, 2)
    assert levels.decode(levels.encode(film(5))).shape == (2, 3, 5, 16, 24)


@pytest.mark.parametrize("quantizer", QUANTIZERS)
def test_later_frames_change_no_earlier_latent_and_no_earlier_code(quantizer: str) -> None:
    model = make(quantizer=quantizer)
    whole = film(9)
    for first in (1, 3, 5, 7, 8):
        changed = whole.clone()
        changed[:, :, first:] = 1 - changed[:, :, first:]
        before = model.config.moments(first + 1) - 1  # the moment of the first changed frame
        latents, others = model.latents(whole), model.latents(changed)
        torch.testing.assert_close(latents[:, :before], others[:, :before], rtol=0, atol=1e-12)
        assert (latents[:, before] - others[:, before]).abs().max() > 1e-3
        assert torch.equal(model.encode(whole)[:, :before], model.encode(changed)[:, :before])


@pytest.mark.parametrize("quantizer", QUANTIZERS)
def test_the_codes_of_a_beginning_are_the_beginning_of_the_codes(quantizer: str) -> None:
    model = make(quantizer=quantizer)
    whole = film(13)
    codes = model.encode(whole)
    for frames in (1, 3, 7, 11):
        assert torch.equal(model.encode(whole[:, :, :frames]), codes[:, : model.config.moments(frames)])


@pytest.mark.parametrize("quantizer", QUANTIZERS)
def test_the_video_of_a_beginning_is_the_beginning_of_the_video(quantizer: str) -> None:
    model = make(quantizer=quantizer)
    codes = model.encode(film(13))
    whole = model.decode(codes)
    for moments in (1, 2, 5):
        part = model.decode(codes[:, :moments])
        assert part.shape[2] == model.config.frames(moments)
        torch.testing.assert_close(part, whole[:, :, : part.shape[2]], rtol=0, atol=1e-12)


def test_a_picture_is_a_video_of_one_frame() -> None:
    model = make()
    picture = film(1)
    codes = model.encode(picture)
    assert codes.shape == (2, 1, 2, 3)
    assert torch.equal(model.encode(picture[:, :, 0]), codes)
    assert model.decode(codes).shape == (2, 3, 1, 16, 24)
    assert model(picture[:, :, 0]).videos.shape == (2, 3, 1, 16, 24)


def test_places_see_each_other_at_one_moment_and_the_past_but_only_through_it() -> None:
    """Changing one corner of the first frame reaches every place of every moment."""
    model = make()
    whole = film(7)
    changed = whole.clone()
    changed[:, :, 0, :8, :8] = 0
    assert ((model.latents(whole) - model.latents(changed)).abs().amax(-1) > 1e-9).all()


@pytest.mark.parametrize("quantizer", QUANTIZERS)
def test_a_shorter_video_in_a_batch_is_as_if_alone(quantizer: str) -> None:
    model = make(quantizer=quantizer)
    videos = film(9)
    mask = torch.arange(9) < torch.tensor([[9], [4]])
    videos[1, :, 4:] = videos[1, :, 3:4]
    codes = model.encode(videos, mask)
    assert model.moments_there(mask).sum(1).tolist() == [5, 3]
    assert (codes[1, 3:] == -1).all()
    assert torch.equal(codes[1, :3], model.encode(videos[1:, :, :5])[0])
    assert torch.equal(codes[0], model.encode(videos[:1])[0])
    result = model(videos, mask)
    assert torch.equal(result.codes, codes)
    other = videos.clone()
    other[1, :, 5:] = 0.3
    again = model(other, mask)
    assert torch.equal(again.loss, result.loss)
    torch.testing.assert_close(again.videos[1, :, :5], result.videos[1, :, :5], rtol=0, atol=1e-12)


def test_gradients_reach_every_weight() -> None:
    model = make(quantizer="fsq").train()
    result = model(film(5))
    (result.videos.square().mean() + result.loss).backward()
    assert [name for name, weight in model.named_parameters() if weight.grad is None or not weight.grad.any()] == []


def test_it_is_exported_and_loaded(tmp_path: Path) -> None:
    model = make().float()
    model.save_pretrained(tmp_path / "hub")
    again = CViViT.from_pretrained(tmp_path / "hub")
    assert torch.equal(again.encode(film(5).float()), model.encode(film(5).float()))


@pytest.mark.parametrize(
    ("shape", "words"),
    [
        ((2, 3, 4, 16, 24), "4 frames are not 1 and a multiple of 2"),
        ((2, 3, 15, 16, 24), "15 frames are more than model.max_frames=13"),
        ((2, 3, 5, 16, 16), r"takes videos of \(batch, 3, frames, 16, 24\)"),
        ((2, 1, 5, 16, 24), "takes videos of"),
        ((3, 16, 24), "takes videos of"),
    ],
)
def test_videos_that_do_not_fit_are_refused(shape: tuple[int, ...], words: str) -> None:
    with pytest.raises(UsageError, match=words):
        make().encode(torch.zeros(shape, dtype=torch.float64))


def test_keys_that_contradict_each_other_are_refused() -> None:
    with pytest.raises(UsageError, match=r"model.image_size=30 is not divisible by model.patch = 8; .* 32"):
        validate(CViViTModelConfig, {"image_size": 30})
    with pytest.raises(UsageError, match=r"data.frames=16 is not 1 and a multiple of model.temporal_patch = 2; .* 17"):
        build(CViViTConfig, overrides={"data.frames": 16})
    with pytest.raises(UsageError, match=r"data.frames=17 is more than model.max_frames=9"):
        build(CViViTConfig, overrides={"model.max_frames": 9})
    with pytest.raises(UsageError, match=r"model.codebook_size=100"):
        CViViT(quantizer="lfq", codebook_size=100)
    for preset in ("debug", "small", "base"):
        build(CViViTConfig, preset=preset)
