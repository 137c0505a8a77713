"""`PhenakiTask`: trains a masked transformer on codes of captioned clips; validation metrics and samples."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from math import prod
from pathlib import Path

import torch
from torch import Tensor

from quintet.common.artifact import Artifact
from quintet.common.batch import Batch, Collate, Dataset
from quintet.common.rng import ItemRNG
from quintet.common.statistics import Statistics
from quintet.data.captioned import inferred_text_keys
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
from quintet.training.maskgit_task import MaskGitInputs, MaskGitTask
from quintet.training.phase import Modules


class PhenakiTask(MaskGitTask[PhenakiConfig]):
    pipeline_class = PhenakiPipeline

    def __init__(self, config: PhenakiConfig, frozen: Frozen | None = None, modules: Modules | None = None) -> None:
        super().__init__(config, frozen)
        self.config = _with_texts(self.config)
        self.tokenizer = as_tokenizer(self.frozen["tokenizer"]) if "tokenizer" in self.frozen else None
        check_codebook_smoothing(config.loss.codebook_smoothing, has_tokenizer=self.tokenizer is not None)
        self.make_modules(self.tokenizer, modules)

    def splits(self) -> Splits:
        return clip_splits(self.config, self.pipeline(self.modules).tokenizer)

    @property
    def collate(self) -> Collate:
        return collate_clips

    def lengths(self, dataset: Dataset) -> Sequence[int] | None:
        """Number of latent frames of each clip; None if all clips have the same number."""
        lengths: list[int] = dataset.lengths() if hasattr(dataset, "lengths") else []
        return lengths if len({*lengths} - {0}) > 1 else None

    # --- training ---------------------------------------------------------------------------------------------

    def model_inputs(self, batch: Batch, keep: Tensor | None = None, train: bool = False) -> MaskGitInputs:
        if self.config.loss.frame_autoregressive:
            return self._up_to_latent_frame(batch, keep)
        valid: Tensor | None = batch.fields.get("valid_mask")
        codes = batch["codes"].flatten(1)
        conditioning = self._texts(batch, keep)
        if valid is not None:
            codes = codes.masked_fill(~valid, 0)
            conditioning["valid_mask"] = valid
        known = self._known_codes(batch) if train and self.config.loss.continuation_prob else None
        return MaskGitInputs(codes, conditioning, valid, known)

    def _up_to_latent_frame(self, batch: Batch, keep: Tensor | None) -> MaskGitInputs:
        """One latent frame of each clip to predict, with all earlier ones known and all later ones removed."""
        codes = batch["codes"]
        chosen = self._latent_frames_to_predict(batch, _latent_frames(codes).sum(1))
        if codes.device.type == "cpu":  # reading a value from a GPU would synchronize in every step
            codes = codes[:, : int(chosen.max()) + 1]
        indices = torch.arange(codes.shape[1], device=codes.device)
        positions = prod(codes.shape[2:])
        valid = (indices <= chosen[:, None]).repeat_interleave(positions, 1)
        known = (indices < chosen[:, None]).repeat_interleave(positions, 1)
        conditioning = self._texts(batch, keep) | {"valid_mask": valid}
        return MaskGitInputs(codes.flatten(1).masked_fill(~valid, 0), conditioning, valid, known)

    def _latent_frames_to_predict(self, batch: Batch, lengths: Tensor) -> Tensor:
        """Index of the latent frame to predict for each clip (batch,)."""
        chances, first = batch.rng.uniform("moment").to(lengths.device), self.config.loss.first_frame_prob
        later = 1 + ((chances - first) / max(1 - first, 1e-9) * (lengths - 1)).long()
        return torch.where(chances < first, 0, later).minimum(lengths - 1)

    def _texts(self, batch: Batch, keep: Tensor | None) -> dict[str, Tensor]:
        if "vectors" in batch and self.config.model.text != "none":
            return self.maskgit.text_vectors(batch["vectors"], batch["words"], keep)
        # An empty caption means unconditional, as in sampling.
        has_caption = torch.tensor([bool(text) for text in batch["texts"]])
        return self.maskgit.texts(batch["texts"], has_caption if keep is None else keep & has_caption)

    def _known_codes(self, batch: Batch) -> Tensor:
        """Mask (batch, codes) of known codes: the first latent frames of some clips, so that the model learns to
        continue."""
        codes: Tensor = batch["codes"]
        lengths = _latent_frames(codes).sum(1)
        primed = batch.rng.uniform("primed").to(lengths.device) < self.config.loss.continuation_prob
        chosen = (batch.rng.uniform("primed moments").to(lengths.device) * (lengths - 1)).long() + 1
        counts = torch.where(primed, chosen.minimum(lengths - 1), 0)
        known = torch.arange(codes.shape[1], device=lengths.device) < counts[:, None]
        return known.repeat_interleave(prod(codes.shape[2:]), 1)

    # --- validation -------------------------------------------------------------------------------------------

    def measure_generated(self, modules: Modules, batch: Batch, split: str) -> Statistics:
        """Statistics of the synthetic dataset's judge for videos generated from captions and for reconstructions."""
        judge = judge_of(batch, split)
        if self.tokenizer is None or judge is None:
            return Statistics()
        generated, reconstructed = self._generated(modules, batch), self._decode(batch["codes"])
        return Statistics(rows=judged_rows(judge, batch, split, generated, reconstructed))

    def sample(self, modules: Modules, batch: Batch) -> list[Artifact]:
        """Videos generated from `sample.texts`, or from the captions of clips, next to the reconstructed clips."""
        if self.tokenizer is None:
            return []
        pipeline: PhenakiPipeline = self.pipeline(modules)
        texts = self.config.sample.texts
        if texts is not None:
            repeated = [texts[number % len(texts)] for number in range(max(self.config.sample.num, len(texts)))]
            rng = ItemRNG(self.config.train.seed, [0] * len(repeated), range(len(repeated)))
            videos = pipeline.generate(repeated, rng, frames=self.config.sample.frames)
            return pipeline.video_files(list(videos), repeated, {})
        captions, reconstructed = list(batch["texts"]), self._decode(batch["codes"])
        generated = self._generated(modules, batch)
        strips = [filmstrip(video.cpu()) for pair in zip(reconstructed, generated, strict=True) for video in pair]
        sheet = image_grid(strips, columns=1, padding=0)
        metadata = {"rows": "reconstruction, made from its caption", "items": list(batch.names), "texts": captions}
        strip = Artifact("filmstrips.png", partial(write_image, sheet), metadata, torch.from_numpy(sheet))
        return [strip, *pipeline.single_files(generated, captions, {})]

    def _generated(self, modules: Modules, batch: Batch) -> list[Tensor]:
        """Videos generated from the captions of a batch, of `sample.frames` frames or as long as its clips."""
        phenaki = self.pipeline(modules).phenaki()
        drop_all = torch.zeros(len(batch), dtype=torch.bool)
        conditioning = self._texts(batch, None), self._texts(batch, drop_all)
        if self.config.sample.frames is not None:
            return list(phenaki.generate(conditioning, batch.rng, self.config.sample.frames))
        return self._decode(phenaki.generate_codes(conditioning, batch.rng, _latent_frames(batch["codes"])))

    def _decode(self, codes: Tensor) -> list[Tensor]:
        """Videos (3, frames, height, width) of padded codes, without padding."""
        assert self.tokenizer is not None
        model = self.tokenizer.model
        lengths = [model.config.frames(count) for count in _latent_frames(codes).sum(1).tolist()]
        return [video[:, :length] for video, length in zip(model.decode(codes), lengths, strict=True)]


def _latent_frames(codes: Tensor) -> Tensor:
    """Mask (batch, latent frames) of the latent frames that are not padding."""
    return (codes >= 0).flatten(2).any(2)


def _with_texts(config: PhenakiConfig) -> PhenakiConfig:
    """The configuration with prompts read from the `sample.texts` file, and with the keys found in the data."""
    if isinstance(config.sample.texts, str):
        # Stores the prompts themselves, so that the run does not depend on the file.
        config = config.changed({"sample.texts": read_lines(Path(config.sample.texts), "sample.texts", "caption")})
    return config.changed(inferred_text_keys(config.model, config.data, EXTENSIONS))
