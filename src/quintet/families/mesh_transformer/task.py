"""`MeshTransformerTask`: next-token prediction on captioned meshes; validation metrics and samples."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from quintet.common.artifact import Artifact
from quintet.common.batch import Batch, Collate, Dataset, Item, Prepare
from quintet.common.precision import at_least_fp32
from quintet.common.statistics import Statistics
from quintet.data.captioned import inferred_text_keys
from quintet.data.splits import Splits
from quintet.families.mesh_transformer import data
from quintet.families.mesh_transformer.config import WOVEN_TOKENS, MeshTransformerConfig
from quintet.families.mesh_transformer.model import MeshTransformer, Targets, find_targets, unpadded
from quintet.families.mesh_transformer.pipeline import RENDERED, MeshTransformerPipeline
from quintet.families.mesh_transformer.preparation import MeshTransformerPreparation, targets_of
from quintet.media.image import write_image
from quintet.media.mesh import EXTENSIONS, Mesh, write_mesh
from quintet.media.mesh_measures import (
    compare,
    compare_sets,
    compare_with_points,
    is_valid,
    is_watertight,
    point_cloud,
)
from quintet.media.mesh_render import contact_sheet
from quintet.media.mesh_topology import count_components, has_crossing_faces, is_manifold
from quintet.media.mesh_weaving import NUM_OPERATIONS
from quintet.nn.chunked_loss import ChunkedLoss, chunk_size
from quintet.nn.losses import code_losses, token_losses
from quintet.nn.points import CHANNELS
from quintet.nn.preparation import has_texts
from quintet.nn.text import mask_dropped
from quintet.pipelines.base import Frozen, as_tokenizer
from quintet.training.judge import judge_of, judged_rows, mean_scores
from quintet.training.maskgit_task import mean_loss
from quintet.training.phase import Loss, Modules, Output, Phase
from quintet.training.task import EXAMPLE_CAPTION, Task, Traits

DISTANCES = tuple(
    f"{of}{name}" for of in ("", "points_", "points_reconstruction_") for name in ("chamfer", "normal_consistency")
)
MEANS = ("valid", "watertight", "manifold", "ended", "self_intersecting", "components", *DISTANCES)
"""Metrics that are means over the generated meshes."""
MESH_FILES = 8
"""Pairs of meshes that are written as files, in addition to the sheet of all."""


class MeshTransformerTask(Task[MeshTransformerConfig]):
    traits = Traits(best=("loss", "min"), varying_shapes=True, shardable=True)
    derived_keys = frozenset({"model.open_meshes"})
    pipeline_class = MeshTransformerPipeline

    def __init__(
        self, config: MeshTransformerConfig, frozen: Frozen | None = None, modules: Modules | None = None
    ) -> None:
        super().__init__(config, frozen)
        self.config = self.config.changed(inferred_text_keys(self.config.model, self.config.data, EXTENSIONS))
        self.modules = dict(modules or MeshTransformerPipeline.build_modules(self.config, self.frozen))
        self.transformer: MeshTransformer = self.pipeline(self.modules).transformer
        if self.config.data.cache_dir:
            self.transformer.cache_texts(Path(self.config.data.cache_dir))
        self.phases = [Phase("transformer", ("transformer",), self.token_loss, self.config.optim.for_phase())]

    # --- data -------------------------------------------------------------------------------------------------

    def splits(self) -> Splits:
        return data.token_splits(self.config, as_tokenizer(self.frozen["tokenizer"]))

    @property
    def collate(self) -> Collate:
        return data.collate

    @property
    def prepare(self) -> Prepare:
        encoder = self.transformer.text_encoder
        preparation = None if encoder is None else encoder.preparation
        return MeshTransformerPreparation(self.transformer.config, self.config.loss, preparation)

    def data_keys(self, splits: Splits) -> Mapping[str, object]:
        model = self.config.model
        if model.kind != "woven" or model.open_meshes is not None:
            return {}
        assert model.num_codes is not None
        return {"model.open_meshes": data.has_open_meshes(splits, model.num_codes - NUM_OPERATIONS)}

    def lengths(self, dataset: Dataset) -> Sequence[int] | None:
        return dataset.lengths() if hasattr(dataset, "lengths") else None

    def example_item(self) -> Item:
        faces, per_face = self.config.model.max_faces, self.transformer.tokens_per_face
        window = min(faces, self.config.loss.window_faces or faces)
        codes = torch.zeros(window, per_face, dtype=torch.long)
        if self.config.model.kind == "woven":
            # Windows are full; a mesh without windows is taken to be closed.
            windowed = self.config.loss.window_faces is not None
            rows = self.config.model.max_tokens(window) if windowed else 2 * faces + WOVEN_TOKENS
            codes = torch.zeros(rows, 1, dtype=torch.long)
        has_points = self.transformer.point_encoder is not None
        points = {"points": torch.zeros(self.config.data.num_points, CHANNELS)} if has_points else {}
        return {"codes": codes, "faces": faces, "begins": True, "ends": True, "texts": EXAMPLE_CAPTION, **points}

    # --- training ---------------------------------------------------------------------------------------------

    def forward(self, modules: Modules, batch: Batch, step: int) -> Output:
        batch = batch.prepared(self.prepare)
        conditioning = self._prepared_texts(batch)
        if "points" in batch:
            conditioning |= self.transformer.points(batch["points"], batch["keep_points"])
        if "face_buckets" in batch:
            conditioning["faces"] = batch["face_buckets"]
        targets = targets_of(batch)
        size = chunk_size(self.config.loss.logit_chunk, self.transformer.end_id + 1, len(targets.codes))
        # The vocabulary of woven meshes is small, and their logits depend on more than the output layer.
        if size is None or self.config.model.kind == "woven":
            return Output(self._predicted(modules, batch, conditioning, targets))
        losses = partial(code_losses, label_smoothing=self.config.loss.label_smoothing)
        loss = ChunkedLoss(losses, (targets.codes,), size)
        rows = batch["codes"], batch["lengths"], conditioning, batch["begins"], batch["ends"]
        return Output({"losses": modules["transformer"](*rows, targets=targets, loss=loss)})

    def _prepared_texts(self, batch: Batch) -> dict[str, Tensor]:
        """The texts of a prepared training batch, of which some are dropped."""
        embeddings, encoder = self._embeddings(batch), self.transformer.text_encoder
        if embeddings is not None:
            return self.transformer.text_vectors(*embeddings, batch["keep_text"])
        if encoder is None:
            return {}
        if encoder.preparation is not None:
            return {name: batch[name] for name in ("text", "text_mask")}
        texts = self.transformer.texts(batch["texts"])
        return {**texts, "text_mask": mask_dropped(texts["text_mask"], batch["keep_text"])}

    def _conditioning(self, batch: Batch) -> dict[str, Tensor]:
        """The texts and points of a batch, of which none is dropped."""
        points = self.transformer.points(batch["points"]) if "points" in batch else {}
        embeddings = self._embeddings(batch)
        if embeddings is not None:
            return self.transformer.text_vectors(*embeddings) | points
        return self.transformer.texts(batch["texts"], has_texts(batch)) | points

    def _embeddings(self, batch: Batch) -> tuple[Tensor, Tensor] | None:
        is_used = "vectors" in batch and self.config.model.text != "none"
        return (batch["vectors"], batch["words"]) if is_used else None

    def _predicted(
        self, modules: Modules, batch: Batch, conditioning: dict[str, Tensor], targets: Targets
    ) -> dict[str, Tensor]:
        logits, codes = modules["transformer"](
            batch["codes"], batch["lengths"], conditioning, batch["begins"], batch["ends"], targets=targets
        )
        return {"logits": at_least_fp32(logits), "targets": codes}

    def token_loss(self, modules: Modules, batch: Batch, output: Output, step: int) -> Loss:
        if "losses" in output.values:
            return mean_loss(*output["losses"])
        logits, targets = output["logits"], output["targets"]
        return mean_loss(*token_losses(logits, targets, self.config.loss.label_smoothing))

    # --- validation -------------------------------------------------------------------------------------------

    def measure(self, modules: Modules, batch: Batch) -> Statistics:
        """Loss and accuracy of all tokens, conditioned on text and points but not on face counts, as in generation."""
        rows = batch["codes"], batch["lengths"], batch["begins"], batch["ends"]
        known = find_targets(self.transformer.config, *rows, batch.fields.get("states"))
        logits, targets = self._predicted(modules, batch, self._conditioning(batch), known).values()
        return Statistics(
            {
                "loss": F.cross_entropy(logits, targets, reduction="sum"),
                "correct": (logits.argmax(-1) == targets).sum().to(logits.dtype),
                "tokens": torch.tensor(float(len(targets)), dtype=logits.dtype),
            }
        )

    def measure_generated(self, modules: Modules, batch: Batch, split: str) -> Statistics:
        """Defects, scores by the judge, and set metrics of meshes generated from captions and points without a grammar;
        with points also their distance from the points and from the mesh that these belong to."""
        if split != "validation":
            return Statistics()
        pipeline: MeshTransformerPipeline = self.pipeline(modules)
        generated = pipeline.generate(
            batch["texts"], batch.rng, embeddings=self._embeddings(batch), points=_points(batch)
        )
        meshes, real = pipeline.decode(generated.rows), _reconstruct(pipeline, batch)
        sums = validity_sums(meshes, generated.ended.tolist()) | size_sums(meshes, generated.rows)
        if "points" in batch:
            sums |= distance_sums(meshes, real, batch["points"])
        judge = judge_of(batch, split)
        rows = {} if judge is None else judged_rows(judge, batch, split, meshes, real)
        return Statistics(sums, {"generated": point_clouds(meshes), "real": point_clouds(real), **rows})

    def summarise(self, statistics: Statistics) -> dict[str, float]:
        sums = {name: float(value) for name, value in statistics.sums.items()}
        loss = sums["loss"] / sums["tokens"]
        metrics = {
            "loss": loss,
            "perplexity": float(torch.tensor(loss, dtype=torch.float64).exp()),
            "accuracy": sums["correct"] / sums["tokens"],
        }
        if not sums.get("generated"):
            return metrics
        metrics |= {name: sums[name] / sums["generated"] for name in MEANS if name in sums}
        if sums.get("generated_faces"):
            metrics["tokens_per_face"] = sums["generated_tokens"] / sums["generated_faces"]
        return metrics | mean_scores(statistics.rows) | set_metrics(statistics.rows)

    def sample(self, modules: Modules, batch: Batch) -> list[Artifact]:
        """A sheet of pairs of reconstructions and meshes generated from their captions; the first pairs also as mesh
        files."""
        pipeline: MeshTransformerPipeline = self.pipeline(modules)
        codes = pipeline.generate(
            batch["texts"],
            batch.rng,
            legal=pipeline.grammar(),
            embeddings=self._embeddings(batch),
            points=_points(batch),
        )
        generated = pipeline.decode(codes.rows)
        reconstructions = _reconstruct(pipeline, batch)
        pairs = [mesh for pair in zip(reconstructions, generated, strict=True) for mesh in pair]
        sheet = contact_sheet(pairs, columns=8, size=RENDERED)
        metadata = {
            "columns": f"reconstruction, made from its {'points' if 'points' in batch else 'caption'}",
            "texts": list(batch["texts"]),
        }
        artifacts = [Artifact("made.png", partial(write_image, sheet), metadata, torch.from_numpy(sheet))]
        for number, (text, pair) in enumerate(
            zip(batch["texts"], zip(reconstructions, generated, strict=True), strict=True)
        ):
            for what, mesh in zip(("reconstruction", "made"), pair, strict=True):
                mesh_metadata = {"text": text, "what": what, "faces": len(mesh.faces)}
                artifacts.append(Artifact(f"{number:03d}-{what}.glb", partial(write_mesh, mesh), mesh_metadata))
        return artifacts[: 1 + 2 * MESH_FILES]


def _reconstruct(pipeline: MeshTransformerPipeline, batch: Batch) -> list[Mesh]:
    """The reconstructions of the meshes of a batch; full meshes even if it holds windows of them."""
    device = batch["codes"].device
    full = batch["full_codes"] if "full_codes" in batch else unpadded(batch["codes"], batch["lengths"])
    return pipeline.decode([codes.to(device) for codes in full])


def _points(batch: Batch) -> Tensor | None:
    return batch.fields.get("points")


def validity_sums(meshes: Sequence[Mesh], ended: Sequence[bool]) -> dict[str, Tensor]:
    """The numbers of meshes with these properties as generated; one without an end token counts as invalid."""
    complete = [mesh for mesh, end in zip(meshes, ended, strict=True) if end]
    return _sums(
        {
            "generated": len(meshes),
            "valid": sum(map(is_valid, complete)),
            "watertight": sum(map(is_watertight, complete)),
            "manifold": sum(map(is_manifold, complete)),
            "ended": sum(ended),
        }
    )


def size_sums(meshes: Sequence[Mesh], rows: Sequence[Tensor]) -> dict[str, Tensor]:
    """The number of meshes with crossing faces, and the sums of their parts, faces and tokens; `rows` are the codes."""
    return _sums(
        {
            "self_intersecting": sum(map(has_crossing_faces, meshes)),
            "components": sum(map(count_components, meshes)),
            "generated_faces": sum(len(mesh.faces) for mesh in meshes),
            "generated_tokens": sum(row.numel() for row in rows),
        }
    )


def distance_sums(meshes: Sequence[Mesh], real: Sequence[Mesh], points: Tensor) -> dict[str, Tensor]:
    """Chamfer distances and normal consistencies: of the meshes from the real surfaces, and from the point clouds
    (batch, points, 6) that they were made from; and of the real meshes from the clouds, the best that can be reached.
    """
    clouds = points.cpu().double().numpy()
    to_surface = np.array([compare(theirs, ours) for ours, theirs in zip(meshes, real, strict=True)])
    to_points, best = (
        np.array(
            [compare_with_points(mesh, cloud[:, :3], cloud[:, 3:]) for mesh, cloud in zip(each, clouds, strict=True)]
        )
        for each in (meshes, real)
    )
    found = {"": to_surface, "points_": to_points, "points_reconstruction_": best}
    names = ("chamfer", "normal_consistency")
    return _sums({f"{of}{name}": values[:, at].sum() for of, values in found.items() for at, name in enumerate(names)})


def _sums(values: Mapping[str, float]) -> dict[str, Tensor]:
    return {name: torch.tensor(float(value), dtype=torch.float64) for name, value in values.items()}


def point_clouds(meshes: Sequence[Mesh]) -> Tensor:
    """Point clouds (meshes, points, 3), deterministic for each mesh."""
    return torch.from_numpy(np.stack([point_cloud(mesh) for mesh in meshes]).astype(np.float32))


def set_metrics(rows: Mapping[str, Tensor]) -> dict[str, float]:
    """Metrics between the sets of point clouds of generated and real meshes."""
    generated, real = (rows[name].cpu().numpy() for name in ("generated", "real"))
    return compare_sets(generated, real)._asdict()
