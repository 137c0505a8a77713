"""`PhenakiTask`: trains a masked transformer on codes of captioned clips; validation metrics and samples."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

import torch
from torch import Tensor

from quintet.common.artifact import Artifact
from quintet.common.batch import Batch, Collate, Dataset, Item
from quintet.common.rng import ItemRNG
from quintet.common.statistics import Statistics
from quintet.data.captioned import inferred_text_keys
from quintet.data.index.captions import read_lines
from quintet.data.splits import Splits
from quintet.families.phenaki.config import PhenakiConfig
from quintet.families.phenaki.data import clip_splits, collate_clips
from quintet.families.phenaki.pipeline import PhenakiPipeline
from quintet.families.phenaki.rows import code_rows, latent_frames
from quintet.media.image import image_grid, write_image
from quintet.media.video import EXTENSIONS
from quintet.media.video_writing import filmstrip
from quintet.nn.codebook import check_codebook_smoothing
from quintet.pipelines.base import Frozen, as_tokenizer
from quintet.sampling.maskgit_preparation import CodeRows
from quintet.training.judge import judge_of, judged_rows
from quintet.training.maskgit_task import MaskGitTask
from quintet.training.phase import Modules
from quintet.training.task import EXAMPLE_CAPTION


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

    def example_item(self) -> Item:
        assert self.config.model.grid is not None
        return {"codes": torch.zeros(self.config.model.grid, dtype=torch.long), "texts": EXAMPLE_CAPTION}

    # --- training ---------------------------------------------------------------------------------------------

    @property
    def code_rows(self) -> Callable[[Batch], CodeRows]:
        return partial(code_rows, self.config.loss, train=False)

    @property
    def training_rows(self) -> Callable[[Batch], CodeRows]:
        return partial(code_rows, self.config.loss, train=True)

    def conditioning(self, batch: Batch, keep: Tensor | None = None) -> dict[str, Tensor]:
        return self.texts(batch, keep)

    def texts(self, batch: Batch, keep: Tensor | None = None) -> dict[str, Tensor]:
        if "vectors" in batch and self.config.model.text != "none":
            return self.maskgit.text_vectors(batch["vectors"], batch["words"], keep)
        return super().texts(batch, keep)

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
        conditioning = self.texts(batch, None), self.texts(batch, drop_all)
        if self.config.sample.frames is not None:
            return list(phenaki.generate(conditioning, batch.rng, self.config.sample.frames))
        return self._decode(phenaki.generate_codes(conditioning, batch.rng, latent_frames(batch["codes"])))

    def _decode(self, codes: Tensor) -> list[Tensor]:
        """Videos (3, frames, height, width) of padded codes, without padding."""
        assert self.tokenizer is not None
        model = self.tokenizer.model
        lengths = [model.config.frames(count) for count in latent_frames(codes).sum(1).tolist()]
        return [video[:, :length] for video, length in zip(model.decode(codes), lengths, strict=True)]


def _with_texts(config: PhenakiConfig) -> PhenakiConfig:
    """The configuration with prompts read from the `sample.texts` file, and with the keys found in the data."""
    if isinstance(config.sample.texts, str):
        # Stores the prompts themselves, so that the run does not depend on the file.
        config = config.changed({"sample.texts": read_lines(Path(config.sample.texts), "sample.texts", "caption")})
    return config.changed(inferred_text_keys(config.model, config.data, EXTENSIONS))
