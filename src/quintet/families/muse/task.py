"""`MuseTask`: trains a masked transformer on codes of captioned images; validation metrics and samples."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor

from quintet.common.artifact import Artifact
from quintet.common.batch import Batch, Item
from quintet.common.statistics import Statistics
from quintet.data.captioned import inferred_text_keys
from quintet.data.splits import Splits
from quintet.families.muse.config import MuseConfig
from quintet.families.muse.data import token_splits
from quintet.families.muse.pipeline import MusePipeline
from quintet.media.image import EXTENSIONS, image_grid, write_image
from quintet.nn.preparation import check_vocabulary
from quintet.pipelines.base import Frozen, as_tokenizer
from quintet.sampling.maskgit_preparation import CodeRows
from quintet.training.judge import judge_of, judged_rows
from quintet.training.maskgit_task import MaskGitTask
from quintet.training.phase import Modules
from quintet.training.task import EXAMPLE_CAPTION


class MuseTask(MaskGitTask[MuseConfig]):
    pipeline_class = MusePipeline

    def __init__(self, config: MuseConfig, frozen: Frozen | None = None, modules: Modules | None = None) -> None:
        super().__init__(config, frozen)
        self.config = self.config.changed(inferred_text_keys(self.config.model, self.config.data, EXTENSIONS))
        self.tokenizer, self.base = as_tokenizer(self.frozen["tokenizer"]), self.frozen.get("base")
        self.make_modules(self.tokenizer, modules)

    def splits(self) -> Splits:
        low = None if self.base is None else as_tokenizer(self.base.frozen["tokenizer"])
        return token_splits(self.config, self.tokenizer, low)

    def example_item(self) -> Item:
        model = self.config.model
        low = {} if model.low_res_grid is None else {"low": torch.zeros(model.low_res_grid, dtype=torch.long)}
        return {
            "codes": torch.zeros(self.tokenizer.model.code_shape, dtype=torch.long),
            "texts": EXAMPLE_CAPTION,
            **low,
        }

    @property
    def code_rows(self) -> Callable[[Batch], CodeRows]:
        return partial(_code_rows, self.config.model.low_res_num_codes)

    def conditioning(self, batch: Batch, keep: Tensor | None = None) -> dict[str, Tensor]:
        conditioning = self.texts(batch, keep)
        if self.base is not None:
            conditioning["low"] = batch["low"].flatten(1)
        return conditioning

    def measure_generated(self, modules: Modules, batch: Batch, split: str) -> Statistics:
        """Statistics of the synthetic dataset's judge for images generated from captions and for reconstructions."""
        judge = judge_of(batch, split)
        if judge is None:
            return Statistics()
        generated, reconstructed = self._generated(modules, batch), self._reconstructed(batch)
        return Statistics(rows=judged_rows(judge, batch, split, generated, reconstructed))

    def sample(self, modules: Modules, batch: Batch) -> list[Artifact]:
        """A grid of pairs: the tokenizer's reconstruction of an image, and an image generated from its caption."""
        generated, reconstructed = self._generated(modules, batch), self._reconstructed(batch)
        grid = image_grid([image for pair in zip(reconstructed, generated, strict=True) for image in pair], columns=8)
        metadata = {"columns": "reconstruction, drawn from its caption", "texts": list(batch["texts"])}
        return [Artifact("drawn.png", partial(write_image, grid), metadata, torch.from_numpy(grid))]

    def _generated(self, modules: Modules, batch: Batch) -> Tensor:
        pipeline: MusePipeline = self.pipeline(modules)
        return pipeline.generate(batch["texts"], batch.rng)

    def _reconstructed(self, batch: Batch) -> Tensor:
        images: Tensor = self.tokenizer.model.decode(batch["codes"])
        return images


def _code_rows(low_res_num_codes: int | None, batch: Batch) -> CodeRows:
    if low_res_num_codes is not None and "low" in batch:
        check_vocabulary(batch.names, batch["low"], low_res_num_codes, "low-resolution codes")
    return CodeRows(batch["codes"].flatten(1))
