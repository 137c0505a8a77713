"""The discriminator and its losses, compared with autograd and the formulas of the papers."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from quintet.nn.adversarial import (
    LECAM_DECAY,
    MAX_ADAPTIVE_WEIGHT,
    PatchDiscriminator,
    adaptive_weight,
    gradient_penalty,
    hinge_discriminator_loss,
    hinge_generator_loss,
    lecam_penalty,
)


def random(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


# --- the discriminator --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("layers", [1, 4, 6])
@pytest.mark.parametrize(("height", "width"), [(8, 8), (16, 16), (32, 32), (64, 64), (256, 256), (8, 64), (48, 20)])
def test_images_of_any_size_give_a_map_of_logits(height: int, width: int, layers: int) -> None:
    smallest = min(height, width)
    discriminator = PatchDiscriminator(3, 8, layers, smallest)
    with torch.no_grad():
        logits = discriminator(torch.rand(2, 3, height, width))
    assert logits.shape[:2] == (2, 1)
    assert min(logits.shape[2:]) >= 4
    assert max(logits.shape[2:]) < max(height, width)


@pytest.mark.parametrize("channels", [1, 3, 4])
def test_channels(channels: int) -> None:
    assert PatchDiscriminator(channels, 16, 3, 32)(torch.rand(1, channels, 32, 32)).shape == (1, 1, 4, 4)


def test_every_weight_gets_a_gradient() -> None:
    discriminator = PatchDiscriminator(3, 8, 4, 64)
    discriminator(torch.rand(2, 3, 64, 64)).square().sum().backward()
    for name, parameter in discriminator.named_parameters():
        assert parameter.grad is not None, name
        assert parameter.grad.abs().sum() > 0, name


def test_only_update_changes_the_running_means() -> None:
    discriminator = PatchDiscriminator(3, 8, 2, 16)
    discriminator(torch.rand(2, 3, 16, 16))
    assert discriminator.real_mean == discriminator.fake_mean == 0
    discriminator.update(torch.tensor(2.0, dtype=torch.float64), torch.tensor(-1.0))
    discriminator.update(torch.tensor(2.0), torch.tensor(-1.0))
    fraction = 1 - LECAM_DECAY**2
    torch.testing.assert_close(discriminator.real_mean, torch.tensor(2 * fraction))
    torch.testing.assert_close(discriminator.fake_mean, torch.tensor(-fraction))
    assert {"real_mean", "fake_mean"} <= discriminator.state_dict().keys()


# --- losses -------------------------------------------------------------------------------------------------------


def test_hinge_losses() -> None:
    real, fake = torch.tensor([2.0, 0.5, -1.0]), torch.tensor([-2.0, 0.0, 3.0])
    assert hinge_discriminator_loss(real, fake).item() == pytest.approx(((0 + 0.5 + 2) / 3 + (0 + 1 + 4) / 3) / 2)
    assert hinge_generator_loss(fake).item() == pytest.approx(-1 / 3)


def test_lecam_equals_its_formula() -> None:
    real, fake = random(4, 1, 3, 3), random(4, 1, 3, 3, seed=1)
    real_mean, fake_mean = torch.tensor(0.3), torch.tensor(-0.2)
    expected = (
        torch.stack([max(value + 0.2, torch.tensor(0.0)) ** 2 for value in real.flatten()]).mean()
        + torch.stack([max(0.3 - value, torch.tensor(0.0)) ** 2 for value in fake.flatten()]).mean()
    )
    torch.testing.assert_close(lecam_penalty(real, fake, real_mean, fake_mean), expected.double())


def test_gradient_penalty_of_a_linear_critic_is_known() -> None:
    """Its gradient is its weight everywhere."""
    weight = torch.tensor([3.0, 4.0], dtype=torch.float64, requires_grad=True)
    images = random(5, 2).requires_grad_()
    penalty = gradient_penalty(images @ weight, images)
    assert penalty.item() == pytest.approx((5 - 1) ** 2)
    penalty.backward()
    torch.testing.assert_close(weight.grad, 2 * (5 - 1) * weight.detach() / 5, check_dtype=False)


def test_gradient_penalty_is_computed_per_image() -> None:
    discriminator = PatchDiscriminator(1, 8, 2, 8).double()
    images = torch.rand(3, 1, 8, 8, dtype=torch.float64, requires_grad=True)
    expected = []
    for number in range(3):
        one = images[number : number + 1].detach().requires_grad_()
        (slope,) = torch.autograd.grad(discriminator(one).mean(), one, create_graph=True)
        expected.append((slope.square().sum().sqrt() - 1).square())
    full = gradient_penalty(discriminator(images), images)
    torch.testing.assert_close(full, torch.stack(expected).mean(), rtol=1e-12, atol=1e-12)


# --- the adaptive weight ------------------------------------------------------------------------------------------


class Tail(nn.Module):
    """The end of a decoder: the last layer and the mapping of its output to pixels."""

    def __init__(self, kernel: int, padding: int) -> None:
        super().__init__()
        self.last = nn.Conv2d(4, 12, kernel, padding=padding).double()

    def forward(self, features: Tensor) -> Tensor:
        return F.pixel_shuffle(self.last(features), 2)


@pytest.mark.parametrize(("kernel", "padding"), [(3, 1), (1, 0), (5, 2)])
def test_the_adaptive_weight_is_the_ratio_of_gradient_norms_at_the_last_layer(kernel: int, padding: int) -> None:
    torch.manual_seed(0)
    tail, features = Tail(kernel, padding), random(3, 4, 8, 6)
    target = random(3, 3, 16, 12, seed=1)
    discriminator = PatchDiscriminator(3, 8, 2, 12).double()

    def losses() -> tuple[Tensor, Tensor, Tensor]:
        result = tail.last(features)
        image = F.pixel_shuffle(result, 2)
        return result, F.l1_loss(image, target), hinge_generator_loss(discriminator(image))

    _, reconstruction, adversarial = losses()
    both = (reconstruction, adversarial)
    plain = [torch.autograd.grad(loss, tail.last.weight, retain_graph=True)[0].norm() for loss in both]
    result, reconstruction, adversarial = losses()
    slopes = [torch.autograd.grad(loss, result, retain_graph=True)[0] for loss in (reconstruction, adversarial)]
    weight = adaptive_weight(tail.last, features, *slopes)
    torch.testing.assert_close(weight, plain[0] / (plain[1] + 1e-6), rtol=1e-10, atol=0)
    assert not weight.requires_grad


def test_the_adaptive_weight_is_finite_for_a_constant_discriminator() -> None:
    tail, features = Tail(3, 1), random(1, 4, 4, 4)
    slope = random(1, 12, 4, 4, seed=2) * 1e6
    assert adaptive_weight(tail.last, features, slope, torch.zeros_like(slope)) == MAX_ADAPTIVE_WEIGHT
    assert adaptive_weight(tail.last, features, torch.zeros_like(slope), slope) == 0
