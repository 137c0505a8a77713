"""`VQGanTask`: the VQ-GAN's two phases on one forward pass, its validation metrics and samples."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from quintet.common.artifact import Artifact
from quintet.common.batch import Batch
from quintet.common.rng import seed_from
from quintet.common.statistics import Statistics
from quintet.data.splits import Splits
from quintet.families.vqgan.config import VQGanConfig
from quintet.families.vqgan.data import image_splits, pixels
from quintet.families.vqgan.model import Reconstruction
from quintet.families.vqgan.pipeline import VQGanPipeline
from quintet.media.image import image_grid, write_image
from quintet.nn.adversarial import (
    PatchDiscriminator,
    adaptive_weight,
    hinge_generator_loss,
    lecam_penalty,
    patch_loss,
)
from quintet.nn.perceptual import PerceptualLoss
from quintet.nn.quantize import perplexity, usage
from quintet.nn.similarity import psnr, ssim
from quintet.pipelines.base import Pipeline
from quintet.training.engine import Engine
from quintet.training.phase import Loss, Modules, Output, Phase, frozen
from quintet.training.task import Task, Traits

REVIVE_EVERY = 50
"""Steps between two looks for dead codes: candidates are gathered only then."""


class VQGanTask(Task[VQGanConfig]):
    # The gradient penalty of the discriminator is a gradient of a gradient.
    traits = Traits(best=("psnr", "max"), uncompiled=frozenset({"discriminator"}))
    pipeline_class = VQGanPipeline

    def __init__(
        self,
        config: VQGanConfig,
        frozen: Mapping[str, Pipeline[Any]] | None = None,
        modules: Mapping[str, nn.Module] | None = None,
    ) -> None:
        super().__init__(config, frozen)
        self.loss = config.loss
        self.modules = dict(modules or VQGanPipeline.build_modules(config, self.frozen))
        self.vae = self.pipeline(self.modules).vae
        self.phases = [Phase("generator", ("vae",), self.generator_loss, config.optim.for_phase())]
        if self.loss.discriminator:
            self.discriminator = PatchDiscriminator(
                config.model.channels,
                self.loss.discriminator_dim,
                self.loss.discriminator_layers,
                min(config.model.size),
            )
            self.modules["discriminator"] = self.discriminator
            self.phases.append(
                Phase(
                    "discriminator",
                    ("discriminator",),
                    self.discriminator_loss,
                    config.optim.for_phase(config.optim.discriminator),
                    self.loss.is_adversarial,
                )
            )
        self.perceptual = PerceptualLoss(Path(self.loss.perceptual_weights)) if self.loss.perceptual_weights else None

    def splits(self) -> Splits:
        return image_splits(self.config)

    # --- training -------------------------------------------------------------------------------------------

    def init_from_data(self, modules: Modules, batches: Iterable[Batch], engine: Engine) -> None:
        """Start a vector codebook from the first batch's latents."""
        with torch.no_grad():
            reports = [Statistics(rows={"latents": self.vae.latents(pixels(batch))}) for batch in batches]
        latents = sum(reports, Statistics()).over_ranks().rows["latents"]
        self.vae.quantizer.initialise(latents, seed_from(self.config.train.seed, "codebook"))

    def forward(self, modules: Modules, batch: Batch, step: int) -> Output:
        images = pixels(batch)
        result: Reconstruction = modules["vae"](images, want_rows=step % REVIVE_EVERY == 0)
        return Output({"images": images, "result": result}, result.statistics.named("quantizer"))

    def generator_loss(self, modules: Modules, batch: Batch, output: Output, step: int) -> Loss:
        images, result = output["images"], output["result"]
        reconstruction, parts = self.reconstruction_loss(images, result.images)
        total = reconstruction + result.loss
        parts["quantizer"] = result.loss
        if self.loss.is_adversarial(step):
            adversarial, weight, surrogate = self._adversarial(result, reconstruction, step)
            parts.update(adversarial=adversarial, adversarial_weight=weight)
            # The whole loss's value with the surrogate's gradient, which has been through the discriminator already.
            whole = total + weight * adversarial
            total = surrogate + result.loss + (whole - surrogate - result.loss).detach()
        return Loss(total, parts)

    def reconstruction_loss(self, images: Tensor, made: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
        made = made.to(images.dtype)
        distance_of = F.l1_loss if self.loss.reconstruction == "l1" else F.mse_loss
        loss = distance_of(made, images)
        parts = {"reconstruction": loss}
        if self.perceptual is not None:
            distance = self.perceptual.to(images.device, images.dtype)(made, images)
            parts["perceptual"] = distance
            loss = loss + self.loss.perceptual * distance
        return loss, parts

    def _adversarial(self, result: Reconstruction, reconstruction: Tensor, step: int) -> tuple[Tensor, Tensor, Tensor]:
        """The adversarial loss, its weight, and a surrogate whose gradient is that of both pixel losses.

        Both losses reach the model through the picture alone. Their slopes there are taken once; the adaptive
        weight and the backward pass both start from them.
        """
        made = result.images
        with frozen(self.discriminator) as discriminator:
            adversarial = hinge_generator_loss(discriminator(made))
        (adversarial_slope,) = torch.autograd.grad(adversarial, made, retain_graph=False)
        (reconstruction_slope,) = torch.autograd.grad(reconstruction, made)
        weight = torch.as_tensor(self.loss.adversarial * self.loss.say(step), dtype=made.dtype, device=made.device)
        if self.loss.adaptive:
            weight = weight * adaptive_weight(
                self.vae.last_layer,
                result.features.detach(),
                F.pixel_unshuffle(reconstruction_slope / 2, 2),
                F.pixel_unshuffle(adversarial_slope / 2, 2),
            )
        slope = reconstruction_slope + weight * adversarial_slope
        return adversarial.detach(), weight, (made * slope).sum()

    def discriminator_loss(self, modules: Modules, batch: Batch, output: Output, step: int) -> Loss:
        images, penalised = output["images"], self.loss.is_penalised(step)
        loss, parts, logits = patch_loss(modules["discriminator"], images, output["result"].images, penalised)
        real_logits, fake_logits = logits
        if self.loss.lecam:
            means = (self.discriminator.real_mean, self.discriminator.fake_mean)
            parts["lecam"] = lecam_penalty(real_logits, fake_logits, *means)
            loss = loss + self.loss.lecam * parts["lecam"]
        if penalised:
            loss = loss + self.loss.penalty * parts["penalty"]
        sums = {
            "real": real_logits.detach().mean((1, 2, 3)).sum(),
            "fake": fake_logits.detach().mean((1, 2, 3)).sum(),
            "count": torch.tensor(float(len(images)), device=images.device, dtype=images.dtype),
        }
        return Loss(loss, parts, Statistics(sums).named("logits"))

    def after_step(self, statistics: Statistics, step: int) -> None:
        self.vae.quantizer.update(statistics.of("quantizer"), seed_from(self.config.train.seed, step, "revival"))
        logits = statistics.of("logits").sums
        if logits:
            self.discriminator.update(logits["real"] / logits["count"], logits["fake"] / logits["count"])

    # --- validation -----------------------------------------------------------------------------------------

    def measure(self, modules: Modules, batch: Batch) -> Statistics:
        images = pixels(batch)
        vae = self.pipeline(modules).vae
        codes = vae.encode(images)
        made = vae.decode(codes).to(images.dtype)
        loss = F.l1_loss(made, images, reduction="none").flatten(1).mean(1)
        return Statistics(
            {
                "count": torch.tensor(float(len(images)), device=images.device),
                "psnr": psnr(made, images).sum(),
                "ssim": ssim(made, images).sum(),
                "reconstruction_loss": loss.sum(),
                "codes": torch.stack(
                    [
                        torch.bincount(level, minlength=vae.num_codes)
                        for level in codes.flatten(0, 2).view(-1, vae.quantizer.levels).T
                    ]
                ),
            }
        )

    def summarise(self, statistics: Statistics) -> dict[str, float]:
        sums = statistics.sums
        figures = {name: float(sums[name] / sums["count"]) for name in ("psnr", "ssim", "reconstruction_loss")}
        # Of a residual quantizer the means over its levels.
        figures["codebook_usage"] = float(torch.stack([usage(level) for level in sums["codes"]]).mean())
        figures["codebook_perplexity"] = float(torch.stack([perplexity(level) for level in sums["codes"]]).mean())
        return figures

    def sample(self, modules: Modules, batch: Batch) -> list[Artifact]:
        """A grid of pairs: the picture, and what the tokenizer makes of it."""
        images = pixels(batch)
        vae = self.pipeline(modules).vae
        made = vae.decode(vae.encode(images)).to(images.dtype)
        pairs = [picture for pair in zip(images, made, strict=True) for picture in pair]
        grid = image_grid(pairs, columns=8)
        about = {"columns": "input, reconstruction", "items": list(batch.names)}
        return [Artifact("reconstructions.png", lambda path: write_image(grid, path), about, torch.from_numpy(grid))]
