"""Owns adversarial training: a patch discriminator, the losses of both sides, and the adaptive weight.

Nothing here knows the loop. A recipe makes two phases of it: the discriminator's on `cat(real, fake.detach())` and
the generator's through the discriminator's raw module, frozen.
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
    """Strided convolutions to a map of logits, each about a patch of the picture.

    As many of the `layers` as the picture allows: it never shrinks below 4 pixels a side. The running means of the
    logits are for LeCam; they change in `update` alone.
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
        """Logits of the pictures, then of the others, apart: a penalty on the first costs the others nothing.

        One call for both, because a module that DDP wraps may be called only once before its backward pass.
        """
        logits: Tensor = self.layers(images)
        return logits if others is None else torch.cat([logits, self.layers(others)])

    def update(self, real_mean: Tensor, fake_mean: Tensor) -> None:
        """Move the running means of the logits, after an accepted step."""
        self.real_mean.lerp_(real_mean.to(self.real_mean.dtype), 1 - LECAM_DECAY)
        self.fake_mean.lerp_(fake_mean.to(self.fake_mean.dtype), 1 - LECAM_DECAY)


def patch_loss(
    discriminator: nn.Module, real: Tensor, fake: Tensor, penalised: bool
) -> tuple[Tensor, dict[str, Tensor], tuple[Tensor, Tensor]]:
    """The hinge loss of a `PatchDiscriminator` on real and made pictures, its parts, and the logits of both.

    Where a penalty is asked for it is among the parts, and not yet in the loss.
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
    """Keeps each side's logits near the other side's running mean (Tseng et al. 2021, 2104.03310)."""
    return F.relu(real - fake_mean).square().mean() + F.relu(real_mean - fake).square().mean()


def gradient_penalty(logits: Tensor, images: Tensor) -> Tensor:
    """Holds the slope at the real pictures at 1, (|gradient| - 1)^2; the caller weighs it.

    The slope of a picture's mean logit. That of the sum over patches would hold dozens of logits to the slope of one,
    and a discriminator so bound tells nothing apart: both sides' logits stay equal.
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
    """How strong the adversarial gradient may be at the last layer: as strong as the reconstruction's.

    The slopes are the losses' gradients at the layer's output and `features` is its input, so that the gradients of
    its weights take one convolution each and no second pass through the discriminator. They are averaged over
    ranks before their norms are taken, because the norm of a mean is not the mean of norms.
    """
    norms = []
    for slope in (reconstruction_slope, adversarial_slope):
        inputs = features.to(slope.dtype)
        gradient = conv2d_weight(inputs, layer.weight.shape, slope, padding=layer.padding)  # type: ignore[no-untyped-call]
        norms.append((collectives.sum_over_ranks(gradient) / collectives.world_size()).norm())
    weight: Tensor = (norms[0] / (norms[1] + 1e-6)).clamp(max=MAX_ADAPTIVE_WEIGHT)
    return weight
