"""`MeshTransformerPipeline`: text to mesh."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from quintet.common.artifact import Artifact
from quintet.common.rng import ItemRNG
from quintet.errors import UnreadableItem, UsageError
from quintet.families.mesh_transformer.config import MeshTransformerConfig, MeshTransformerOptions
from quintet.families.mesh_transformer.grammar import CanonicalCoordinates
from quintet.families.mesh_transformer.model import Generated, MeshTransformer
from quintet.media.image import write_image
from quintet.media.mesh import Mesh, canonical, clean, write_mesh
from quintet.media.mesh_formats import read_soup
from quintet.media.mesh_measures import as_triangles, merge_vertices
from quintet.media.mesh_render import contact_sheet
from quintet.pipelines.base import Frozen, Tokenizer
from quintet.pipelines.prompts import Prompts, TextGenerator, check_prompts, sample_record
from quintet.sampling.autoregressive import Legal, Sampling

MESHES_AT_ONCE = 32
RENDERED = 192
"""Pixels of one mesh in a sheet."""


class MeshTransformerPipeline(TextGenerator[MeshTransformerConfig]):
    """Text to mesh; can complete a partial mesh.

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
            raise UsageError("mesh-transformer needs a mesh tokenizer: set --tokenizer RUN or --tokenizer coordinates")
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

    def __call__(
        self,
        prompts: str | Sequence[str] = (),
        *,
        negative_prompt: str | None = None,
        num: int = 1,
        seed: int = 0,
        mesh: str | Path | None = None,
    ) -> list[Mesh]:
        """Meshes, `num` per prompt, with `vertices` in [-1, 1] and triangles as `faces`; nothing is repaired.

        `mesh` is a file with the first faces of all of them, at their position in the box from -1 to 1.
        """
        return self._run(Prompts.of(prompts, num, seed), negative_prompt, mesh)[0]

    def files(self, prompts: Sequence[str], options: MeshTransformerOptions) -> list[Artifact]:
        """Each mesh in two formats, and a sheet of renderings of all meshes."""
        requested = Prompts.of(prompts, options.num, options.seed)
        meshes, ended = self._run(requested, options.negative_prompt, options.mesh)
        common = sample_record(self.config.sample, options.seed, negative=options.negative_prompt, mesh=options.mesh)
        sheet = contact_sheet(meshes, columns=min(8, len(meshes)), size=RENDERED)
        artifacts = [Artifact("sheet.png", partial(write_image, sheet), {"texts": requested.items, **common})]
        for number, (mesh, text) in enumerate(zip(meshes, requested.items, strict=True)):
            metadata = {"text": text, "number": number, "faces": len(mesh.faces), "ended": ended[number], **common}
            artifacts += [
                Artifact(f"{number:03d}.{suffix}", partial(write_mesh, mesh), metadata) for suffix in ("glb", "obj")
            ]
        return artifacts

    def _run(self, requested: Prompts, negative: str | None, mesh: str | Path | None) -> tuple[list[Mesh], list[bool]]:
        """The meshes, and which of them ended with the end token."""
        check_prompts(
            self.config.model, requested.texts, negative, self.config.sample.guidance_scale, self.guidance_scale
        )
        meshes: list[Mesh] = []
        ended: list[bool] = []
        with self.inference():
            part = None if mesh is None else self._encode_part(Path(mesh))
            for texts, rng in requested.batches(MESHES_AT_ONCE):
                generated = self.generate(texts, rng, negative, part, self.grammar())
                meshes += self.decode(generated.rows)
                ended += generated.ended.tolist()
        return meshes, ended

    def generate(
        self,
        texts: Sequence[str],
        rng: ItemRNG,
        negative: str | None = None,
        part: Tensor | None = None,
        legal: Legal | None = None,
        embeddings: tuple[Tensor, Tensor] | None = None,
    ) -> Generated:
        """Codes of one batch of texts, or of text embeddings, with the random numbers of its items.

        `part` (faces, tokens_per_face) are the codes that all meshes start with.
        """
        config = self.config.sample
        return self.transformer.generate(
            [""] * len(texts) if self.unconditional else texts,
            rng,
            Sampling(config.temperature, config.top_k, config.top_p, self.guidance_scale),
            negative=negative,
            embeddings=embeddings,
            face_counts=[config.faces] * len(texts) if config.faces else None,
            prompts=None if part is None else [part] * len(texts),
            max_faces=config.max_faces,
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
    if config.loss.window_faces is not None:
        raise UsageError("loss.window_faces cuts meshes between faces; leave it out with --tokenizer woven")
    return config.changed({"model.kind": "woven"})


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
