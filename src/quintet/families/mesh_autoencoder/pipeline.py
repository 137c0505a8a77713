"""`MeshAutoencoderPipeline`: meshes to codes and back, with a trained tokenizer or quantized coordinates."""

from __future__ import annotations

from functools import partial

import numpy as np
import torch
from torch import Tensor, nn

from quintet.common.artifact import Artifact
from quintet.common.batch import Batch, Collate
from quintet.data.mesh import mesh_folder_splits
from quintet.data.splits import Splits
from quintet.errors import UsageError
from quintet.families.mesh_autoencoder.config import MeshAutoencoderConfig
from quintet.families.mesh_autoencoder.coordinates import CoordinateTokenizer
from quintet.families.mesh_autoencoder.model import MeshAutoencoder
from quintet.families.mesh_autoencoder.packed import collate, meshes_of, pad_rows
from quintet.families.mesh_autoencoder.woven import WovenTokenizer
from quintet.media.mesh import Mesh, canonical, clean, write_mesh
from quintet.media.mesh_measures import as_triangles, merge_vertices
from quintet.pipelines.base import Frozen, Tokenizer

KINDS: dict[str, type[MeshAutoencoder] | type[CoordinateTokenizer] | type[WovenTokenizer]] = {
    "learned": MeshAutoencoder,
    "coordinates": CoordinateTokenizer,
    "woven": WovenTokenizer,
}


class MeshAutoencoderPipeline(Tokenizer[MeshAutoencoderConfig]):
    """A mesh tokenizer: encodes meshes to codes and decodes codes to meshes.

    tokenizer = MeshAutoencoderPipeline.from_pretrained("runs/tok")  # or "coordinates", which needs no training
    mesh = read_mesh("table.obj", bins=tokenizer.autoencoder.bins)
    (again,) = tokenizer.decode(tokenizer.encode(mesh.vertices, mesh.faces))
    """

    recipe = "mesh-autoencoder"
    exported = "autoencoder"

    @classmethod
    def build_modules(cls, config: MeshAutoencoderConfig, frozen: Frozen) -> dict[str, nn.Module]:
        return {"autoencoder": KINDS[config.model.kind](config.model)}

    @property
    def autoencoder(self) -> MeshAutoencoder | CoordinateTokenizer | WovenTokenizer:
        model = self.modules["autoencoder"]
        assert isinstance(model, MeshAutoencoder | CoordinateTokenizer | WovenTokenizer)
        return model

    def encode(self, vertices: Tensor | np.ndarray, faces: Tensor | np.ndarray) -> Tensor:
        """Codes (faces, tokens_per_face) of a mesh: vertices (n, 3) in [-1, 1] and faces (m, vertices_per_face).

        Or of a padded batch with one axis more, in which padding faces and their codes are -1. Codes depend on the
        order of the faces: `read_mesh` returns the canonical order that the model was trained on.
        """
        with self.inference():
            vertices, faces = torch.as_tensor(vertices), torch.as_tensor(faces)
            _check_mesh(vertices, faces, self.autoencoder.vertices_per_face)
            return self.autoencoder.tokenize(vertices.to(self.device, self.dtype), faces.to(self.device, torch.int64))

    def decode(self, codes: Tensor) -> list[Mesh]:
        """Triangle meshes in canonical order, of codes (faces, tokens_per_face) or (meshes, faces, tokens_per_face),
        padded with -1."""
        with self.inference():
            codes = self.checked_codes(codes)
            return self._decode(codes[None] if codes.ndim == 2 else codes)

    def splits(self) -> Splits:
        data, model = self.config.data, self.config.model
        return mesh_folder_splits(
            data,
            model.bins,
            data.max_faces,
            decimate=data.decimate,
            augment=data.augment,
            corners=model.vertices_per_face,
            memory_megabytes=data.memory_megabytes,
        )

    @property
    def collate(self) -> Collate:
        return collate

    def encode_batch(self, batch: Batch) -> Tensor:
        """Codes (batch, faces, tokens_per_face) of a batch, padded with -1."""
        return pad_rows(self.autoencoder.encode_rows(meshes_of(batch)))

    def decode_files(self, codes: Tensor, name: str) -> list[Artifact]:
        return [
            Artifact(f"{name}.glb" if len(codes) == 1 else f"{name}-{number}.glb", partial(write_mesh, mesh))
            for number, mesh in enumerate(self._decode(codes))
        ]

    def reconstruct(self, batch: Batch) -> list[Mesh]:
        """The reconstructions of the meshes of a batch."""
        return self._decode(self.encode_batch(batch))

    def _decode(self, codes: Tensor) -> list[Mesh]:
        """The meshes of codes (meshes, faces, tokens_per_face), padded with -1."""
        if codes.ndim != 3:
            raise UsageError(f"codes must have the shape (meshes, faces, tokens_per_face), not {tuple(codes.shape)}")
        model = self.autoencoder
        corners = model.decode_rows([row[(row >= 0).all(-1)] for row in codes])
        return [_tidy(merge_vertices(each.cpu().numpy(), model.bins), model.bins) for each in corners]


def _check_mesh(vertices: Tensor, faces: Tensor, corners: int) -> None:
    """`UsageError` unless these are the vertices and faces of one mesh, or of a padded batch."""
    matching = vertices.ndim == faces.ndim and vertices.ndim in (2, 3) and vertices.shape[:-2] == faces.shape[:-2]
    if (
        not matching
        or vertices.shape[-1] != 3
        or faces.shape[-1] != corners
        or not vertices.numel()
        or not faces.numel()
    ):
        raise UsageError(
            f"a mesh has vertices of shape (n, 3) and faces of shape (m, {corners}), or both with a batch axis, not "
            f"{tuple(vertices.shape)} and {tuple(faces.shape)}"
        )
    if faces.is_floating_point() or faces.dtype == torch.bool:
        raise UsageError(f"faces are indices of vertices, not {str(faces.dtype).removeprefix('torch.')} values")
    lowest = 0 if vertices.ndim == 2 else -1
    if int(faces.min()) < lowest or int(faces.max()) >= vertices.shape[-2]:
        raise UsageError(
            f"faces are indices of {vertices.shape[-2]} vertices, not {int(faces.min())} to {int(faces.max())}"
        )


def _tidy(mesh: Mesh, bins: int) -> Mesh:
    """The cleaned mesh in canonical order; unchanged if all faces are degenerate, so that there is something to see."""
    triangles = Mesh(mesh.vertices, as_triangles(mesh.faces))
    cleaned = clean(triangles, bins)
    return canonical(cleaned, bins) if len(cleaned.faces) else triangles
