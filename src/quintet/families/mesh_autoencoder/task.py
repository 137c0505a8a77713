"""`MeshAutoencoderTask`: one phase, the cross-entropy of every coordinate's bin; its validation metrics and samples."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from typing import Any

import torch
from torch import nn

from quintet.common import collectives
from quintet.common.artifact import Artifact
from quintet.common.batch import Batch, Item
from quintet.common.rng import seed_from
from quintet.common.statistics import Statistics
from quintet.data.splits import Splits
from quintet.errors import UsageError
from quintet.families.mesh_autoencoder.config import MeshAutoencoderConfig
from quintet.families.mesh_autoencoder.data import collate, mesh_splits, meshes_of
from quintet.families.mesh_autoencoder.features import coordinate_bins
from quintet.families.mesh_autoencoder.model import MeshAutoencoder, Reconstruction, blurred_cross_entropy
from quintet.families.mesh_autoencoder.packed import Meshes
from quintet.families.mesh_autoencoder.pipeline import MeshAutoencoderPipeline
from quintet.media.image import write_image
from quintet.media.mesh import Mesh, write_mesh
from quintet.media.mesh_measures import as_triangles, compare, is_valid, is_watertight, merged
from quintet.media.mesh_render import contact_sheet
from quintet.nn.quantize import perplexity, usage
from quintet.pipelines.base import Pipeline
from quintet.training.engine import Engine
from quintet.training.phase import Loss, Modules, Output, Phase
from quintet.training.task import Task, Traits

REVIVE_EVERY = 50
"""Steps between two looks for dead codes: candidates are gathered only then."""
RENDERED = 192
"""Pixels of one mesh in a sheet."""
TURNED = 8
"""Pairs of meshes that are written beside the sheet of all."""

PER_MESH = ("chamfer", "normal_consistency", "valid", "watertight", "watertight_originals")


class MeshAutoencoderTask(Task[MeshAutoencoderConfig]):
    traits = Traits(best=("coordinate_accuracy", "max"))
    pipeline_class = MeshAutoencoderPipeline

    def __init__(
        self,
        config: MeshAutoencoderConfig,
        frozen: Mapping[str, Pipeline[Any]] | None = None,
        modules: Mapping[str, nn.Module] | None = None,
    ) -> None:
        super().__init__(config, frozen)
        self.modules = dict(modules or MeshAutoencoderPipeline.build_modules(config, self.frozen))
        self.phases = []
        if config.model.kind == "learned":
            autoencoder = self.modules["autoencoder"]
            assert isinstance(autoencoder, MeshAutoencoder)
            self.autoencoder = autoencoder
            self.phases = [Phase("autoencoder", ("autoencoder",), self.reconstruction_loss, config.optim.for_phase())]

    @property
    def averaged(self) -> tuple[str, ...]:
        return ("autoencoder",) if self.phases else ()

    def splits(self) -> Splits:
        return mesh_splits(self.config)

    def collate(self, items: Sequence[Item]) -> dict[str, Any]:
        return collate(items)

    # --- training -------------------------------------------------------------------------------------------

    def init_from_data(self, modules: Modules, batches: Iterable[Batch], engine: Engine) -> None:
        """Start a vector codebook from the first batch's latents."""
        if not self.phases:
            raise UsageError(
                "model.kind=coordinates has nothing to train; use it as it is: "
                "`quintet train mesh-transformer DATA --tokenizer coordinates`"
            )
        with torch.no_grad():
            reports = [Statistics(rows={"latents": self.autoencoder.latents(meshes_of(batch))}) for batch in batches]
        latents = sum(reports, Statistics()).over_ranks().rows["latents"]
        self.autoencoder.quantizer.initialise(latents, seed_from(self.config.train.seed, "codebook"))

    def forward(self, modules: Modules, batch: Batch, step: int) -> Output:
        result: Reconstruction = modules["autoencoder"](meshes_of(batch), want_rows=step % REVIVE_EVERY == 0)
        return Output({"result": result}, result.statistics.named("quantizer"))

    def reconstruction_loss(self, modules: Modules, batch: Batch, output: Output, step: int) -> Loss:
        corners = meshes_of(batch).corners.flatten(1)
        result: Reconstruction = output["result"]
        places = coordinate_bins(corners, self.config.model.bins)
        losses = blurred_cross_entropy(result.logits, places, self.config.loss.blur)
        # What is no number was put into some bin; the step must not pass for a good one.
        losses = torch.where(corners.isfinite(), losses, torch.nan)
        reconstruction = collectives.mean_over_ranks(losses, torch.ones_like(losses))
        total = reconstruction + self.config.loss.quantizer * result.loss
        return Loss(total, {"reconstruction": reconstruction, "quantizer": result.loss})

    def after_step(self, statistics: Statistics, step: int) -> None:
        seed = seed_from(self.config.train.seed, step, "revival")
        self.autoencoder.quantizer.update(statistics.of("quantizer"), seed)

    # --- validation -----------------------------------------------------------------------------------------

    def measure(self, modules: Modules, batch: Batch) -> Statistics:
        meshes = meshes_of(batch)
        model = self.pipeline(modules).autoencoder
        codes = model.encode(meshes)
        made = model.decode_from_codes(codes, meshes.face_counts)
        away = (coordinate_bins(made, model.bins) - coordinate_bins(meshes.corners, model.bins)).abs()
        figures: dict[str, float] = dict.fromkeys(PER_MESH, 0.0)
        for original, corners in zip(originals(meshes), meshes.by_face.split(made), strict=True):
            other = merged(corners.cpu().numpy(), model.bins)
            close = compare(original, other)
            figures["chamfer"] += close.chamfer
            figures["normal_consistency"] += close.normals
            figures["valid"] += is_valid(other)
            figures["watertight"] += is_watertight(other)
            figures["watertight_originals"] += is_watertight(original)
        return Statistics(
            {
                "count": torch.tensor(float(len(meshes))),
                **{name: torch.tensor(value, dtype=torch.float64) for name, value in figures.items()},
                "coordinates": torch.tensor(float(away.numel())),
                "coordinate_accuracy": (away <= 1).sum().double(),
                "coordinate_exact": (away == 0).sum().double(),
                "codes": torch.stack(
                    [
                        torch.bincount(level, minlength=model.num_codes)
                        for level in codes.reshape(-1, model.levels).T.cpu()
                    ]
                ),
            }
        )

    def summarise(self, statistics: Statistics) -> dict[str, float]:
        sums = statistics.sums
        figures = {
            name: float(sums[name] / sums["coordinates"]) for name in ("coordinate_accuracy", "coordinate_exact")
        }
        figures.update({name: float(sums[name] / sums["count"]) for name in PER_MESH})
        # Of a residual quantizer the means over its levels.
        figures["codebook_usage"] = float(torch.stack([usage(level) for level in sums["codes"]]).mean())
        figures["codebook_perplexity"] = float(torch.stack([perplexity(level) for level in sums["codes"]]).mean())
        return figures

    def sample(self, modules: Modules, batch: Batch) -> list[Artifact]:
        """A sheet of pairs: the mesh, and what the tokenizer makes of it; the first of them also as files to turn."""
        made = self.pipeline(modules).reconstruct(batch)
        given = [Mesh(mesh.vertices, as_triangles(mesh.faces)) for mesh in originals(meshes_of(batch))]
        pairs = [mesh for pair in zip(given, made, strict=True) for mesh in pair]
        sheet = contact_sheet(pairs, columns=8, size=RENDERED)
        about = {"columns": "input, reconstruction", "items": list(batch.names)}
        artifacts = [Artifact("reconstructions.png", partial(write_image, sheet), about, torch.from_numpy(sheet))]
        for number, (name, pair) in enumerate(zip(batch.names, zip(given, made, strict=True), strict=True)):
            for what, mesh in zip(("input", "reconstruction"), pair, strict=True):
                about_mesh = {"item": name, "what": what, "faces": len(mesh.faces)}
                artifacts.append(Artifact(f"{number:03d}-{what}.glb", partial(write_mesh, mesh), about_mesh))
        return artifacts[: 1 + 2 * TURNED]


def originals(meshes: Meshes) -> list[Mesh]:
    """The meshes one by one, as `media.mesh` knows them."""
    vertices = meshes.by_vertex.split(meshes.vertices.double().cpu())
    starts = meshes.by_vertex.starts.cpu()
    faces = meshes.by_face.split(meshes.faces.cpu())
    return [Mesh(each.numpy(), (own - start).numpy()) for each, own, start in zip(vertices, faces, starts, strict=True)]
