"""`CViViTTask`: the two phases of C-ViViT on one forward pass, its validation metrics and samples.

Clips of different lengths are in one batch; frames that are padding count nowhere. The discriminator and the
perceptual loss look at one random frame of each clip.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from quintet.common.artifact import Artifact
from quintet.common.batch import Batch, Item
from quintet.common.collectives import mean_over_ranks
from quintet.common.rng import seed_from
from quintet.common.statistics import Statistics
from quintet.data.splits import Splits
from quintet.families.cvivit.config import CHANNELS, CViViTConfig
from quintet.families.cvivit.data import collate_clips, pixels, video_splits
from quintet.families.cvivit.model import Reconstruction
from quintet.families.cvivit.pipeline import CViViTPipeline
from quintet.families.cvivit.transform import begin_as_transform, patch_statistics
from quintet.media.image import image_grid, write_image
from quintet.media.video_writing import filmstrip, write_video
from quintet.nn.adversarial import PatchDiscriminator, hinge_generator_loss, patch_loss
from quintet.nn.perceptual import PerceptualLoss
from quintet.nn.quantize import perplexity, usage
from quintet.nn.similarity import psnr, ssim
from quintet.pipelines.base import Pipeline
from quintet.training.engine import Engine
from quintet.training.phase import Loss, Modules, Output, Phase, frozen
from quintet.training.task import Task, Traits

REVIVE_EVERY = 50
"""Steps between two looks for dead codes: candidates are gathered only then."""
PATCHES_OF_A_CODE = 32
"""A code begins as the mean of about so many, where the transform is good from the start."""


class CViViTTask(Task[CViViTConfig]):
    # The gradient penalty of the discriminator is a gradient of a gradient.
    traits = Traits(best=("psnr", "max"), uncompiled=frozenset({"discriminator"}))
    pipeline_class = CViViTPipeline

    def __init__(
        self,
        config: CViViTConfig,
        frozen: Mapping[str, Pipeline[Any]] | None = None,
        modules: Mapping[str, nn.Module] | None = None,
    ) -> None:
        super().__init__(config, frozen)
        self.loss = config.loss
        self.modules = dict(modules or CViViTPipeline.build_modules(config, self.frozen))
        self.cvivit = self.pipeline(self.modules).cvivit
        self.phases = [Phase("generator", ("cvivit",), self.generator_loss, config.optim.for_phase())]
        if self.loss.discriminator:
            self.discriminator = PatchDiscriminator(
                CHANNELS, self.loss.discriminator_dim, self.loss.discriminator_layers, min(config.model.size)
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
        return video_splits(self.config)

    def collate(self, items: Sequence[Item]) -> dict[str, Any]:
        return collate_clips(items, self.config.model)

    # --- training -------------------------------------------------------------------------------------------

    @property
    def num_init_batches(self) -> int:
        """With a shortcut as many as it takes for each code to begin as the mean of several patches."""
        model, data = self.config.model, self.config.data
        if not model.shortcut or model.quantizer != "vq":
            return 1
        codes = self.config.train.batch_size * model.moments(data.frames) * model.grid[0] * model.grid[1]
        return -(-PATCHES_OF_A_CODE * model.codebook_size // codes)

    def init_from_data(self, modules: Modules, batches: Iterable[Batch], engine: Engine) -> None:
        """Start the transform, if there is a shortcut, and a vector codebook from what comes out of it."""
        first = list(batches)
        with torch.no_grad():
            if self.config.model.shortcut:
                patches = [patch_statistics(self.cvivit, pixels(batch), batch["mask"]) for batch in first]
                begin_as_transform(self.cvivit, sum(patches, Statistics()).over_ranks())
            reports = [Statistics(rows={"latents": self._latents(batch)}) for batch in first]
        latents = sum(reports, Statistics()).over_ranks().rows["latents"]
        self.cvivit.quantizer.initialise(latents, seed_from(self.config.train.seed, "codebook"))

    def _latents(self, batch: Batch) -> Tensor:
        """Those of latent frames that exist, one row each."""
        latents: Tensor = self.cvivit.latents(pixels(batch))
        return latents[self.cvivit.moments_there(batch["mask"])].flatten(0, 1)

    def forward(self, modules: Modules, batch: Batch, step: int) -> Output:
        videos = pixels(batch)
        result: Reconstruction = modules["cvivit"](videos, batch["mask"], want_rows=step % REVIVE_EVERY == 0)
        chosen = chosen_frames(batch)
        rows = torch.arange(len(videos), device=videos.device)
        values = {"videos": videos, "result": result, "frames": videos[rows, :, chosen]}
        return Output({**values, "made": result.videos[rows, :, chosen]}, result.statistics.named("quantizer"))

    def generator_loss(self, modules: Modules, batch: Batch, output: Output, step: int) -> Loss:
        result: Reconstruction = output["result"]
        loss, parts = self.reconstruction_loss(batch, output)
        loss = loss + result.loss
        parts["quantizer"] = result.loss
        if self.loss.is_adversarial(step):
            with frozen(self.discriminator) as discriminator:
                parts["adversarial"] = hinge_generator_loss(discriminator(output["made"]))
            loss = loss + self.loss.adversarial * self.loss.say(step) * parts["adversarial"]
        return Loss(loss, parts)

    def reconstruction_loss(self, batch: Batch, output: Output) -> tuple[Tensor, dict[str, Tensor]]:
        videos, made = output["videos"], output["result"].videos.to(output["videos"].dtype)
        distance_of = F.l1_loss if self.loss.reconstruction == "l1" else F.mse_loss
        by_frame = distance_of(made, videos, reduction="none").mean((1, 3, 4))
        loss = mean_over_ranks(by_frame, batch["mask"])
        parts = {"reconstruction": loss}
        if self.loss.motion:
            both = batch["mask"][:, 1:] & batch["mask"][:, :-1]
            changes = distance_of(made.diff(dim=2), videos.diff(dim=2), reduction="none").mean((1, 3, 4))
            parts["motion"] = mean_over_ranks(changes, both)
            loss = loss + self.loss.motion * parts["motion"]
        if self.perceptual is not None:
            frames = output["frames"]
            perceptual = self.perceptual.to(frames.device, frames.dtype)
            parts["perceptual"] = perceptual(output["made"].to(frames.dtype), frames)
            loss = loss + self.loss.perceptual * parts["perceptual"]
        return loss, parts

    def discriminator_loss(self, modules: Modules, batch: Batch, output: Output, step: int) -> Loss:
        penalised = self.loss.is_penalised(step)
        loss, parts, _ = patch_loss(modules["discriminator"], output["frames"], output["made"], penalised)
        return Loss(loss + self.loss.penalty * parts["penalty"] if penalised else loss, parts)

    def after_step(self, statistics: Statistics, step: int) -> None:
        self.cvivit.quantizer.update(statistics.of("quantizer"), seed_from(self.config.train.seed, step, "revival"))

    # --- validation -----------------------------------------------------------------------------------------

    def measure(self, modules: Modules, batch: Batch) -> Statistics:
        videos, mask = pixels(batch), batch["mask"]
        model = self.pipeline(modules).cvivit
        codes = model.encode(videos, mask)
        made = model.decode(codes).to(videos.dtype)
        pairs = [frames_of(clip)[there] for clip, there in zip(made, mask, strict=True)]
        truths = [frames_of(clip)[there] for clip, there in zip(videos, mask, strict=True)]
        used = codes[model.moments_there(mask)].reshape(-1, model.quantizer.levels)
        return Statistics(
            {
                "count": torch.tensor(float(len(videos)), device=videos.device),
                # Of each clip the mean over its frames, so that long ones do not count more.
                "psnr": _total(psnr, pairs, truths),
                "ssim": _total(ssim, pairs, truths),
                "reconstruction_loss": _total(_distance, pairs, truths),
                "codes": torch.stack([torch.bincount(level, minlength=model.num_codes) for level in used.T]),
                # Of clips that have a second frame.
                "moving": (mask.sum(1) > 1).sum(),
                "temporal_error": _total(temporal_error, pairs, truths),
            }
        )

    def summarise(self, statistics: Statistics) -> dict[str, float]:
        sums = statistics.sums
        figures = {name: float(sums[name] / sums["count"]) for name in ("psnr", "ssim", "reconstruction_loss")}
        if sums["moving"]:
            figures["temporal_error"] = float(sums["temporal_error"] / sums["moving"])
        # Of a residual quantizer the means over its levels.
        figures["codebook_usage"] = float(torch.stack([usage(level) for level in sums["codes"]]).mean())
        figures["codebook_perplexity"] = float(torch.stack([perplexity(level) for level in sums["codes"]]).mean())
        return figures

    def sample(self, modules: Modules, batch: Batch) -> list[Artifact]:
        """Two rows for each clip: its frames, and what the tokenizer makes of them; and both side by side, moving."""
        videos, model = pixels(batch), self.pipeline(modules).cvivit
        made = model.decode(model.encode(videos, batch["mask"])).to(videos.dtype)
        lengths = batch["mask"].sum(1).tolist()
        strips = [
            filmstrip(clip[:, :length].cpu())
            for pair, length in zip(zip(videos, made, strict=True), lengths, strict=True)
            for clip in pair
        ]
        sheet = image_grid(strips, columns=1, padding=0)
        pairs = torch.cat([videos, made], dim=4).cpu()
        about = {"rows": "input, reconstruction", "items": list(batch.names)}
        return [
            Artifact("reconstructions.png", partial(write_image, sheet), about, torch.from_numpy(sheet)),
            *(
                Artifact(
                    f"reconstruction-{number:02d}.mp4",
                    partial(write_video, pair[:, :length]),
                    {"item": name, "what": "input, reconstruction"},
                )
                for number, (pair, length, name) in enumerate(zip(pairs, lengths, batch.names, strict=True))
            ),
        ]


def chosen_frames(batch: Batch) -> Tensor:
    """One frame of each clip, among those that are there."""
    lengths: Tensor = batch["mask"].sum(1)
    return (batch.draw.uniform("frame").to(lengths.device) * lengths).long()


def frames_of(clip: Tensor) -> Tensor:
    """(3, frames, height, width) as pictures, (frames, 3, height, width)."""
    return clip.transpose(0, 1)


def temporal_error(made: Tensor, truth: Tensor) -> Tensor:
    """How far the change from each frame to the next is off; nothing of a picture."""
    error = (made.diff(dim=0) - truth.diff(dim=0)).abs().flatten(1).mean(1)
    return error if len(error) else error.new_zeros(1)


def _distance(made: Tensor, truth: Tensor) -> Tensor:
    return (made - truth).abs().flatten(1).mean(1)


def _total(measure: Callable[[Tensor, Tensor], Tensor], made: Sequence[Tensor], truths: Sequence[Tensor]) -> Tensor:
    """The sum over clips of what is measured of their frames, on average."""
    return torch.stack([measure(one, other).mean() for one, other in zip(made, truths, strict=True)]).sum()
