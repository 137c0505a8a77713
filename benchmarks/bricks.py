"""Meshes of real bricks: `benchmarks/bricks.py FOLDER [--out FOLDER] [--steps 700] [--minutes 12]`.

Trains the learned tokenizer, and a generator on plain coordinates. Parts are split by their number, so that no variant
of a part is in both splits. Prints the distance of unseen parts to their reconstructions by both tokenizers, and to the
nearest training part: a tokenizer that has memorized its training parts is no better than that.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from quintet import cli
from quintet.common.batch import Batch
from quintet.common.rng import ItemRNG
from quintet.data.mesh import MeshFolder, mesh_folder_splits
from quintet.data.splits import Splits
from quintet.families.mesh_autoencoder.config import MeshAutoencoderConfig
from quintet.families.mesh_autoencoder.pipeline import MeshAutoencoderPipeline
from quintet.media.image import write_image
from quintet.media.mesh import Mesh
from quintet.media.mesh_measures import chamfer_distances, compare, point_cloud
from quintet.media.mesh_render import contact_sheet
from quintet.registry import read_config

SPLIT = ("data.validation_group=^([0-9]+)", "data.validation_fraction=0.1", "data.max_faces=400")
NEAREST = 8
"""Number of nearest training parts, by points, that are compared exactly."""
SHOWN = 16
TEXTS = ("Brick 2 x 4", "Plate 1 x 2", "Slope Brick 45 2 x 2", "Minifig Hat")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder")
    parser.add_argument("--out", type=Path, default=Path("runs/bricks"))
    parser.add_argument("--steps", type=int, default=700, help="Number of steps of each model.")
    parser.add_argument("--minutes", type=float, default=12, help="Maximum minutes of training of each model.")
    arguments = parser.parse_args()
    learned, generator = arguments.out / "tokenizer", arguments.out / "transformer"
    limits = (f"train.steps={arguments.steps}", f"train.minutes={arguments.minutes}")
    call("train", "mesh-autoencoder", arguments.folder, "--out", str(learned), "--preset", "small", *SPLIT, *limits)
    call("eval", str(learned))
    call(
        *("train", "mesh-transformer", arguments.folder, "--out", str(generator), "--preset", "small"),
        *("--tokenizer", "coordinates", "model.max_faces=400", *SPLIT, *limits),
    )
    call("eval", str(generator))
    texts = [word for text in TEXTS for word in ("--text", text)]
    call("sample", str(generator), *texts, "--num", "4", "--out", str(arguments.out / "made"))
    report(learned, generator, arguments.out)


def call(*words: str) -> None:
    print("$ quintet", *words, flush=True)
    cli.call(words)


def report(learned: Path, generator: Path, out: Path) -> None:
    config = read_config(learned / "config.yaml")
    assert isinstance(config, MeshAutoencoderConfig)
    splits = mesh_folder_splits(config.data, config.model.bins, config.data.max_faces)
    unseen, known = meshes_of(splits.validation), meshes_of(splits.train)
    print(f"{len(known)} training parts, {len(unseen)} unseen parts; Chamfer distances, longest side 1")
    reconstructed = {name: reconstructions(name, splits) for name in (str(learned), f"coordinates:{config.model.bins}")}
    for name, meshes in reconstructed.items():
        distances = [compare(one, other).chamfer for one, other in zip(unseen, meshes, strict=True)]
        print(f"{Path(name).name:<24} {np.mean(distances):.5f} (median {np.median(distances):.5f})")
    distances = nearest(unseen, known)
    print(f"{'nearest training part':<24} {np.mean(distances):.5f} (median {np.median(distances):.5f})")
    print(json.dumps(json.loads((generator / "eval.json").read_text(encoding="utf-8")), indent=1))
    pairs = [mesh for pair in zip(unseen, reconstructed[str(learned)], strict=True) for mesh in pair][: 2 * SHOWN]
    write_image(contact_sheet(pairs, columns=8), out / "reconstructions.png")


def meshes_of(source: object) -> list[Mesh]:
    assert isinstance(source, MeshFolder)
    return [source.mesh(item) for item in range(len(source))]


def reconstructions(name: str, splits: Splits) -> list[Mesh]:
    """Reconstructions of the unseen parts by a tokenizer."""
    tokenizer, source = MeshAutoencoderPipeline.from_pretrained(name), splits.validation
    meshes: list[Mesh] = []
    with tokenizer.inference():
        for item in range(len(source)):
            rng = ItemRNG(0, [0], [item])
            batch = Batch(tokenizer.collate([source.load(item, rng)]), (source.name(item),), rng)
            meshes += tokenizer.reconstruct(batch)
    return meshes


def nearest(unseen: Sequence[Mesh], known: Sequence[Mesh]) -> list[float]:
    """Distance of each unseen part to its nearest training part."""
    clouds = np.stack([point_cloud(mesh) for mesh in [*unseen, *known]])
    distances = chamfer_distances(clouds)[: len(unseen), len(unseen) :]
    return [
        min(compare(mesh, known[number]).chamfer for number in np.argsort(row)[:NEAREST])
        for mesh, row in zip(unseen, distances, strict=True)
    ]


if __name__ == "__main__":
    main()
