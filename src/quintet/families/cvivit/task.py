"""`CViViTTask`: the two phases of C-ViViT on one forward pass, its validation metrics and samples.

Clips of different lengths are in one batch; frames that are padding count nowhere. The discriminator and the
perceptual loss look at one random frame of each clip.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor

from quintet.common.artifact import Artifact
from quintet.common.batch import Batch
from quintet.common.collectives import mean_over_ranks
from quintet.common.statistics import Statistics
from quintet.families.cvivit.config import CViViTConfig, CViViTLossConfig
from quintet.families.cvivit.model import CViViT, Reconstruction
from quintet.families.cvivit.pipeline import CViViTPipeline, pixels
from quintet.families.cvivit.transform import begin_as_transform, patch_statistics
from quintet.media.image import image_grid, write_image
from quintet.media.video_writing import filmstrip, write_video
from quintet.nn.similarity import psnr, ssim
from quintet.training.engine import Engine
from quintet.training.gan_task import PIXEL_METRICS, PatchGanTask, codebook_metrics, count_codes, mean_metrics
from quintet.training.phase import Modules, Output

PATCHES_OF_A_CODE = 32
"""A code begins as the mean of about so many, where the transform is good from the start."""


class CViViTTask(PatchGanTask[CViViTConfig]):
    pipeline_class = CViViTPipeline
    loss: CViViTLossConfig
    model: CViViT

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
        if self.config.model.shortcut:
            with torch.no_grad():
                patches = [patch_statistics(self.model, pixels(batch), batch["mask"]) for batch in first]
                begin_as_transform(self.model, sum(patches, Statistics()).over_ranks())
        super().init_from_data(modules, first, engine)

    def latents(self, batch: Batch) -> Tensor:
        latents = self.model.latents(pixels(batch))
        return latents[self.model.moments_there(batch["mask"])].flatten(0, 1)

    def forward(self, modules: Modules, batch: Batch, step: int) -> Output:
        videos = pixels(batch)
        result: Reconstruction = modules["cvivit"](
            videos, batch["mask"], return_candidates=step % self.revive_every == 0
        )
        chosen = chosen_frames(batch)
        rows = torch.arange(len(videos), device=videos.device)
        frames = {"real": videos[rows, :, chosen], "fake": result.videos[rows, :, chosen]}
        return Output({**frames, "videos": videos, "result": result}, result.statistics.with_prefix("quantizer"))

    def reconstruction_loss(self, batch: Batch, output: Output) -> tuple[Tensor, dict[str, Tensor]]:
        videos, made = output["videos"], output["result"].videos.to(output["videos"].dtype)
        distance_of = F.l1_loss if self.loss.reconstruction == "l1" else F.mse_loss
        by_frame = distance_of(made, videos, reduction="none").mean((1, 3, 4))
        loss = mean_over_ranks(by_frame, batch["mask"])
        parts = {"reconstruction": loss}
        if self.loss.frame_difference:
            both = batch["mask"][:, 1:] & batch["mask"][:, :-1]
            changes = distance_of(made.diff(dim=2), videos.diff(dim=2), reduction="none").mean((1, 3, 4))
            parts["motion"] = mean_over_ranks(changes, both)
            loss = loss + self.loss.frame_difference * parts["motion"]
        return self.add_perceptual(loss, parts, output["fake"], output["real"]), parts

    # --- validation -----------------------------------------------------------------------------------------

    def measure(self, modules: Modules, batch: Batch) -> Statistics:
        videos, mask = pixels(batch), batch["mask"]
        model = self.pipeline(modules).cvivit
        codes = model.encode(videos, mask)
        made = model.decode(codes).to(videos.dtype)
        pairs = [frames_of(clip)[there] for clip, there in zip(made, mask, strict=True)]
        truths = [frames_of(clip)[there] for clip, there in zip(videos, mask, strict=True)]
        return Statistics(
            {
                "count": torch.tensor(float(len(videos)), device=videos.device),
                # Of each clip the mean over its frames, so that long ones do not count more.
                "psnr": _total(psnr, pairs, truths),
                "ssim": _total(ssim, pairs, truths),
                "reconstruction_loss": _total(_distance, pairs, truths),
                "codes": count_codes(codes, model.num_codes, model.quantizer.levels),
                # Of clips that have a second frame.
                "moving": (mask.sum(1) > 1).sum(),
                "temporal_error": _total(temporal_error, pairs, truths),
            }
        )

    def summarise(self, statistics: Statistics) -> dict[str, float]:
        sums = statistics.sums
        metrics = mean_metrics(sums, PIXEL_METRICS)
        if sums["moving"]:
            metrics["temporal_error"] = float(sums["temporal_error"] / sums["moving"])
        return {**metrics, **codebook_metrics(sums["codes"])}

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
    return (batch.rng.uniform("frame").to(lengths.device) * lengths).long()


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
