"""`CViViTTask`: trains C-ViViT and its discriminator on one forward pass; validation metrics and samples.

A batch holds clips of different lengths; padding frames are excluded from all losses and metrics. The discriminator
and the perceptual loss see one random frame of each clip.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from quintet.common.artifact import Artifact
from quintet.common.batch import Batch, Item, Prepare
from quintet.common.collectives import mean_over_ranks
from quintet.common.statistics import Statistics
from quintet.families.cvivit.config import CViViTConfig, CViViTLossConfig
from quintet.families.cvivit.model import CViViT, Reconstruction
from quintet.families.cvivit.pipeline import CViViTPipeline, pixels
from quintet.families.cvivit.transform import clip_statistics, init_as_transform
from quintet.media.image import image_grid, write_image
from quintet.media.video_writing import filmstrip, write_video
from quintet.nn.principal import PATCHES_PER_CODE
from quintet.nn.similarity import psnr, ssim
from quintet.training.engine import Engine
from quintet.training.gan_task import PIXEL_METRICS, PatchGanTask, codebook_metrics, count_codes, mean_metrics
from quintet.training.phase import Modules, Output

PREDICTION_ROUNDS = 3
"""How often a codebook for `model.temporal_prediction` is initialised again, from the residuals that it leaves."""


class CViViTTask(PatchGanTask[CViViTConfig]):
    pipeline_class = CViViTPipeline
    loss: CViViTLossConfig
    model: CViViT

    def example_item(self) -> Item:
        return {"videos": torch.zeros(3, self.config.data.frames, *self.config.model.size, dtype=torch.uint8)}

    # --- training -------------------------------------------------------------------------------------------

    @property
    def num_init_batches(self) -> int:
        """1, or with `model.shortcut` the number of batches that gives `PATCHES_PER_CODE` patches per code."""
        model, data = self.config.model, self.config.data
        if not model.shortcut or model.quantizer != "vq":
            return 1
        codes = self.config.train.batch_size * model.latent_frames(data.frames) * model.grid[0] * model.grid[1]
        return -(-PATCHES_PER_CODE * model.codebook_size // codes)

    def init_from_data(self, modules: Modules, batches: Iterable[Batch], engine: Engine) -> None:
        """Initialize the linear transform, if there is a shortcut, and then a vector codebook from its outputs."""
        first_batches = list(batches)
        if self.config.model.shortcut:
            with torch.no_grad():
                statistics = [clip_statistics(self.model, pixels(batch), batch["mask"]) for batch in first_batches]
                init_as_transform(self.model, sum(statistics, Statistics()).over_ranks())
        super().init_from_data(modules, first_batches, engine)
        if self.config.model.temporal_prediction:
            # The residuals depend on the codebook, and it on them.
            for _ in range(PREDICTION_ROUNDS):
                super().init_from_data(modules, first_batches, engine)

    def num_tokens(self, batch: Batch) -> int:
        latent_frames = int(self.model.latent_frame_mask(batch["mask"]).sum())
        return latent_frames * math.prod(self.config.model.grid) * self.model.quantizer.levels

    @property
    def prepare(self) -> Prepare:
        return prepare_clips

    def latents(self, batch: Batch) -> Tensor:
        latents = self.model.residuals(pixels(batch))
        return latents[self.model.latent_frame_mask(batch["mask"])].flatten(0, 1)

    def forward(self, modules: Modules, batch: Batch, step: int) -> Output:
        videos = pixels(batch)
        result: Reconstruction = modules["cvivit"](
            videos, batch["mask"], return_candidates=step % self.revive_every == 0
        )
        chosen = batch.prepared(self.prepare)["random_frames"]
        rows = torch.arange(len(videos), device=videos.device)
        frames = {"real": videos[rows, :, chosen], "fake": result.videos[rows, :, chosen]}
        return Output({**frames, "videos": videos, "result": result}, result.statistics.with_prefix("quantizer"))

    def reconstruction_loss(self, batch: Batch, output: Output) -> tuple[Tensor, dict[str, Tensor]]:
        videos = output["videos"]
        reconstructed = output["result"].videos.to(videos.dtype)
        distance = F.l1_loss if self.loss.reconstruction == "l1" else F.mse_loss
        per_frame = distance(reconstructed, videos, reduction="none").mean((1, 3, 4))
        loss = mean_over_ranks(per_frame, batch["mask"])
        parts = {"reconstruction": loss}
        if self.loss.frame_difference:
            pair_mask = batch["mask"][:, 1:] & batch["mask"][:, :-1]
            changes = distance(reconstructed.diff(dim=2), videos.diff(dim=2), reduction="none").mean((1, 3, 4))
            parts["motion"] = mean_over_ranks(changes, pair_mask)
            loss = loss + self.loss.frame_difference * parts["motion"]
        return self.add_perceptual(loss, parts, output["fake"], output["real"]), parts

    # --- validation -----------------------------------------------------------------------------------------

    def measure(self, modules: Modules, batch: Batch) -> Statistics:
        videos, mask = pixels(batch), batch["mask"]
        model = self.pipeline(modules).cvivit
        codes = model.encode(videos, mask)
        reconstructed = model.decode(codes).to(videos.dtype)
        outputs = [frames_of(clip)[valid] for clip, valid in zip(reconstructed, mask, strict=True)]
        targets = [frames_of(clip)[valid] for clip, valid in zip(videos, mask, strict=True)]
        return Statistics(
            {
                "count": torch.tensor(float(len(videos)), device=videos.device),
                # Mean over the frames of each clip, so that long clips do not weigh more.
                "psnr": _total(psnr, outputs, targets),
                "ssim": _total(ssim, outputs, targets),
                "reconstruction_loss": _total(_distance, outputs, targets),
                "codes": count_codes(codes, model.num_codes, model.quantizer.levels),
                # Clips with at least two frames.
                "moving": (mask.sum(1) > 1).sum(),
                "temporal_error": _total(temporal_error, outputs, targets),
            }
        )

    def summarise(self, statistics: Statistics) -> dict[str, float]:
        sums = statistics.sums
        metrics = mean_metrics(sums, PIXEL_METRICS)
        if sums["moving"]:
            metrics["temporal_error"] = float(sums["temporal_error"] / sums["moving"])
        return {**metrics, **codebook_metrics(sums["codes"])}

    def sample(self, modules: Modules, batch: Batch) -> list[Artifact]:
        """An image with two rows per clip (input frames, reconstructed frames), and a video of both side by side."""
        videos, model = pixels(batch), self.pipeline(modules).cvivit
        reconstructed = model.decode(model.encode(videos, batch["mask"])).to(videos.dtype)
        lengths = batch["mask"].sum(1).tolist()
        strips = [
            filmstrip(clip[:, :length].cpu())
            for pair, length in zip(zip(videos, reconstructed, strict=True), lengths, strict=True)
            for clip in pair
        ]
        sheet = image_grid(strips, columns=1, padding=0)
        pairs = torch.cat([videos, reconstructed], dim=4).cpu()
        metadata = {"rows": "input, reconstruction", "items": list(batch.names)}
        return [
            Artifact("reconstructions.png", partial(write_image, sheet), metadata, torch.from_numpy(sheet)),
            *(
                Artifact(
                    f"reconstruction-{number:02d}.mp4",
                    partial(write_video, pair[:, :length]),
                    {"item": name, "what": "input, reconstruction"},
                )
                for number, (pair, length, name) in enumerate(zip(pairs, lengths, batch.names, strict=True))
            ),
        ]


def prepare_clips(batch: Batch) -> dict[str, Any]:
    """`random_frames` (batch,): the index of the frame of each clip that the discriminator sees, padding excluded."""
    lengths: Tensor = batch["mask"].sum(1)
    return {"random_frames": (batch.rng.uniform("frame") * lengths).long()}


def frames_of(clip: Tensor) -> Tensor:
    """A clip (3, frames, height, width) as images (frames, 3, height, width)."""
    return clip.transpose(0, 1)


def temporal_error(output: Tensor, target: Tensor) -> Tensor:
    """Mean absolute error of the differences between consecutive frames (frames - 1,); zero for an image."""
    error = (output.diff(dim=0) - target.diff(dim=0)).abs().flatten(1).mean(1)
    return error if len(error) else error.new_zeros(1)


def _distance(output: Tensor, target: Tensor) -> Tensor:
    return (output - target).abs().flatten(1).mean(1)


def _total(measure: Callable[[Tensor, Tensor], Tensor], outputs: Sequence[Tensor], targets: Sequence[Tensor]) -> Tensor:
    """Sum over clips of the mean of a measure over the frames of the clip."""
    return torch.stack([measure(output, target).mean() for output, target in zip(outputs, targets, strict=True)]).sum()
