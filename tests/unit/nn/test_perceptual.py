"""The perceptual loss, with features of a small VGG-16 with random weights."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from safetensors.torch import save_file
from torch import Tensor

from quintet.errors import UsageError
from quintet.nn.perceptual import PerceptualLoss

SHAPES = {0: (4, 3), 2: (4, 4), 5: (8, 4), 7: (8, 8), 10: (8, 8), 12: (8, 8), 14: (8, 8)}
"""Torchvision's indices of the first seven convolutions of VGG-16, with fewer channels."""


def tensors(numbers: Any = SHAPES) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(0)
    result: dict[str, Tensor] = {}
    for number in numbers:
        result[f"features.{number}.weight"] = torch.randn(*SHAPES[number], 3, 3, generator=generator) * 0.3
        result[f"features.{number}.bias"] = torch.randn(SHAPES[number][0], generator=generator) * 0.3
    return result


@pytest.fixture
def weights(tmp_path: Path) -> Path:
    save_file(tensors(), tmp_path / "vgg.safetensors")
    return tmp_path / "vgg.safetensors"


def random_images(seed: int, channels: int = 3, size: int = 16) -> Tensor:
    return torch.rand(2, channels, size, size, generator=torch.Generator().manual_seed(seed))


def plain_loss(one: Tensor, two: Tensor) -> Tensor:
    """Layer by layer with torchvision's indices: pooling after the layers 2, 7 and 14."""
    known = tensors()
    mean = torch.tensor([0.485, 0.456, 0.406]).view(1, 3, 1, 1)
    deviation = torch.tensor([0.229, 0.224, 0.225]).view(1, 3, 1, 1)
    x, y = (one - mean) / deviation, (two - mean) / deviation
    distances = []
    for number in SHAPES:
        weight, bias = known[f"features.{number}.weight"], known[f"features.{number}.bias"]
        x, y = (F.relu(F.conv2d(value, weight, bias, padding=1)) for value in (x, y))
        if number in (2, 7, 14):
            units = [value / value.norm(dim=1, keepdim=True).clamp(min=1e-12) for value in (x, y)]
            distances.append((units[0] - units[1]).square().sum(1).mean())
            x, y = F.max_pool2d(x, 2), F.max_pool2d(y, 2)
    return torch.stack(distances).mean()


def test_loss_equals_a_plain_implementation(weights: Path) -> None:
    one, two = random_images(1), random_images(2)
    torch.testing.assert_close(PerceptualLoss(weights)(one, two), plain_loss(one, two))


def test_equal_images_have_zero_loss_and_noise_increases_it(weights: Path) -> None:
    loss, one = PerceptualLoss(weights), random_images(1)
    assert loss(one, one) == 0
    near, far = (loss(one, one + strength * random_images(2)) for strength in (0.05, 0.5))
    assert 0 < near < far


def test_gradients_reach_the_image_and_not_the_weights(weights: Path) -> None:
    loss, result = PerceptualLoss(weights), random_images(1).requires_grad_()
    loss(result, random_images(2)).backward()
    assert result.grad is not None
    assert result.grad.abs().sum() > 0
    assert len(list(loss.parameters())) == 14
    assert all(not parameter.requires_grad and parameter.grad is None for parameter in loss.parameters())
    assert not loss.training


def test_the_loss_can_be_moved_to_fp64(weights: Path) -> None:
    one, two = random_images(1), random_images(2)
    wide = PerceptualLoss(weights).double()(one.double(), two.double())
    torch.testing.assert_close(wide, plain_loss(one, two).double())


def test_grey_images_are_repeated_to_three_channels(weights: Path) -> None:
    one, two = random_images(1, channels=1), random_images(2, channels=1)
    torch.testing.assert_close(
        PerceptualLoss(weights)(one, two), plain_loss(one.expand(-1, 3, -1, -1), two.expand(-1, 3, -1, -1))
    )


def test_alpha_is_ignored(weights: Path) -> None:
    one, two = random_images(1, channels=4), random_images(2, channels=4)
    torch.testing.assert_close(PerceptualLoss(weights)(one, two), plain_loss(one[:, :3], two[:, :3]))


def test_any_number_of_full_blocks_is_accepted(tmp_path: Path) -> None:
    save_file(tensors([0, 2, 5, 7]), tmp_path / "vgg.safetensors")
    loss = PerceptualLoss(tmp_path / "vgg.safetensors")
    assert loss(random_images(1), random_images(2)) > 0
    assert loss(random_images(1, size=2), random_images(2, size=2)) > 0  # as small as the last block can see


def test_other_weights_in_the_file_are_ignored(tmp_path: Path) -> None:
    others = {"classifier.0.weight": torch.zeros(2, 2), "features.norm.weight": torch.zeros(1)}
    save_file({**tensors(), **others}, tmp_path / "vgg.safetensors")
    assert PerceptualLoss(tmp_path / "vgg.safetensors").numbers == list(SHAPES)


def without(name: str) -> dict[str, Tensor]:
    return {key: value for key, value in tensors().items() if key != name}


@pytest.mark.parametrize(
    "content",
    [
        {},
        {"other": torch.zeros(1)},
        tensors([0]),
        without("features.2.bias"),
        {**tensors(), "features.5.weight": torch.zeros(8, 5, 3, 3)},
        {**tensors(), "features.5.weight": torch.zeros(8)},
    ],
    ids=["empty", "other names", "half a block", "no bias", "wrong shape", "no kernel"],
)
def test_files_with_other_weights_are_refused_by_name(tmp_path: Path, content: dict[str, Tensor]) -> None:
    save_file(content, tmp_path / "vgg.safetensors")
    with pytest.raises(UsageError, match=r"loss\.perceptual_weights: .*vgg\.safetensors"):
        PerceptualLoss(tmp_path / "vgg.safetensors")


def test_files_that_are_not_safetensors_are_refused_by_name(tmp_path: Path) -> None:
    torch.save(tensors(), tmp_path / "vgg.pth")
    (tmp_path / "short").write_bytes(b"\x01")
    for name in ("vgg.pth", "short", "missing", "."):
        with pytest.raises(UsageError, match=r"loss\.perceptual_weights: (cannot read|.* is a pickle)"):
            PerceptualLoss(tmp_path / name)
