"""Owns how a mesh tokenizer is trained and shown: one phase, cross-entropy of every coordinate's bin."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import partial
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor

from quintet.common import collectives
from quintet.common.artifact import Artifact
from quintet.common.batch import Batch, Item
from quintet.common.rng import seed_from
from quintet.common.statistics import Statistics
from quintet.data.mesh import mesh_folder_splits
from quintet.data.splits import Splits
from quintet.errors import UsageError
from quintet.families.mesh_autoencoder import packed
from quintet.families.mesh_autoencoder.config import MeshAutoencoderConfig
from quintet.families.mesh_autoencoder.coordinates import CoordinateTokenizer
from quintet.families.mesh_autoencoder.features import coordinate_bins
from quintet.families.mesh_autoencoder.model import MeshAutoencoder, Reconstruction, blurred_cross_entropy
from quintet.families.mesh_autoencoder.packed import Meshes, meshes_of
from quintet.media.image import write_image
from quintet.media.mesh import Mesh, canonical, clean, write_mesh
from quintet.media.mesh_measures import as_triangles, compare, is_valid, is_watertight, merged
from quintet.media.mesh_render import contact_sheet
from quintet.nn.graph import Packing
from quintet.nn.quantize import perplexity, usage
from quintet.training.engine import Engine
from quintet.training.phase import Loss, Modules, Output, Phase
from quintet.training.task import Task

REVIVE_EVERY = 50
"""Steps between two looks for dead codes: candidates are gathered only then."""
SHOWN = 192
"""Pixels of one picture of a mesh."""
TURNED = 8
"""Pairs of meshes that are written beside the picture of all."""

Tokenizer = MeshAutoencoder | CoordinateTokenizer


class MeshAutoencoderTask(Task[MeshAutoencoderConfig]):
    name = "mesh-autoencoder"
    best: ClassVar[tuple[str, Literal["max", "min"]]] = ("coordinate_accuracy", "max")
    exported = "autoencoder"

    def __init__(self, config: MeshAutoencoderConfig, autoencoder: MeshAutoencoder | None = None) -> None:
        super().__init__(config)
        self.phases = []
        if config.model.kind == "coordinates":
            self.modules = {"autoencoder": CoordinateTokenizer(config.model)}
            return
        self.autoencoder = autoencoder or MeshAutoencoder(config.model)
        self.modules = {"autoencoder": self.autoencoder}
        self.phases = [Phase("autoencoder", ("autoencoder",), self.loss, config.optim.for_phase())]

    @property
    def averaged(self) -> tuple[str, ...]:
        return ("autoencoder",) if self.phases else ()

    def splits(self) -> Splits:
        model = self.config.model
        data = self.config.data
        return mesh_folder_splits(
            data,
            model.bins,
            data.max_faces,
            decimate=data.decimate,
            augment=data.augment,
            corners=model.vertices_per_face,
            memory_megabytes=data.memory_megabytes,
        )

    def collate(self, items: Sequence[Item]) -> dict[str, Any]:
        # Packed, so meshes of all sizes share a batch without waste; batches of similar length would gain nothing.
        return packed.collate(items)

    # --- training -------------------------------------------------------------------------------------------

    def initialise(self, modules: Modules, batches: Iterable[Batch], engine: Engine) -> None:
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

    def loss(self, modules: Modules, batch: Batch, output: Output, step: int) -> Loss:
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

    # --- looking --------------------------------------------------------------------------------------------

    def measure(self, modules: Modules, batch: Batch) -> Statistics:
        meshes = meshes_of(batch)
        model = tokenizer(modules)
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

    def encode(self, modules: Modules, batch: Batch) -> Tensor:
        """`(items, faces of the largest, tokens of a face)`; behind the last face of the others stands -1."""
        meshes = meshes_of(batch)
        return meshes.by_face.pad(tokenizer(modules).encode(meshes), -1)

    def decode(self, modules: Modules, codes: Tensor, name: str) -> list[Artifact]:
        return [
            Artifact(f"{name}.glb" if len(codes) == 1 else f"{name}-{number}.glb", partial(write_mesh, mesh))
            for number, mesh in enumerate(decoded(tokenizer(modules), codes))
        ]

    def sample(self, modules: Modules, batch: Batch) -> list[Artifact]:
        """A sheet of pairs: the mesh, and what the tokenizer makes of it; the first of them also as files to turn."""
        made = decoded(tokenizer(modules), self.encode(modules, batch))
        given = [Mesh(mesh.vertices, as_triangles(mesh.faces)) for mesh in originals(meshes_of(batch))]
        pairs = [mesh for pair in zip(given, made, strict=True) for mesh in pair]
        sheet = contact_sheet(pairs, columns=8, size=SHOWN)
        about = {"columns": "input, reconstruction", "items": list(batch.names)}
        artifacts = [Artifact("reconstructions.png", partial(write_image, sheet), about, torch.from_numpy(sheet))]
        for number, (name, pair) in enumerate(zip(batch.names, zip(given, made, strict=True), strict=True)):
            for what, mesh in zip(("input", "reconstruction"), pair, strict=True):
                about_mesh = {"item": name, "what": what, "faces": len(mesh.faces)}
                artifacts.append(Artifact(f"{number:03d}-{what}.glb", partial(write_mesh, mesh), about_mesh))
        return artifacts[: 1 + 2 * TURNED]


PER_MESH = ("chamfer", "normal_consistency", "valid", "watertight", "watertight_originals")


def tokenizer(modules: Modules) -> Tokenizer:
    model = modules["autoencoder"]
    assert isinstance(model, MeshAutoencoder | CoordinateTokenizer)
    return model


def decoded(model: Tokenizer, codes: Tensor) -> list[Mesh]:
    """The meshes of padded codes, in canonical order."""
    if codes.ndim != 3:
        raise UsageError(f"codes of meshes have the axes meshes, faces and tokens, not the shape {tuple(codes.shape)}")
    present = (codes >= 0).all(-1)
    rows = Packing(tuple(present.sum(1).tolist()), codes.device)
    corners = model.decode_from_codes(codes[present], rows.lengths)
    return [tidy(merged(each.cpu().numpy(), model.bins), model.bins) for each in rows.split(corners)]


def tidy(mesh: Mesh, bins: int) -> Mesh:
    """Clean and in canonical order; as it is where no face has an area, so that there is something to look at."""
    triangles = Mesh(mesh.vertices, as_triangles(mesh.faces))
    cleaned = clean(triangles, bins)
    return canonical(cleaned, bins) if len(cleaned.faces) else triangles


def originals(meshes: Meshes) -> list[Mesh]:
    """The meshes one by one, as `media.mesh` knows them."""
    vertices = meshes.by_vertex.split(meshes.vertices.double().cpu())
    starts = meshes.by_vertex.starts.cpu()
    faces = meshes.by_face.split(meshes.faces.cpu())
    return [Mesh(each.numpy(), (own - start).numpy()) for each, own, start in zip(vertices, faces, starts, strict=True)]
