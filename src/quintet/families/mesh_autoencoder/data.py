"""Meshes as the mesh tokenizers read them: folders of meshes, and batches without padding."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from quintet.common.batch import Batch, Item
from quintet.data.mesh import mesh_folder_splits
from quintet.data.splits import Splits
from quintet.families.mesh_autoencoder.config import MeshAutoencoderConfig
from quintet.families.mesh_autoencoder.packed import Meshes, pack


def mesh_splits(config: MeshAutoencoderConfig) -> Splits:
    data, model = config.data, config.model
    return mesh_folder_splits(
        data,
        model.bins,
        data.max_faces,
        decimate=data.decimate,
        augment=data.augment,
        corners=model.vertices_per_face,
        memory_megabytes=data.memory_megabytes,
    )


def collate(items: Sequence[Item]) -> dict[str, Any]:
    """The fields of a batch. `reach`, one row an item, is where the loop finds the item with a non-finite number.

    Packed, so meshes of all sizes share a batch without waste; batches of similar length would gain nothing.
    """
    meshes = pack([item["vertices"] for item in items], [item["faces"] for item in items])
    fields: dict[str, Any] = {
        "vertices": meshes.vertices,
        "faces": meshes.faces,
        "edges": meshes.edges,
        "vertex_counts": meshes.vertex_counts,
        "face_counts": meshes.face_counts,
        "reach": torch.stack([item["vertices"].abs().amax(0) for item in items]),
    }
    others = [name for name in items[0] if name not in ("vertices", "faces")]
    return {**fields, **{name: [item[name] for item in items] for name in others}}


def meshes_of(batch: Batch) -> Meshes:
    return Meshes(batch["vertices"], batch["faces"], batch["edges"], batch["vertex_counts"], batch["face_counts"])
