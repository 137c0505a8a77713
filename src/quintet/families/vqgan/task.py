"""`VQGanTask`: trains the VQ-GAN and its discriminator on one forward pass; validation metrics and samples."""

from __future__ import annotations

import math
from collections.abc import Iterable

import torch
import torch.nn.functional as F
from torch import Tensor

from quintet.common.artifact import Artifact
from quintet.common.batch import Batch, Item
from quintet.common.statistics import Statistics
from quintet.families.vqgan.config import VQGanConfig, VQGanLossConfig
from quintet.families.vqgan.model import Reconstruction, VQGanVAE, init_as_transform
from quintet.families.vqgan.pipeline import VQGanPipeline, pixels
from quintet.media.image import image_grid, write_image
from quintet.nn.adversarial import adaptive_weight, lecam_penalty
from quintet.nn.principal import PATCHES_PER_CODE, patch_statistics
from quintet.nn.similarity import psnr, ssim
from quintet.training.engine import Engine
from quintet.training.gan_task import PIXEL_METRICS, PatchGanTask, codebook_metrics, count_codes, mean_metrics
from quintet.training.phase import Modules, Output


class VQGanTask(PatchGanTask[VQGanConfig]):
    pipeline_class = VQGanPipeline
    loss: VQGanLossConfig
    model: VQGanVAE

    @property
    def trainable(self) -> bool:
        return isinstance(self.model, VQGanVAE)

    def example_item(self) -> Item:
        model = self.config.model
        return {"images": torch.zeros(model.channels, *model.size, dtype=torch.uint8)}

    # --- training -------------------------------------------------------------------------------------------

    @property
    def num_init_batches(self) -> int:
        """1, or with `model.shortcut` the number of batches that gives `PATCHES_PER_CODE` patches per code."""
        model = self.config.model
        if not model.shortcut or model.quantizer != "vq":
            return 1
        return -(-PATCHES_PER_CODE * model.codebook_size // (self.config.train.batch_size * math.prod(model.grid)))

    def init_from_data(self, modules: Modules, batches: Iterable[Batch], engine: Engine) -> None:
        """Initialise the linear transform, if there is a shortcut, and then a vector codebook from its outputs."""
        first_batches = list(batches)
        if self.config.model.shortcut:
            with torch.no_grad():
                patches = [self.model.patches(pixels(batch)).flatten(0, 2) for batch in first_batches]
                init_as_transform(self.model, sum(map(patch_statistics, patches), Statistics()).over_ranks())
        super().init_from_data(modules, first_batches, engine)

    def num_tokens(self, batch: Batch) -> int:
        return len(batch) * math.prod(self.config.model.grid) * self.model.quantizer.levels

    def latents(self, batch: Batch) -> Tensor:
        return self.model.latents(pixels(batch))

    def forward(self, modules: Modules, batch: Batch, step: int) -> Output:
        images = pixels(batch)
        result: Reconstruction = modules["vae"](images, return_candidates=step % self.revive_every == 0)
        values = {"real": images, "fake": result.images, "result": result}
        return Output(values, result.statistics.with_prefix("quantizer"))

    def reconstruction_loss(self, batch: Batch, output: Output) -> tuple[Tensor, dict[str, Tensor]]:
        images, reconstructed = output["real"], output["fake"].to(output["real"].dtype)
        distance = F.l1_loss if self.loss.reconstruction == "l1" else F.mse_loss
        loss = distance(reconstructed, images)
        parts = {"reconstruction": loss}
        return self.add_perceptual(loss, parts, reconstructed, images), parts

    def adversarial_loss(self, reconstruction: Tensor, output: Output, step: int) -> tuple[Tensor, dict[str, Tensor]]:
        """The total loss. The adaptive weight scales the adversarial gradient to that of the reconstruction loss at the
        decoder's last layer.

        Both losses depend on the model only through the reconstructed image. Their gradients with respect to the image
        are computed once and serve both the weight and the backward pass.
        """
        result: Reconstruction = output["result"]
        images = result.images
        adversarial = self.hinge_loss(images)
        (adversarial_grad,) = torch.autograd.grad(adversarial, images, retain_graph=False)
        (reconstruction_grad,) = torch.autograd.grad(reconstruction, images)
        adversarial = adversarial.detach()
        # Filled on the device: copying a number to a GPU would wait for it.
        weight = images.new_full((), self.loss.adversarial * self.loss.adversarial_ramp(step))
        if self.loss.adaptive_weight:
            weight = weight * adaptive_weight(
                self.model.last_layer,
                result.features.detach(),
                F.pixel_unshuffle(reconstruction_grad / 2, 2),
                F.pixel_unshuffle(adversarial_grad / 2, 2),
            )
        surrogate = (images * (reconstruction_grad + weight * adversarial_grad)).sum()
        # The value of the full loss with the gradient of the surrogate, which went through the discriminator already.
        full = reconstruction + result.loss + weight * adversarial
        total = surrogate + result.loss + (full - surrogate - result.loss).detach()
        return total, {"adversarial": adversarial, "adversarial_weight": weight}

    def regularise(
        self, loss: Tensor, parts: dict[str, Tensor], real_logits: Tensor, fake_logits: Tensor
    ) -> tuple[Tensor, Statistics]:
        """Add the LeCam penalty; return the sums of the logits, which update its running means."""
        if self.loss.lecam:
            means = (self.discriminator.real_mean, self.discriminator.fake_mean)
            parts["lecam"] = lecam_penalty(real_logits, fake_logits, *means)
            loss = loss + self.loss.lecam * parts["lecam"]
        sums = {
            "real": real_logits.detach().mean((1, 2, 3)).sum(),
            "fake": fake_logits.detach().mean((1, 2, 3)).sum(),
            "count": loss.detach().new_full((), float(len(real_logits))),
        }
        return loss, Statistics(sums).with_prefix("logits")

    def after_step(self, statistics: Statistics, step: int) -> None:
        super().after_step(statistics, step)
        logits = statistics.strip_prefix("logits").sums
        if logits:
            self.discriminator.update(logits["real"] / logits["count"], logits["fake"] / logits["count"])

    # --- validation -----------------------------------------------------------------------------------------

    def measure(self, modules: Modules, batch: Batch) -> Statistics:
        images = pixels(batch)
        vae = self.pipeline(modules).vae
        codes = vae.encode(images)
        reconstructed = vae.decode(codes).to(images.dtype)
        loss = F.l1_loss(reconstructed, images, reduction="none").flatten(1).mean(1)
        return Statistics(
            {
                "count": torch.tensor(float(len(images)), device=images.device),
                "psnr": psnr(reconstructed, images).sum(),
                "ssim": ssim(reconstructed, images).sum(),
                "reconstruction_loss": loss.sum(),
                "codes": count_codes(codes, vae.num_codes, vae.quantizer.levels),
            }
        )

    def summarise(self, statistics: Statistics) -> dict[str, float]:
        sums = statistics.sums
        return {**mean_metrics(sums, PIXEL_METRICS), **codebook_metrics(sums["codes"])}

    def sample(self, modules: Modules, batch: Batch) -> list[Artifact]:
        """A grid of pairs: an image and its reconstruction."""
        images = pixels(batch)
        vae = self.pipeline(modules).vae
        reconstructed = vae.decode(vae.encode(images)).to(images.dtype)
        pairs = [image for pair in zip(images, reconstructed, strict=True) for image in pair]
        grid = image_grid(pairs, columns=8)
        metadata = {"columns": "input, reconstruction", "items": list(batch.names)}
        return [Artifact("reconstructions.png", lambda path: write_image(grid, path), metadata, torch.from_numpy(grid))]
