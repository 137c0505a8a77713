"""`PhenakiTask`: a masked transformer over the codes of captioned clips, its validation metrics and samples."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from math import prod
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from quintet.common.artifact import Artifact
from quintet.common.batch import Batch, Dataset, Item
from quintet.common.rng import ItemRNG
from quintet.common.statistics import Statistics
from quintet.data.captioned import found_keys
from quintet.data.index.captions import read_lines
from quintet.data.splits import Splits
from quintet.families.phenaki.config import PhenakiConfig
from quintet.families.phenaki.data import clip_splits, collate_clips
from quintet.families.phenaki.pipeline import PhenakiPipeline
from quintet.media.image import image_grid, write_image
from quintet.media.video import EXTENSIONS
from quintet.media.video_writing import filmstrip
from quintet.nn.codebook import check_codebook_smoothing
from quintet.pipelines.base import Frozen, as_tokenizer
from quintet.training.judge import judge_of, judged_rows
from quintet.training.maskgit_task import MaskGitTask, Rows
from quintet.training.phase import Modules


class PhenakiTask(MaskGitTask[PhenakiConfig]):
    pipeline_class = PhenakiPipeline

    def __init__(self, config: PhenakiConfig, frozen: Frozen | None = None, modules: Modules | None = None) -> None:
        super().__init__(config, frozen)
        self.config = _with_texts(self.config)
        self.tokenizer = as_tokenizer(self.frozen["tokenizer"]) if "tokenizer" in self.frozen else None
        check_codebook_smoothing(
            config.loss.codebook_smoothing, self.tokenizer.model.quantizer.levels if self.tokenizer else None
        )
        self.make_modules(self.tokenizer, modules)

    def splits(self) -> Splits:
        return clip_splits(self.config, self.pipeline(self.modules).tokenizer)

    def collate(self, items: Sequence[Item]) -> dict[str, Any]:
        return collate_clips(items)

    def lengths(self, dataset: Dataset) -> Sequence[int] | None:
        """Latent frames; none where all clips have as many, and any order is as good."""
        lengths: list[int] = dataset.lengths() if hasattr(dataset, "lengths") else []
        return lengths if len({*lengths} - {0}) > 1 else None

    # --- training ---------------------------------------------------------------------------------------------

    def rows(self, batch: Batch, keep: Tensor | None = None, train: bool = False) -> Rows:
        if self.config.loss.frame_autoregressive:
            return self._up_to_latent_frame(batch, keep)
        valid: Tensor | None = batch.fields.get("there")
        codes = batch["codes"].flatten(1)
        conditioning = self._texts(batch, keep)
        if valid is not None:
            codes = codes.masked_fill(~valid, 0)
            conditioning["valid_mask"] = valid
        return Rows(
            codes, conditioning, valid, self._given(batch) if train and self.config.loss.continuation_prob else None
        )

    def _up_to_latent_frame(self, batch: Batch, keep: Tensor | None) -> Rows:
        """Of each clip one latent frame to predict, with all before it given; what comes later is not there."""
        codes = batch["codes"]
        chosen = self._latent_frames_to_predict(batch, _latent_frames(codes).sum(1))
        if codes.device.type == "cpu":  # reading from a GPU would hold up every step
            codes = codes[:, : int(chosen.max()) + 1]
        indices = torch.arange(codes.shape[1], device=codes.device)
        positions = prod(codes.shape[2:])
        valid = (indices <= chosen[:, None]).repeat_interleave(positions, 1)
        given = (indices < chosen[:, None]).repeat_interleave(positions, 1)
        conditioning = self._texts(batch, keep) | {"valid_mask": valid}
        return Rows(codes.flatten(1).masked_fill(~valid, 0), conditioning, valid, given)

    def _latent_frames_to_predict(self, batch: Batch, lengths: Tensor) -> Tensor:
        """The index of one latent frame of each clip."""
        chances, first = batch.rng.uniform("moment").to(lengths.device), self.config.loss.first_frame_prob
        later = 1 + ((chances - first) / max(1 - first, 1e-9) * (lengths - 1)).long()
        return torch.where(chances < first, 0, later).minimum(lengths - 1)

    def _texts(self, batch: Batch, keep: Tensor | None) -> dict[str, Tensor]:
        if "vectors" in batch and self.config.model.text != "none":
            return self.maskgit.text_vectors(batch["vectors"], batch["words"], keep)
        # An empty caption is none, here as in sampling.
        there = torch.tensor([bool(text) for text in batch["texts"]])
        return self.maskgit.texts(batch["texts"], there if keep is None else keep & there)

    def _given(self, batch: Batch) -> Tensor:
        """Of some clips the first latent frames, at most all but the last, by code: the model learns to continue."""
        codes: Tensor = batch["codes"]
        lengths = _latent_frames(codes).sum(1)
        primed = batch.rng.uniform("primed").to(lengths.device) < self.config.loss.continuation_prob
        chosen = (batch.rng.uniform("primed moments").to(lengths.device) * (lengths - 1)).long() + 1
        counts = torch.where(primed, chosen.minimum(lengths - 1), 0)
        given = torch.arange(codes.shape[1], device=lengths.device) < counts[:, None]
        return given.repeat_interleave(prod(codes.shape[2:]), 1)

    # --- validation -------------------------------------------------------------------------------------------

    def measure_generated(self, modules: Modules, batch: Batch, split: str) -> Statistics:
        """What the judge of a synthetic data set finds in videos generated from captions, and in reconstructions."""
        judge = judge_of(batch, split)
        if self.tokenizer is None or judge is None:
            return Statistics()
        made, kept = self._generated(modules, batch), self._decoded(batch["codes"])
        return Statistics(rows=judged_rows(judge, batch, split, made, kept))

    def sample(self, modules: Modules, batch: Batch) -> list[Artifact]:
        """What is generated from captions: those of `sample.texts`, or of clips, which are then shown beside it."""
        if self.tokenizer is None:
            return []
        pipeline: PhenakiPipeline = self.pipeline(modules)
        texts = self.config.sample.texts
        if texts is not None:
            rng = ItemRNG(self.config.train.seed, [0] * len(texts), range(len(texts)))
            videos = pipeline.generate(texts, rng, frames=self.config.sample.frames)
            return pipeline.video_files(list(videos), list(texts), {})
        captions, kept, made = list(batch["texts"]), self._decoded(batch["codes"]), self._generated(modules, batch)
        strips = [filmstrip(video.cpu()) for pair in zip(kept, made, strict=True) for video in pair]
        sheet = image_grid(strips, columns=1, padding=0)
        about = {"rows": "reconstruction, made from its caption", "items": list(batch.names), "texts": captions}
        strip = Artifact("filmstrips.png", partial(write_image, sheet), about, torch.from_numpy(sheet))
        return [strip, *pipeline.single_files(made, captions, {})]

    def _generated(self, modules: Modules, batch: Batch) -> list[Tensor]:
        """Videos from the captions of a batch, as long as its own clips, or as `sample.frames` says."""
        phenaki = self.pipeline(modules).phenaki()
        nothing = torch.zeros(len(batch), dtype=torch.bool)
        conditioning = self._texts(batch, None), self._texts(batch, nothing)
        if self.config.sample.frames is not None:
            return list(phenaki.film(conditioning, batch.rng, self.config.sample.frames))
        return self._decoded(phenaki.codes(conditioning, batch.rng, _latent_frames(batch["codes"])))

    def _decoded(self, codes: Tensor) -> list[Tensor]:
        """The videos of padded codes, each of its own length."""
        assert self.tokenizer is not None
        model = self.tokenizer.model
        lengths = [model.config.frames(count) for count in _latent_frames(codes).sum(1).tolist()]
        return [video[:, :length] for video, length in zip(model.decode(codes), lengths, strict=True)]


def _latent_frames(codes: Tensor) -> Tensor:
    """Which latent frames of padded codes exist, (batch, latent frames)."""
    return (codes >= 0).flatten(2).any(2)


def _with_texts(config: PhenakiConfig) -> PhenakiConfig:
    """The configuration with the captions of files that it names, and what follows from those of the data."""
    if isinstance(config.sample.texts, str):
        # The captions themselves: the run needs them when the file is gone.
        config = config.changed({"sample.texts": read_lines(Path(config.sample.texts), "sample.texts", "caption")})
    return config.changed(found_keys(config.model, config.data, EXTENSIONS))
