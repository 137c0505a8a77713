"""Configuration keys of tokenizers trained against a discriminator. Imports no torch, so that help is quick."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from quintet.config import OptimConfig, PhaseOptimConfig, Section


class AdversarialLossConfig(Section):
    """Keys of adversarial training: whether there is a discriminator, and when it starts."""

    discriminator: bool = Field(True, description="Train against a discriminator (adversarial loss).")
    discriminator_start: int = Field(5000, ge=0, description="Step at which the adversarial loss starts.")
    discriminator_ramp: int = Field(
        1000, ge=0, description="Steps over which the adversarial weight ramps up linearly."
    )

    def is_adversarial(self, step: int) -> bool:
        return self.discriminator and step >= self.discriminator_start

    def unreached(self, steps: int) -> dict[str, str]:
        if not self.discriminator:
            return {}
        if self.discriminator_start >= steps:
            return {"discriminator_start": "the discriminator is never trained, and there is no adversarial loss"}
        if self.discriminator_start + self.discriminator_ramp > steps:
            return {"discriminator_ramp": "the adversarial loss never reaches its full weight"}
        return {}

    def adversarial_ramp(self, step: int) -> float:
        """Factor from 0 to 1 of the adversarial weight: linear after `discriminator_start`.

        Without a ramp, the errors of a fresh discriminator would damage the tokenizer.
        """
        return min(1.0, (step + 1 - self.discriminator_start) / max(1, self.discriminator_ramp))


class ImageLossConfig(AdversarialLossConfig):
    """Losses of a tokenizer of images or video frames."""

    reconstruction: Literal["l1", "l2"] = Field(
        "l1", description="Reconstruction loss over pixels: l1 (mean absolute error) or l2 (mean squared error)."
    )
    perceptual_weights: str | None = Field(
        None, description="safetensors file of VGG-16 for the perceptual loss; null disables the perceptual loss."
    )
    perceptual: float = Field(
        1.0, ge=0, description="Weight of the perceptual loss; used if `loss.perceptual_weights` is set."
    )
    discriminator_dim: int = Field(32, ge=8, multiple_of=8, description="Channels of the discriminator's first layer.")
    discriminator_layers: int = Field(
        4, ge=1, description="Strided convolutions of the discriminator; small images use fewer."
    )
    adversarial: float = Field(0.1, ge=0, description="Weight of the adversarial loss.")
    gradient_penalty: float = Field(
        10.0, ge=0, description="Weight of the gradient penalty on real images; 0 disables it."
    )
    gradient_penalty_every: int = Field(4, gt=0, description="Apply the gradient penalty every N steps.")

    def has_gradient_penalty(self, step: int) -> bool:
        return self.gradient_penalty > 0 and step % self.gradient_penalty_every == 0


class AdversarialOptimConfig(OptimConfig):
    discriminator: PhaseOptimConfig = Field(
        default_factory=PhaseOptimConfig,
        description="Optimizer of the discriminator; a null key takes the value of `optim`.",
    )
