"""`MeshAutoencoderTask`: trains the tokenizer with a cross-entropy over coordinate bins; metrics and samples."""

from __future__ import annotations

from functools import partial

import torch
from torch import Tensor

from quintet.common import collectives
from quintet.common.artifact import Artifact
from quintet.common.batch import Batch, Item, Prepare
from quintet.common.precision import as_float64
from quintet.common.statistics import Statistics
from quintet.data.mesh import say_large_meshes
from quintet.data.splits import Splits
from quintet.errors import UsageError
from quintet.families.mesh_autoencoder.config import MeshAutoencoderConfig
from quintet.families.mesh_autoencoder.features import coordinate_bins
from quintet.families.mesh_autoencoder.model import Reconstruction, blurred_cross_entropy
from quintet.families.mesh_autoencoder.packed import Meshes, meshes_of, prepare
from quintet.families.mesh_autoencoder.pipeline import MeshAutoencoderPipeline
from quintet.media.image import write_image
from quintet.media.mesh import Mesh, write_mesh
from quintet.media.mesh_measures import as_triangles, compare, is_valid, is_watertight, merge_vertices
from quintet.media.mesh_render import contact_sheet
from quintet.training.gan_task import TokenizerTask, codebook_metrics, count_codes, mean_metrics
from quintet.training.phase import Loss, Modules, Output, Phase
from quintet.training.task import Traits

RENDERED = 192
"""Pixels of one mesh in a sheet."""
MESH_FILES = 8
"""Pairs of meshes that are written as files, in addition to the sheet of all."""

PER_MESH = ("chamfer", "normal_consistency", "valid", "watertight", "watertight_originals")


class MeshAutoencoderTask(TokenizerTask[MeshAutoencoderConfig]):
    traits = Traits(best=("coordinate_accuracy", "max"), varying_shapes=True)
    pipeline_class = MeshAutoencoderPipeline

    @property
    def trainable(self) -> bool:
        return self.config.model.kind == "learned"

    def make_phases(self) -> list[Phase]:
        return [Phase("autoencoder", ("autoencoder",), self.reconstruction_loss, self.config.optim.for_phase())]

    def splits(self) -> Splits:
        splits = super().splits()
        say_large_meshes(splits)
        return splits

    def example_item(self) -> Item:
        """A strip of `data.max_faces` faces, of which each shares an edge with the next."""
        corners = self.config.model.vertices_per_face
        faces = torch.arange(self.config.data.max_faces)[:, None] + torch.arange(corners)
        return {"vertices": torch.zeros(self.config.data.max_faces + corners - 1, 3), "faces": faces}

    # --- training -------------------------------------------------------------------------------------------

    def num_tokens(self, batch: Batch) -> int:
        return sum(meshes_of(batch).face_counts) * int(self.model.tokens_per_face)

    @property
    def prepare(self) -> Prepare:
        return partial(prepare, self.config.model.bins)

    def latents(self, batch: Batch) -> Tensor:
        if not self.trainable:
            raise UsageError(
                f"model.kind={self.config.model.kind} cannot be trained; use it as it is: "
                f"`quintet train mesh-transformer DATA --tokenizer {self.config.model.kind}`"
            )
        latents: Tensor = self.model.latents(meshes_of(batch))
        return latents

    def forward(self, modules: Modules, batch: Batch, step: int) -> Output:
        meshes = meshes_of(batch.prepared(self.prepare))
        result: Reconstruction = modules["autoencoder"](meshes, return_candidates=step % self.revive_every == 0)
        return Output({"result": result, "meshes": meshes}, result.statistics.with_prefix("quantizer"))

    def reconstruction_loss(self, modules: Modules, batch: Batch, output: Output, step: int) -> Loss:
        meshes: Meshes = output["meshes"]
        corners = meshes.corners.flatten(1)
        result: Reconstruction = output["result"]
        assert meshes.known is not None
        targets = meshes.known.features.coordinate
        losses = blurred_cross_entropy(result.logits, targets, self.config.loss.bin_blur_sigma)
        # NaN coordinates were put into some bin; the loss must be NaN, so that the step is skipped.
        losses = torch.where(corners.isfinite(), losses, torch.nan)
        reconstruction = collectives.mean_over_ranks(losses, torch.ones_like(losses))
        total = reconstruction + self.config.loss.quantizer * result.loss
        return Loss(total, {"reconstruction": reconstruction, "quantizer": result.loss})

    # --- validation -----------------------------------------------------------------------------------------

    def measure(self, modules: Modules, batch: Batch) -> Statistics:
        meshes = meshes_of(batch)
        model = self.pipeline(modules).autoencoder
        rows = model.encode_rows(meshes)
        decoded = model.decode_rows(rows)
        codes = torch.cat(rows)
        errors = (coordinate_bins(torch.cat(decoded), model.bins) - coordinate_bins(meshes.corners, model.bins)).abs()
        sums: dict[str, float] = dict.fromkeys(PER_MESH, 0.0)
        for original, corners in zip(originals(meshes), decoded, strict=True):
            reconstruction = merge_vertices(corners.cpu().numpy(), model.bins)
            distance = compare(original, reconstruction)
            sums["chamfer"] += distance.chamfer
            sums["normal_consistency"] += distance.normals
            sums["valid"] += is_valid(reconstruction)
            sums["watertight"] += is_watertight(reconstruction)
            sums["watertight_originals"] += is_watertight(original)
        return Statistics(
            {
                "count": torch.tensor(float(len(meshes))),
                **{name: torch.tensor(value, dtype=torch.float64) for name, value in sums.items()},
                "coordinates": torch.tensor(float(errors.numel())),
                "coordinate_accuracy": as_float64((errors <= 1).sum()),
                "coordinate_exact": as_float64((errors == 0).sum()),
                "codes": count_codes(codes.cpu(), model.num_codes, model.num_quantizers),
            }
        )

    def summarise(self, statistics: Statistics) -> dict[str, float]:
        sums = statistics.sums
        metrics = {
            name: float(sums[name] / sums["coordinates"]) for name in ("coordinate_accuracy", "coordinate_exact")
        }
        return {**metrics, **mean_metrics(sums, PER_MESH), **codebook_metrics(sums["codes"])}

    def sample(self, modules: Modules, batch: Batch) -> list[Artifact]:
        """A sheet of pairs of meshes and reconstructions; the first pairs also as mesh files."""
        reconstructions = self.pipeline(modules).reconstruct(batch)
        inputs = [Mesh(mesh.vertices, as_triangles(mesh.faces)) for mesh in originals(meshes_of(batch))]
        pairs = [mesh for pair in zip(inputs, reconstructions, strict=True) for mesh in pair]
        sheet = contact_sheet(pairs, columns=8, size=RENDERED)
        metadata = {"columns": "input, reconstruction", "items": list(batch.names)}
        artifacts = [Artifact("reconstructions.png", partial(write_image, sheet), metadata, torch.from_numpy(sheet))]
        for number, (name, pair) in enumerate(zip(batch.names, zip(inputs, reconstructions, strict=True), strict=True)):
            for what, mesh in zip(("input", "reconstruction"), pair, strict=True):
                mesh_metadata = {"item": name, "what": what, "faces": len(mesh.faces)}
                artifacts.append(Artifact(f"{number:03d}-{what}.glb", partial(write_mesh, mesh), mesh_metadata))
        return artifacts[: 1 + 2 * MESH_FILES]


def originals(meshes: Meshes) -> list[Mesh]:
    """The single meshes of a packed batch, with indices into their own vertices."""
    vertices = meshes.by_vertex.split(meshes.vertices.cpu().double())
    starts = meshes.by_vertex.starts.cpu()
    faces = meshes.by_face.split(meshes.faces.cpu())
    return [Mesh(each.numpy(), (own - start).numpy()) for each, own, start in zip(vertices, faces, starts, strict=True)]
