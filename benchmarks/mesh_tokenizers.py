"""Mesh tokenizers without training: `benchmarks/mesh_tokenizers.py [FOLDER of meshes ...] [--num 1000]`.

Prints, for synthetic solids and for each folder, what a face costs with `coordinates`, with `woven`, and with `woven`
if a vertex were two tokens, a block of 16 bins a side and the offset in it:

- tokens a face;
- PTME (per-token mesh entropy, 2505.13573), in bits: the entropy of single tokens, times the tokens per coordinate of
  the plain representation of nine a face; lower is better;
- bits a face after LZMA, which also finds repetition;
- for the rows of `woven`, the round trip, which must be exact, and the tokens by what they say.

Then the CPU time of encoding and decoding a closed mesh of 5,120 faces.
"""

from __future__ import annotations

import argparse
import lzma
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import numpy as np
import trimesh

from quintet.errors import UnreadableItem
from quintet.media.mesh import EXTENSIONS, Mesh, canonical, clean, normalise, quantise, read_mesh
from quintet.media.mesh_weaving import NUMBER, Vocabulary, Walk, unweave, weave
from quintet.synthetic.solids import draw_item

BINS = 128
BLOCK = 16
"""Bins along the side of a block."""
NAMES = ("coordinates", "woven", "woven, block + offset")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folders", nargs="*", type=Path)
    parser.add_argument("--num", type=int, default=1000, help="Number of solids, and most meshes of a folder.")
    arguments = parser.parse_args()
    report("solids", solids(arguments.num))
    for folder in arguments.folders:
        report(folder.name, files(folder, arguments.num))
    measure_time()


def solids(num: int) -> Iterator[Mesh]:
    for index in range(num):
        yield canonical(clean(normalise(draw_item(0, index).mesh), BINS), BINS)


def files(folder: Path, num: int) -> Iterator[Mesh]:
    for path in sorted(path for path in folder.rglob("*") if path.suffix.lower() in EXTENSIONS)[:num]:
        try:
            yield read_mesh(path, bins=BINS)
        except UnreadableItem as problem:
            print(f"{path}: {problem}")


def report(name: str, meshes: Iterable[Mesh]) -> None:
    rows: dict[str, list[list[int]]] = {each: [] for each in NAMES}
    faces = vertices = 0
    kinds: Counter[str] = Counter()
    for mesh in meshes:
        positions = quantise(mesh.vertices, BINS)
        tokens = weave(positions, mesh.faces, BINS)
        check(positions, mesh.faces, tokens)
        rows["coordinates"].append(positions[mesh.faces][..., ::-1].reshape(-1).tolist())
        rows["woven"].append(tokens)
        rows["woven, block + offset"].append(in_blocks(tokens))
        kinds.update(kind_of(token) for token in tokens)
        faces, vertices = faces + len(mesh.faces), vertices + len(mesh.vertices)
    print(f"\n{name}: {len(rows['woven'])} meshes, {faces} faces, {vertices / faces:.3f} vertices a face")
    print("| tokenizer | tokens a face | PTME (bits) | LZMA (bits a face) |")
    print("|---|---|---|---|")
    for each in NAMES:
        count = sum(map(len, rows[each]))
        ptme = entropy(rows[each]) * count / (9 * faces)
        print(f"| {each} | {count / faces:.2f} | {ptme:.2f} | {compressed_bits(rows[each]) / faces:.1f} |")
    print("tokens a face:", ", ".join(f"{kind} {count / faces:.3f}" for kind, count in kinds.most_common()))


def check(positions: np.ndarray, faces: np.ndarray, tokens: Sequence[int]) -> None:
    """Stop if the tokens are not the same faces with the same winding."""
    found, corners = unweave(tokens, BINS)
    if not np.array_equal(sorted_faces(found, corners), sorted_faces(positions, faces)):
        raise SystemExit("a mesh did not come back")


def sorted_faces(positions: np.ndarray, faces: np.ndarray) -> np.ndarray:
    keys = (positions @ np.array([1, BINS, BINS**2]))[faces]
    turned = (keys.argmin(axis=1)[:, None] + np.arange(3)) % 3
    keys = np.take_along_axis(keys, turned, axis=1)
    return keys[np.lexsort(keys.T[::-1])]


def kind_of(token: int) -> str:
    return ("next", "prev", "close", "link", "hole")[token - BINS] if token >= BINS else "coordinates"


def in_blocks(tokens: Sequence[int]) -> list[int]:
    """The row with two tokens a vertex: operations first, then blocks, then offsets."""
    walk, row, vertex = Walk(BINS), [], []
    side = BINS // BLOCK
    for token in tokens:
        if token >= BINS or walk.phase == NUMBER:
            row.append(token % BINS if walk.phase == NUMBER else token)
        else:
            vertex.append(token)
        walk.push(token)
        if len(vertex) == 3:
            blocks, offsets = np.divmod(vertex, BLOCK)
            first = Vocabulary(BINS).size
            row += [first + int(blocks @ [side**2, side, 1]), first + side**3 + int(offsets @ [BLOCK**2, BLOCK, 1])]
            vertex = []
    return row


def entropy(rows: Sequence[Sequence[int]]) -> float:
    """The entropy of single tokens, in bits."""
    counts = np.unique(np.concatenate([np.array(row) for row in rows]), return_counts=True)[1]
    chances = counts / counts.sum()
    return float(-(chances * np.log2(chances)).sum())


def compressed_bits(rows: Sequence[Sequence[int]]) -> int:
    joined = np.concatenate([np.array([*row, 2**16 - 1], np.uint16) for row in rows])
    return 8 * len(lzma.compress(joined.tobytes(), preset=9))


def measure_time() -> None:
    sphere = trimesh.creation.icosphere(4)
    mesh = canonical(clean(Mesh(sphere.vertices * 0.98, sphere.faces), 1024), 1024)
    positions = quantise(mesh.vertices, 1024)
    encode: list[float] = []
    decode: list[float] = []
    for _ in range(7):
        start = time.process_time()
        tokens = weave(positions, mesh.faces, 1024)
        middle = time.process_time()
        unweave(tokens, 1024)
        encode.append(middle - start)
        decode.append(time.process_time() - middle)
    per_face = len(tokens) / len(mesh.faces)
    print(f"\n{len(mesh.faces)} faces, 1,024 bins: {per_face:.2f} tokens a face, CPU seconds:")
    print(f"encode {np.median(encode):.3f}, decode {np.median(decode):.3f}")


if __name__ == "__main__":
    main()
