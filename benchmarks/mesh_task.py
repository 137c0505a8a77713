"""Definitions shared by both sides of the mesh benchmarks: sizes, meshes, codes, and the validation loss.

Imported by workers in several environments, so it depends only on torch and safetensors.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import torch
import torch.nn.functional as F
from safetensors.torch import load_file
from torch import Tensor

import loss_task

BINS, CODES, LEVELS = 128, 1024, 2
CORNERS = 3
TOKENS_PER_FACE = CORNERS * LEVELS
CLIP = 0.5
"""Maximum gradient norm of the transformers, as in the peer's trainer."""

# The autoencoder
COORDINATE_DIM, NORMAL_DIM, SMALL_DIM = 32, 32, 16
"""Dimensions of embeddings; the last one is for angles and area."""
ENCODER = (64, 128, 256)
CODE_DIM = 96
DECODER = (128,) * 4 + (192,) * 4
MESHES, MESH_FACES = 4, 128

# The transformer
DIM, DEPTH, FINE_DEPTH, HEADS = 256, 6, 2, 8
GATE_LOOPS = 2
"""Number of gate loops of the peer before each of its stages."""
MAX_FACES = 128
ROWS, ROW_FACES = 2, 64
GENERATED_FACES = 64

# Adjacency
GRID = (50, 50)
"""Grid of the torus of 5000 faces."""

# Training for a fixed time
TRAIN_BATCH = 8
BETAS = (0.9, 0.99)
HELD_OUT = 96
"""Meshes on which the loss is measured."""
MEASURED_TOGETHER = 16

Predict = Callable[[Tensor], Tensor]
"""From codes (batch, faces, tokens per face) to logits of every token and of the end token."""


# --- meshes ---------------------------------------------------------------------------------------------------------


def torus(around: int, across: int, thickness: float, size: Tensor) -> tuple[Tensor, Tensor]:
    """Vertices and faces of a closed mesh of 2 * around * across triangles, in canonical order."""
    turns, rolls = (torch.arange(count) * (2 * math.pi / count) for count in (around, across))
    radius = 1 + thickness * rolls.cos()
    ring = torch.stack([turns.cos(), turns.sin()], dim=-1)
    flat = ring[:, None] * radius[None, :, None]
    height = (thickness * rolls.sin()).expand(around, -1)[..., None]
    vertices = (torch.cat([flat, height], dim=-1) * size).view(-1, 3)
    vertices = vertices * (0.95 / vertices.abs().max())
    here = torch.arange(around * across).view(around, across)
    right, up = here.roll(-1, 0), here.roll(-1, 1)
    over = right.roll(-1, 1)
    faces = torch.cat([torch.stack(corners, dim=-1).view(-1, 3) for corners in ((here, right, over), (here, over, up))])
    return canonical(vertices, faces)


def canonical(vertices: Tensor, faces: Tensor) -> tuple[Tensor, Tensor]:
    """Vertices sorted by z, y, x; each face from its lowest vertex on; faces sorted."""
    order = sorted(range(len(vertices)), key=lambda number: vertices[number].flip(0).tolist())
    ranks = torch.empty(len(order), dtype=torch.int64)
    ranks[order] = torch.arange(len(order))
    rows = [row[low:] + row[:low] for row in ranks[faces].tolist() for low in [row.index(min(row))]]
    return vertices[order], torch.tensor(sorted(rows))


def meshes() -> tuple[Tensor, Tensor]:
    """A batch of tori, (meshes, vertices, 3) and (meshes, faces, 3), of equal size, so that there is no padding."""
    generator = torch.Generator().manual_seed(0)
    tori = []
    for _ in range(MESHES):
        numbers = torch.rand(4, generator=generator)
        tori.append(torus(MESH_FACES // 16, 8, 0.2 + 0.3 * numbers[3].item(), 0.5 + 0.5 * numbers[:3]))
    vertices, faces = zip(*tori, strict=True)
    return torch.stack(vertices), torch.stack(faces)


def large_mesh() -> tuple[Tensor, Tensor]:
    return torus(*GRID, 0.4, torch.ones(3))


def random_codes() -> Tensor:
    """Random codes (rows, faces, tokens per face)."""
    generator = torch.Generator().manual_seed(0)
    return torch.randint(0, CODES, (ROWS, ROW_FACES, TOKENS_PER_FACE), generator=generator)


# --- codes of meshes ------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Task:
    """Codes (meshes, faces, tokens per face) for training and validation, padded with -1."""

    train: Tensor
    held_out: Tensor

    @property
    def digest(self) -> str:
        """Must be equal for all workers, otherwise their results are not comparable."""
        return loss_task.digest_of([self.train, self.held_out], [])

    def batches(self) -> Iterator[Tensor]:
        """Endless batches, the same for both sides, padded to the longest mesh of the batch."""
        generator = torch.Generator().manual_seed(0)
        while True:
            for numbers in torch.split(torch.randperm(len(self.train), generator=generator), TRAIN_BATCH):
                codes = self.train[numbers]
                yield codes[:, : int(lengths_of(codes).max())]


def read_task(path: Path) -> Task:
    """Read the file written by `mesh.py`."""
    found = load_file(path)
    return Task(found["train"].long(), found["held_out"].long())


def lengths_of(codes: Tensor) -> Tensor:
    """Number of faces of each mesh (meshes,)."""
    return (codes[..., 0] >= 0).sum(1)


@torch.no_grad()
def validation_loss(predict: Predict, task: Task) -> dict[str, float]:
    """Cross-entropy per token, including the end token; in batches of equal length, so that there is no padding."""
    by_length: dict[int, list[Tensor]] = defaultdict(list)
    for codes, length in zip(task.held_out, lengths_of(task.held_out).tolist(), strict=True):
        by_length[length].append(codes[:length])
    total, count = 0.0, 0
    for rows in by_length.values():
        for codes in torch.split(torch.stack(rows), MEASURED_TOGETHER):
            targets = F.pad(codes.flatten(1), (0, 1), value=CODES)
            total += F.cross_entropy(predict(codes).flatten(0, 1), targets.flatten(), reduction="sum").item()
            count += targets.numel()
    return {"loss": total / count}
