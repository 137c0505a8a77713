"""Text to mesh on real bricks with `--tokenizer woven`: `benchmarks/bricks_woven.py FOLDER [--out FOLDER] [KEY=VALUE]`.

Trains a mesh transformer, split by the number of a part as in `benchmarks/bricks.py`, and generates one mesh for the
caption of each unseen part. Prints how many are finished and valid, how close their face counts are, and how often a
mesh is closer to the part that its caption names than a random other part is, or the nearest training part.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from quintet import cli
from quintet.common.rng import ItemRNG
from quintet.data.mesh import MeshFolder, mesh_folder_splits
from quintet.families.mesh_transformer.config import MeshTransformerConfig
from quintet.families.mesh_transformer.pipeline import MESHES_AT_ONCE, MeshTransformerPipeline
from quintet.media.image import write_image
from quintet.media.mesh import Mesh, canonical, clean, quantise
from quintet.media.mesh_measures import chamfer_distances, compare, is_valid, is_watertight, point_cloud
from quintet.media.mesh_render import contact_sheet
from quintet.media.mesh_weaving import unweave, weave
from quintet.pipelines.prompts import Prompts
from quintet.registry import read_config

SPLIT = ("data.validation_group=^([0-9]+)", "data.validation_fraction=0.1", "data.max_faces=400")
KEYS = ("model.max_faces=400", "model.text=words", "data.variants=32", "engine.launch=1", "eval.num_generated=0")
NEAREST = 8
"""Number of nearest training parts, by points, that are compared exactly."""
SHOWN = 16


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder")
    parser.add_argument("keys", nargs="*", metavar="KEY=VALUE", help="keys of the training")
    parser.add_argument("--out", type=Path, default=Path("runs/bricks-woven"))
    parser.add_argument("--budget", default="50m", help="time of the training")
    arguments = parser.parse_args()
    run = arguments.out / "transformer"
    if not (run / "config.yaml").exists():
        words = ("train", "mesh-transformer", arguments.folder, "--out", str(run), "--tokenizer", "woven")
        cli.call([*words, "--preset", "small", "--budget", arguments.budget, *SPLIT, *KEYS, *arguments.keys])
    report(run, arguments.out)


def report(run: Path, out: Path) -> None:
    config = read_config(run / "config.yaml")
    assert isinstance(config, MeshTransformerConfig)
    pipeline = MeshTransformerPipeline.from_pretrained(run)
    bins = pipeline.frozen["tokenizer"].model.bins
    splits = mesh_folder_splits(config.data, bins, config.data.max_faces)
    assert isinstance(splits.validation, MeshFolder)
    assert isinstance(splits.train, MeshFolder)
    unseen, known = meshes_of(splits.validation), meshes_of(splits.train)
    exact = sum(is_exact(mesh, bins) for mesh in [*unseen, *known])
    print(f"{len(known)} training parts, {len(unseen)} unseen; {exact} of all are exact after encoding and decoding")
    generate(pipeline, "unseen captions", splits.validation, unseen, known, out)
    generate(pipeline, "trained captions", splits.train, known, known, out)


def meshes_of(source: MeshFolder) -> list[Mesh]:
    return [source.mesh(item) for item in range(len(source))]


def is_exact(mesh: Mesh, bins: int) -> bool:
    """Whether the faces of the quantized mesh are the same after encoding and decoding, in any order."""
    mesh = canonical(clean(mesh, bins), bins)
    positions = quantise(mesh.vertices, bins)
    return triangles(*unweave(weave(positions, mesh.faces, bins), bins)) == triangles(positions, mesh.faces)


def triangles(positions: np.ndarray, faces: np.ndarray) -> list[tuple[int, ...]]:
    """The corners of each face, from its lowest one, sorted."""
    corners = positions[faces].tolist()
    turned = [[*face[face.index(min(face)) :], *face[: face.index(min(face))]] for face in corners]
    return sorted(tuple(value for corner in face for value in corner) for face in turned)


def generate(
    pipeline: MeshTransformerPipeline,
    title: str,
    source: MeshFolder,
    named: Sequence[Mesh],
    known: Sequence[Mesh],
    out: Path,
) -> None:
    count = min(len(named), 64)
    texts = [str(source.load(item, ItemRNG(0, [0], [item]))["texts"]) for item in range(count)]
    meshes, ended = generated_from(pipeline, texts)
    rng = np.random.default_rng(0)
    others = [int((item + rng.integers(1, len(named))) % len(named)) for item in range(count)]
    near = nearest(named[:count], known)
    distance = [compare(part, mesh).chamfer for part, mesh in zip(named, meshes, strict=False)]
    random = [compare(part, named[other]).chamfer for part, other in zip(named, others, strict=False)]
    sound = [is_valid(mesh) and end for mesh, end in zip(meshes, ended, strict=True)]
    close = [0.5 <= len(mesh.faces) / len(part.faces) <= 2 for mesh, part in zip(meshes, named, strict=False)]
    closed = [is_watertight(mesh) for mesh, part in zip(meshes, named, strict=False) if is_watertight(part)]
    print(f"{title}: {count} meshes")
    print(f"  finished and valid {np.mean(sound):.1%}, face count within a factor of 2 {np.mean(close):.1%}")
    print(f"  watertight where the part is: {sum(closed)} of {len(closed)}")
    print(f"  Chamfer distance to the named part {np.mean(distance):.4f}, median {np.median(distance):.4f}")
    print(f"  closer to it than a random part is {np.mean(np.less(distance, random)):.1%}")
    print(f"  closer to it than the nearest training part is {np.mean(np.less(distance, near)):.1%}")
    pairs = [mesh for pair in zip(named, meshes, strict=False) for mesh in pair][: 2 * SHOWN]
    write_image(contact_sheet(pairs, columns=8), out / f"{title.replace(' ', '-')}.png")


def generated_from(pipeline: MeshTransformerPipeline, texts: Sequence[str]) -> tuple[list[Mesh], list[bool]]:
    """One mesh for each text, and which of them ended with the end token."""
    meshes: list[Mesh] = []
    ended: list[bool] = []
    with pipeline.inference():
        for batch, rng in Prompts.of(texts, 1, 0).batches(MESHES_AT_ONCE):
            rows = pipeline.generate(batch, rng)
            meshes += pipeline.decode(rows.rows)
            ended += rows.ended.tolist()
    return meshes, ended


def nearest(parts: Sequence[Mesh], known: Sequence[Mesh]) -> list[float]:
    """Distance of each part to its nearest training part."""
    clouds = np.stack([point_cloud(mesh) for mesh in [*parts, *known]])
    distances = chamfer_distances(clouds)[: len(parts), len(parts) :]
    return [
        min(compare(mesh, known[number]).chamfer for number in np.argsort(row)[:NEAREST])
        for mesh, row in zip(parts, distances, strict=True)
    ]


if __name__ == "__main__":
    main()
