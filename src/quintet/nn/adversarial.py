"""Adversarial training: a patch discriminator, the losses of generator and discriminator, and the adaptive weight.

This module is independent of the training loop. A recipe has two phases: the discriminator's, on
`cat(real, fake.detach())`, and the generator's, through the frozen, unwrapped module of the discriminator.
"""

from __future__ import annotations

from itertools import pairwise

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.grad import conv2d_weight

from quintet.common import collectives
from quintet.common.precision import at_least_fp32

MAX_ADAPTIVE_WEIGHT = 1e4
LECAM_DECAY = 0.99


class PatchDiscriminator(nn.Module):
    """PatchGAN discriminator: strided convolutions from images to a map of logits, one per patch.

    Small images use fewer than `layers` layers, so that feature maps keep at least 4 pixels per side. The running means
    of the logits are used by LeCam regularisation; only `update` changes them.
    """

    real_mean: Tensor
    fake_mean: Tensor

    def __init__(self, channels: int, dim: int, layers: int, smallest_side: int) -> None:
        super().__init__()
        layers = max(1, min(layers, smallest_side.bit_length() - 3))
        widths = [dim * min(2**number, 8) for number in range(layers)]
        blocks: list[nn.Module] = [nn.Conv2d(channels, widths[0], 4, stride=2, padding=1), nn.LeakyReLU(0.2)]
        for before, after in pairwise(widths):
            blocks += [
                nn.Conv2d(before, after, 4, stride=2, padding=1, bias=False),
                nn.GroupNorm(8, after),
                nn.LeakyReLU(0.2),
            ]
        self.layers = nn.Sequential(*blocks, nn.Conv2d(widths[-1], 1, 3, padding=1))
        self.register_buffer("real_mean", torch.zeros(()))
        self.register_buffer("fake_mean", torch.zeros(()))

    def forward(self, images: Tensor, others: Tensor | None = None) -> Tensor:
        """Logits (batch, 1, rows, columns) of `images`, then of `others`.

        The two are computed separately, so that a gradient penalty on `images` needs no second backward pass through
        `others`. Both are in one call, because a module wrapped by DDP may be called only once per backward pass.
        """
        logits: Tensor = self.layers(images)
        return logits if others is None else torch.cat([logits, self.layers(others)])

    def update(self, real_mean: Tensor, fake_mean: Tensor) -> None:
        """Update the running means of the logits, after an accepted step."""
        self.real_mean.lerp_(real_mean.to(self.real_mean.dtype), 1 - LECAM_DECAY)
        self.fake_mean.lerp_(fake_mean.to(self.fake_mean.dtype), 1 - LECAM_DECAY)


def patch_loss(
    discriminator: nn.Module, real: Tensor, fake: Tensor, penalised: bool
) -> tuple[Tensor, dict[str, Tensor], tuple[Tensor, Tensor]]:
    """Hinge loss of a `PatchDiscriminator` on real and fake images, its components, and the logits of both.

    With `penalised`, the components include the gradient penalty, which is not part of the returned loss.
    """
    real = real.detach().requires_grad_(penalised)
    fake = fake.detach().to(real.dtype)
    logits = discriminator(real, fake) if penalised else discriminator(torch.cat([real, fake]))
    real_logits, fake_logits = at_least_fp32(logits).chunk(2)
    loss = hinge_discriminator_loss(real_logits, fake_logits)
    parts = {"hinge": loss, "real": real_logits.mean(), "fake": fake_logits.mean()}
    if penalised:
        parts["penalty"] = gradient_penalty(real_logits, real)
    return loss, parts, (real_logits, fake_logits)


def hinge_discriminator_loss(real: Tensor, fake: Tensor) -> Tensor:
    return (F.relu(1 - real).mean() + F.relu(1 + fake).mean()) / 2


def hinge_generator_loss(fake: Tensor) -> Tensor:
    return -fake.mean()


def lecam_penalty(real: Tensor, fake: Tensor, real_mean: Tensor, fake_mean: Tensor) -> Tensor:
    """LeCam: keeps real and fake logits near each other's running mean (Tseng et al. 2021, 2104.03310)."""
    return F.relu(real - fake_mean).square().mean() + F.relu(real_mean - fake).square().mean()


def gradient_penalty(logits: Tensor, images: Tensor) -> Tensor:
    """Gradient penalty (|gradient| - 1)^2 at `images` (batch, channels, height, width), without its weight.

    The gradient is that of the mean logit of an image. The gradient of the sum over patches would restrict dozens of
    logits to the slope of one; such a discriminator cannot separate real and fake images.
    """
    (gradient,) = torch.autograd.grad(logits.reshape(len(logits), -1).mean(1).sum(), images, create_graph=True)
    gradient = at_least_fp32(gradient)
    norms = gradient.flatten(1).norm(dim=1)
    penalty: Tensor = (norms - 1).square().mean()
    return penalty


@torch.no_grad()
def adaptive_weight(
    layer: nn.Conv2d, features: Tensor, reconstruction_slope: Tensor, adversarial_slope: Tensor
) -> Tensor:
    """Weight at which the adversarial gradient at the last layer is as large as the reconstruction gradient.

    The slopes are the gradients of the losses at the layer's output and `features` is its input, so that the weight
    gradients need one convolution each and no second pass through the discriminator. They are averaged over ranks
    before their norms are taken, because the norm of a mean is not the mean of norms.
    """
    norms = []
    for slope in (reconstruction_slope, adversarial_slope):
        inputs = features.to(slope.dtype)
        gradient = conv2d_weight(inputs, layer.weight.shape, slope, padding=layer.padding)  # type: ignore[no-untyped-call]
        norms.append((collectives.sum_over_ranks(gradient) / collectives.world_size()).norm())
    weight: Tensor = (norms[0] / (norms[1] + 1e-6)).clamp(max=MAX_ADAPTIVE_WEIGHT)
    return weight
