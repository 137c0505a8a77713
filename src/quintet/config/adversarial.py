"""Owns the keys that tokenizers trained against a discriminator share. Free of torch, so that help is quick."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from quintet.config import OptimConfig, PhaseOptimConfig, Section


class AdversarialLossConfig(Section):
    """When a discriminator has its say."""

    discriminator: bool = Field(True, description="Train against a discriminator.")
    discriminator_start: int = Field(5000, ge=0, description="Step at which the discriminator begins.")
    discriminator_ramp: int = Field(1000, ge=0, description="Steps over which its say grows from nothing to full.")

    def is_adversarial(self, step: int) -> bool:
        return self.discriminator and step >= self.discriminator_start

    def adversarial_ramp(self, step: int) -> float:
        """The discriminator's: it begins with nothing, or its first mistakes would ruin the tokenizer."""
        return min(1.0, (step + 1 - self.discriminator_start) / max(1, self.discriminator_ramp))


class ImageLossConfig(AdversarialLossConfig):
    """What a tokenizer of pictures or frames is trained for."""

    reconstruction: Literal["l1", "l2"] = Field("l1", description="Distance of pixels.")
    perceptual_weights: str | None = Field(
        None, description="safetensors of VGG-16 for a perceptual loss; none: no such loss."
    )
    perceptual: float = Field(1.0, ge=0, description="Weight of the perceptual loss, where weights are given.")
    discriminator_dim: int = Field(32, ge=8, multiple_of=8, description="Width of the discriminator's first layer.")
    discriminator_layers: int = Field(4, ge=1, description="Strided layers; fewer where the picture is small.")
    adversarial: float = Field(0.1, ge=0, description="Weight of the adversarial loss.")
    gradient_penalty: float = Field(10.0, ge=0, description="Weight of the gradient penalty on real pictures; 0: none.")
    gradient_penalty_every: int = Field(4, gt=0, description="Steps between two gradient penalties.")

    def has_gradient_penalty(self, step: int) -> bool:
        return self.gradient_penalty > 0 and step % self.gradient_penalty_every == 0


class AdversarialOptimConfig(OptimConfig):
    discriminator: PhaseOptimConfig = Field(
        default_factory=PhaseOptimConfig, description="The discriminator's own optimizer."
    )
