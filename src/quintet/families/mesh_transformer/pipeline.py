"""`MeshTransformerPipeline`: text and point clouds to meshes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import ArrayLike
from torch import Tensor

from quintet.common.artifact import Artifact
from quintet.common.logging import say
from quintet.common.rng import ItemRNG
from quintet.data.mesh_points import CloudSettings, chosen_points
from quintet.errors import UnreadableItem, UsageError
from quintet.families.mesh_transformer.config import MeshTransformerConfig, MeshTransformerOptions
from quintet.families.mesh_transformer.grammar import CanonicalCoordinates
from quintet.families.mesh_transformer.model import Generated, MeshTransformer
from quintet.media.image import write_image
from quintet.media.mesh import Mesh, canonical, clean, write_mesh
from quintet.media.mesh_formats import read_soup
from quintet.media.mesh_measures import as_triangles, compare_with_points, merge_vertices
from quintet.media.mesh_render import contact_sheet
from quintet.media.points import (
    MAX_POINTS,
    Placement,
    PointCloud,
    make_cloud,
    normalise_cloud,
    read_points,
    sample_surface,
    spread,
)
from quintet.pipelines.base import Frozen, Tokenizer
from quintet.pipelines.prompts import Prompts, TextGenerator, check_prompts, sample_record
from quintet.sampling.autoregressive import Legal, Sampling

MESHES_AT_ONCE = 32
RENDERED = 192
"""Pixels of one mesh in a sheet."""
MEASURED = 4096
"""Points of a scan to which the distance of a mesh is measured."""


class MeshTransformerPipeline(TextGenerator[MeshTransformerConfig]):
    """Text to mesh; can complete a partial mesh, and follow a point cloud.

    (mesh,) = MeshTransformerPipeline.from_pretrained("runs/mesh")(["a tall table"], seed=0)
    write_mesh(mesh, "table.glb")
    """

    recipe = "mesh-transformer"
    exported = "transformer"
    model_class = MeshTransformer

    @classmethod
    def fit(cls, config: MeshTransformerConfig, frozen: Frozen) -> MeshTransformerConfig:
        tokenizer = frozen.get("tokenizer")
        if tokenizer is None:
            raise UsageError(
                "mesh-transformer needs a mesh tokenizer: set --tokenizer woven, --tokenizer coordinates or "
                "--tokenizer RUN"
            )
        model = tokenizer.model
        if not isinstance(tokenizer, Tokenizer) or not hasattr(model, "tokens_per_face"):
            raise UsageError(
                f"mesh-transformer needs a mesh tokenizer, but {tokenizer.reference} is a run of recipe "
                f"'{tokenizer.recipe}'"
            )
        found = {"model.num_codes": model.num_codes, "model.tokens_per_face": model.tokens_per_face}
        config = _with_kind(config, tokenizer)
        return super().fit(config.adopt(f"the tokenizer {tokenizer.reference}", found), frozen)

    @property
    def transformer(self) -> MeshTransformer:
        transformer = self.modules["transformer"]
        assert isinstance(transformer, MeshTransformer)
        return transformer

    @property
    def unconditional(self) -> bool:
        return not self.takes_text and not self.takes_points

    @property
    def prompted(self) -> bool:
        return self.takes_text

    @property
    def takes_text(self) -> bool:
        return self.config.model.text != "none"

    @property
    def takes_points(self) -> bool:
        return self.config.model.condition == "points"

    @property
    def guidance_scale(self) -> float:
        """The guidance scale that the model supports: 1 unless training dropped all that it is conditioned on."""
        loss = self.config.loss
        uses = ((self.takes_text, loss.cond_drop_prob), (self.takes_points, loss.point_drop_prob))
        dropped = [probability > 0 for used, probability in uses if used]
        return self.config.sample.guidance_scale if dropped and all(dropped) else 1.0

    def __call__(
        self,
        prompts: str | Sequence[str] = (),
        *,
        negative_prompt: str | None = None,
        num: int = 1,
        seed: int = 0,
        mesh: str | Path | None = None,
        points: str | Path | Mesh | ArrayLike | None = None,
    ) -> list[Mesh]:
        """Meshes, `num` per prompt, with `vertices` in [-1, 1] and triangles as `faces`; nothing is repaired.

        `mesh` is a file with the first faces of all of them, at their position in the box from -1 to 1. `points` is
        what they follow: a file of points or of a mesh, a `Mesh`, or an array (n, 3), or (n, 6) with normals. Then the
        vertices are in its coordinates.
        """
        scan = None if points is None else self._scan(points)
        meshes, _ = self._run(Prompts.of(prompts, num, seed), negative_prompt, mesh, scan)
        return meshes if scan is None else [scan.placement.restored(each) for each in meshes]

    def files(self, prompts: Sequence[str], options: MeshTransformerOptions) -> list[Artifact]:
        """Each mesh in two formats, and a sheet of renderings of all meshes."""
        requested = Prompts.of(prompts, options.num, options.seed)
        scan = None if options.points is None else self._scan(options.points)
        meshes, ended = self._run(requested, options.negative_prompt, options.mesh, scan)
        inputs = {"negative": options.negative_prompt, "mesh": options.mesh, "points": options.points}
        common = sample_record(self.config.sample, options.seed, **inputs)
        sheet = contact_sheet(meshes, columns=min(8, len(meshes)), size=RENDERED)
        artifacts = [Artifact("sheet.png", partial(write_image, sheet), {"texts": requested.items, **common})]
        for number, (mesh, text) in enumerate(zip(meshes, requested.items, strict=True)):
            metadata = {"text": text, "number": number, "faces": len(mesh.faces), "ended": ended[number], **common}
            if scan is not None:
                metadata["chamfer"] = scan.distance(mesh)
            placed = mesh if scan is None else scan.placement.restored(mesh)
            artifacts += [
                Artifact(f"{number:03d}.{suffix}", partial(write_mesh, placed), metadata) for suffix in ("glb", "obj")
            ]
        return artifacts

    def _run(
        self, requested: Prompts, negative: str | None, mesh: str | Path | None, scan: Scan | None
    ) -> tuple[list[Mesh], list[bool]]:
        """The meshes, and which of them ended with the end token."""
        self._check_inputs(requested, negative, scan)
        meshes: list[Mesh] = []
        ended: list[bool] = []
        with self.inference():
            part = None if mesh is None else self._encode_part(Path(mesh))
            for texts, rng in requested.batches(MESHES_AT_ONCE):
                points = None if scan is None else scan.clouds(rng, self.config.data.num_points)
                generated = self.generate(texts, rng, negative, part, self.grammar(), points=points)
                meshes += self.decode(generated.rows)
                ended += generated.ended.tolist()
        return meshes, ended

    def _check_inputs(self, requested: Prompts, negative: str | None, scan: Scan | None) -> None:
        scale = self.config.sample.guidance_scale
        loss = self.config.loss
        text_scale = scale if self.takes_text and loss.cond_drop_prob > 0 else 1.0
        check_prompts(self.config.model, requested.texts, negative, scale, text_scale)
        if not self.takes_points:
            return
        if scan is None and loss.point_drop_prob == 0:
            raise UsageError("this model was trained with a point cloud for every mesh; set --points FILE")
        if scan is not None and scale != 1 and loss.point_drop_prob == 0:
            say("warning: generating without guidance, because the model was trained with loss.point_drop_prob=0")

    def _scan(self, points: str | Path | Mesh | ArrayLike) -> Scan:
        """The cloud that meshes follow."""
        if not self.takes_points:
            raise UsageError("this model takes no points; --points needs a model trained with --condition points")
        name = f"--points {points}" if isinstance(points, str | Path) else "points"
        try:
            scan = read_scan(points)
        except UnreadableItem as problem:
            raise UsageError(f"{name}: {problem}") from None
        if not scan.cloud.has_normals:
            known = self.config.data.point_normal_drop_prob > 0
            hint = "" if known else ", unlike all clouds of its training (data.point_normal_drop_prob=0)"
            say(f"{name} has no normals; the model gets its points without them{hint}")
        return scan

    def generate(
        self,
        texts: Sequence[str],
        rng: ItemRNG,
        negative: str | None = None,
        part: Tensor | None = None,
        legal: Legal | None = None,
        embeddings: tuple[Tensor, Tensor] | None = None,
        points: Tensor | None = None,
    ) -> Generated:
        """Codes of one batch of texts, or of text embeddings, with the random numbers of its items.

        `points` (batch, points, 6) are the point clouds of its items, in the unit box. `part` (faces, tokens_per_face)
        are the codes that all meshes start with.
        """
        config = self.config.sample
        return self.transformer.generate(
            texts if self.takes_text else [""] * len(texts),
            rng,
            Sampling(config.temperature, config.top_k, config.top_p, self.guidance_scale),
            negative=negative,
            embeddings=embeddings,
            points=points,
            face_counts=[config.faces] * len(texts) if config.faces else None,
            prompts=None if part is None else [part] * len(texts),
            max_faces=config.max_faces,
            window_faces=self.config.loss.window_faces if self.config.model.kind == "woven" else None,
            legal=legal,
            holes=config.holes == "allowed" or (config.holes == "auto" and bool(self.config.model.open_meshes)),
        )

    def decode(self, rows: Sequence[Tensor]) -> list[Mesh]:
        """The meshes of codes (faces, tokens_per_face), without cleaning or repair."""
        model = self.frozen["tokenizer"].model
        soups = [merge_vertices(part.cpu().double().numpy(), model.bins) for part in model.decode_rows(rows)]
        return [Mesh(mesh.vertices, as_triangles(mesh.faces)) for mesh in soups]

    def grammar(self) -> Legal | None:
        """The grammar of `sample.grammar`; None: the default, which allows the end token after complete faces only."""
        if self.config.sample.grammar == "none":
            return None
        keys = self.frozen["tokenizer"].model.config
        if keys.kind == "woven":
            raise UsageError("sample.grammar=strict is for the tokenizer `coordinates`; `woven` has its own grammar")
        if keys.kind != "coordinates" or keys.vertices_per_face != 3:
            raise UsageError(
                "sample.grammar=strict needs a model trained with the tokenizer `coordinates` on triangles"
            )
        return CanonicalCoordinates(keys.bins)

    def _encode_part(self, path: Path) -> Tensor:
        """The codes (faces, tokens_per_face) of a partial mesh."""
        tokenizer, sample = self.frozen["tokenizer"].model, self.config.sample
        if tokenizer.config.kind == "woven":
            raise UsageError("--mesh needs a model trained with the tokenizer `coordinates` or a mesh-autoencoder")
        try:
            part = _read_part(path, tokenizer.bins)
        except UnreadableItem as problem:
            raise UsageError(f"--mesh {path}: {problem}") from None
        limit = sample.max_faces or self.config.model.max_faces
        if len(part.faces) > limit:
            key = "sample.max_faces" if sample.max_faces else "model.max_faces"
            raise UsageError(f"--mesh {path} has {len(part.faces)} faces, more than {key}={limit}")
        vertices, faces = torch.from_numpy(part.vertices).float(), torch.from_numpy(part.faces)
        codes: Tensor = tokenizer.tokenize(vertices.to(self.device), faces.to(self.device))
        return codes


def _with_kind(config: MeshTransformerConfig, tokenizer: Tokenizer[Any]) -> MeshTransformerConfig:
    """The configuration with `model.kind=woven` for the tokenizer `woven`; `UsageError` if they contradict."""
    is_woven, kind = tokenizer.model.config.kind == "woven", config.model.kind
    if not is_woven and kind == "woven":
        raise UsageError("model.kind=woven needs --tokenizer woven")
    if not is_woven:
        return config
    if kind == "flat":
        raise UsageError("model.kind=flat is for codes of faces; leave it out with --tokenizer woven")
    return config.changed({"model.kind": "woven"})


@dataclass(frozen=True)
class Scan:
    """A point cloud in the unit box, and where it was."""

    cloud: PointCloud
    placement: Placement

    def clouds(self, rng: ItemRNG, count: int) -> Tensor:
        """`count` random points for each item, (items, count, 6)."""
        items = (ItemRNG(rng.seed, [epoch], [item]) for epoch, item in zip(rng.epochs, rng.items, strict=True))
        settings = CloudSettings(count)
        return torch.stack([chosen_points(self.cloud.points, self.cloud.normals, item, settings) for item in items])

    def distance(self, mesh: Mesh) -> float:
        """The Chamfer distance of a mesh in the unit box, where the longest side of the scan is 1."""
        rows = spread(len(self.cloud.points), MEASURED)
        return compare_with_points(mesh, self.cloud.points[rows], self.cloud.normals[rows]).chamfer


def read_scan(points: str | Path | Mesh | ArrayLike) -> Scan:
    """The scan of a file of points or of a mesh, of a mesh, or of an array (n, 3), or (n, 6) with normals."""
    if isinstance(points, str | Path):
        cloud = read_points(points)
    elif isinstance(points, Mesh):
        cloud = sample_surface(points, MAX_POINTS)
    else:
        rows = np.asarray(points, np.float64)
        if rows.ndim != 2 or rows.shape[1] not in (3, 6):
            raise UnreadableItem(f"an array of shape {rows.shape} is neither (n, 3) nor (n, 6)")
        rows = rows[spread(len(rows), MAX_POINTS)]
        cloud = make_cloud(rows[:, :3], rows[:, 3:] if rows.shape[1] == 6 else None)
    return Scan(*normalise_cloud(cloud))


def _read_part(path: Path, bins: int) -> Mesh:
    """The cleaned faces of a file in canonical order.

    A full mesh is scaled to the unit box when it is read; a partial mesh is not, because its coordinates are its
    position in the box.
    """
    soup = read_soup(path)
    used = soup.vertices[np.unique(soup.faces)]
    if np.abs(used).max() > 1:
        low, high = used.min(), used.max()
        raise UnreadableItem(
            f"a partial mesh must be at its position in the box from -1 to 1; its coordinates are from {low:.3g} to "
            f"{high:.3g}"
        )
    part = clean(Mesh(soup.vertices, soup.faces), bins)
    if not len(part.faces):
        raise UnreadableItem(f"all of its faces are degenerate with {bins} bins per axis")
    return canonical(part, bins)
