"""`MeshTransformerTask`: next-code prediction on captioned meshes, its validation metrics and samples."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from quintet.common import collectives
from quintet.common.artifact import Artifact
from quintet.common.batch import Batch, Dataset, Item
from quintet.common.precision import at_least_fp32
from quintet.common.statistics import Statistics
from quintet.data.captioned import found_keys
from quintet.data.splits import Splits
from quintet.families.mesh_transformer import data
from quintet.families.mesh_transformer.config import MeshTransformerConfig
from quintet.families.mesh_transformer.model import MeshTransformer, unpadded
from quintet.families.mesh_transformer.pipeline import RENDERED, MeshTransformerPipeline
from quintet.media.image import write_image
from quintet.media.mesh import EXTENSIONS, Mesh, write_mesh
from quintet.media.mesh_measures import cloud, compare_sets, is_valid, is_watertight
from quintet.media.mesh_render import contact_sheet
from quintet.pipelines.base import Frozen, as_tokenizer
from quintet.training.judge import judge_of, judged_rows, mean_scores
from quintet.training.phase import Loss, Modules, Output, Phase
from quintet.training.task import Task, Traits

TURNED = 8
"""Pairs of meshes that are written beside the sheet of all."""


class MeshTransformerTask(Task[MeshTransformerConfig]):
    traits = Traits(best=("loss", "min"), shardable=True)
    pipeline_class = MeshTransformerPipeline

    def __init__(
        self, config: MeshTransformerConfig, frozen: Frozen | None = None, modules: Modules | None = None
    ) -> None:
        super().__init__(config, frozen)
        self.config = self.config.changed(found_keys(self.config.model, self.config.data, EXTENSIONS))
        self.modules = dict(modules or MeshTransformerPipeline.build_modules(self.config, self.frozen))
        self.transformer: MeshTransformer = self.pipeline(self.modules).transformer
        if self.config.data.cache_dir:
            self.transformer.cache_texts(Path(self.config.data.cache_dir))
        self.phases = [Phase("transformer", ("transformer",), self.token_loss, self.config.optim.for_phase())]

    # --- data -------------------------------------------------------------------------------------------------

    def splits(self) -> Splits:
        return data.token_splits(self.config, as_tokenizer(self.frozen["tokenizer"]))

    def collate(self, items: Sequence[Item]) -> dict[str, Any]:
        return data.collate(items)

    def lengths(self, dataset: Dataset) -> Sequence[int] | None:
        return dataset.lengths() if hasattr(dataset, "lengths") else None

    # --- training ---------------------------------------------------------------------------------------------

    def forward(self, modules: Modules, batch: Batch, step: int) -> Output:
        loss, rng = self.config.loss, batch.rng
        conditioning = self._texts(batch, rng.uniform("keep text") >= loss.cond_drop_prob)
        conditioning |= self.transformer.faces(batch["faces"], rng.uniform("keep faces") >= loss.face_count_drop_prob)
        return Output(self._predicted(modules, batch, conditioning))

    def _texts(self, batch: Batch, keep: Tensor | None = None) -> dict[str, Tensor]:
        # An empty caption is none, here as in generation.
        there = torch.tensor([bool(text) for text in batch["texts"]])
        return self.transformer.texts(batch["texts"], there if keep is None else keep & there)

    def _predicted(self, modules: Modules, batch: Batch, conditioning: dict[str, Tensor]) -> dict[str, Tensor]:
        logits, targets = modules["transformer"](
            batch["codes"], batch["lengths"], conditioning, batch["begins"], batch["ends"]
        )
        return {"logits": at_least_fp32(logits), "targets": targets}

    def token_loss(self, modules: Modules, batch: Batch, output: Output, step: int) -> Loss:
        logits, targets = output["logits"], output["targets"]
        each = F.cross_entropy(logits, targets, reduction="none", label_smoothing=self.config.loss.label_smoothing)
        everything = torch.ones_like(each, dtype=torch.bool)
        right = (logits.argmax(-1) == targets).to(each.dtype)
        parts = {"accuracy": collectives.mean_over_ranks(right, everything)}
        return Loss(collectives.mean_over_ranks(each, everything), parts)

    # --- validation -------------------------------------------------------------------------------------------

    def measure(self, modules: Modules, batch: Batch) -> Statistics:
        """Of every token, given the text and no number of faces, as in generation."""
        logits, targets = self._predicted(modules, batch, self._texts(batch)).values()
        return Statistics(
            {
                "loss": F.cross_entropy(logits, targets, reduction="sum"),
                "right": (logits.argmax(-1) == targets).sum().to(logits.dtype),
                "tokens": torch.tensor(float(len(targets)), dtype=logits.dtype),
            }
        )

    def measure_generated(self, modules: Modules, batch: Batch, split: str) -> Statistics:
        """What is found in meshes that were made from captions without a grammar, and in the set of them."""
        if split != "validation":
            return Statistics()
        pipeline: MeshTransformerPipeline = self.pipeline(modules)
        made = pipeline.generate(batch["texts"], batch.rng)
        meshes, real = pipeline.decode(made.rows), _reconstruct(pipeline, batch)
        sums = {"made": torch.tensor(float(len(meshes)), dtype=torch.float64)}
        sums |= validity_sums(meshes, made.ended.tolist())
        judge = judge_of(batch, split)
        rows = {} if judge is None else judged_rows(judge, batch, split, meshes, real)
        return Statistics(sums, {"made": point_clouds(meshes), "real": point_clouds(real), **rows})

    def summarise(self, statistics: Statistics) -> dict[str, float]:
        sums = {name: float(value) for name, value in statistics.sums.items()}
        loss = sums["loss"] / sums["tokens"]
        figures = {
            "loss": loss,
            "perplexity": float(torch.tensor(loss, dtype=torch.float64).exp()),
            "accuracy": sums["right"] / sums["tokens"],
        }
        if not sums.get("made"):
            return figures
        figures |= {name: sums[name] / sums["made"] for name in ("valid", "watertight", "ended")}
        return figures | mean_scores(statistics.rows) | set_metrics(statistics.rows)

    def sample(self, modules: Modules, batch: Batch) -> list[Artifact]:
        """A sheet of pairs: the mesh as the tokenizer has it, and what is made from its caption; the first of them also
        as files to turn."""
        pipeline: MeshTransformerPipeline = self.pipeline(modules)
        made = pipeline.decode(pipeline.generate(batch["texts"], batch.rng, legal=pipeline.grammar()).rows)
        given = _reconstruct(pipeline, batch)
        pairs = [mesh for pair in zip(given, made, strict=True) for mesh in pair]
        sheet = contact_sheet(pairs, columns=8, size=RENDERED)
        about = {"columns": "reconstruction, made from its caption", "texts": list(batch["texts"])}
        artifacts = [Artifact("made.png", partial(write_image, sheet), about, torch.from_numpy(sheet))]
        for number, (text, pair) in enumerate(zip(batch["texts"], zip(given, made, strict=True), strict=True)):
            for what, mesh in zip(("reconstruction", "made"), pair, strict=True):
                about_mesh = {"text": text, "what": what, "faces": len(mesh.faces)}
                artifacts.append(Artifact(f"{number:03d}-{what}.glb", partial(write_mesh, mesh), about_mesh))
        return artifacts[: 1 + 2 * TURNED]


def _reconstruct(pipeline: MeshTransformerPipeline, batch: Batch) -> list[Mesh]:
    """What the tokenizer makes of the codes of a batch, whole meshes even where it holds stretches of them."""
    device = batch["codes"].device
    whole = batch["whole"] if "whole" in batch else unpadded(batch["codes"], batch["lengths"])
    return pipeline.decode([codes.to(device) for codes in whole])


def validity_sums(meshes: Sequence[Mesh], ended: Sequence[bool]) -> dict[str, Tensor]:
    """Sums over meshes as they were generated, nothing mended; one that had to be cut off is not sound."""
    found = {
        "valid": [end and is_valid(mesh) for mesh, end in zip(meshes, ended, strict=True)],
        "watertight": [end and is_watertight(mesh) for mesh, end in zip(meshes, ended, strict=True)],
        "ended": list(ended),
    }
    return {name: torch.tensor(float(sum(values)), dtype=torch.float64) for name, values in found.items()}


def point_clouds(meshes: Sequence[Mesh]) -> Tensor:
    """Points (meshes, points, 3), the same for the same mesh."""
    return torch.from_numpy(np.stack([cloud(mesh) for mesh in meshes]).astype(np.float32))


def set_metrics(rows: Mapping[str, Tensor]) -> dict[str, float]:
    """How the points of generated meshes compare with those of real ones."""
    made, real = (rows[name].cpu().numpy() for name in ("made", "real"))
    return compare_sets(made, real)._asdict()
