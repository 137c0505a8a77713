"""Long woven meshes on a CPU: `benchmarks/long_meshes.py [--faces 4000] [--window 128] [--full]`.

Generates one mesh of thousands of faces with a model for 128 faces (`model.max_faces`, `loss.window_faces`) and a
sliding window, and prints at 500, 1,000, 2,000 … faces, for the part since the line before: CPU milliseconds a token,
and the part of them in the grammar and the states; the size of the KV cache; the memory of the process. `--full` gives
the model a cache of all tokens instead, as without a window.

The model of the default size is untrained. The bias of its output makes about as many tokens close faces as in real
meshes, and does not let the mesh end before the grammar closes it. Then checks that the mesh is a closed manifold.
"""

from __future__ import annotations

import argparse
import resource
import time
from pathlib import Path

import torch
from torch import Tensor

from quintet.common.rng import ItemRNG
from quintet.families.mesh_transformer.model import MeshTransformer
from quintet.families.mesh_transformer.woven_decoding import WovenDecoding
from quintet.media.mesh import Mesh, dequantise
from quintet.media.mesh_measures import is_valid, is_watertight
from quintet.media.mesh_topology import count_components, is_manifold
from quintet.media.mesh_weaving import Vocabulary, unweave
from quintet.sampling import autoregressive
from quintet.sampling.autoregressive import Sampling

BINS = 128
MARKS = (500, 1000, 2000, 4000, 8000, 16_000)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--faces", type=int, default=4000, help="Most faces of the mesh.")
    parser.add_argument("--window", type=int, default=128, help="loss.window_faces.")
    parser.add_argument("--full", action="store_true", help="Without a window: the cache holds all tokens.")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    model = untrained(arguments.faces if arguments.full else arguments.window)
    window = None if arguments.full else model.config.max_tokens(arguments.window)
    print(f"window: {'all' if window is None else window} tokens")
    check(generate(model, arguments.faces, window))


def untrained(max_faces: int) -> MeshTransformer:
    torch.manual_seed(0)
    words = Vocabulary(BINS)
    model = MeshTransformer(kind="woven", num_codes=words.size, tokens_per_face=1, max_faces=max_faces, text="none")
    with torch.no_grad():
        model.to_logits.bias[[words.next, words.prev]] = 5
        model.to_logits.bias[words.size] = -100  # the end token
    return model.eval()


class Measured(WovenDecoding):
    """Prints a line when the mesh has as many faces as one of `MARKS`."""

    automaton_seconds = 0.0
    num_tokens = 0

    def measure(self) -> None:
        self.marks = list(MARKS)
        self.start_of_part = (time.process_time(), 0, 0.0)
        print("| faces | tokens | CPU ms a token | of them grammar and states | KV cache (MB) | memory; peak (MB) |")
        print("|---|---|---|---|---|---|")

    def advance(self, tokens: Tensor) -> Tensor:
        self.num_tokens += tokens.shape[1]
        faces = len(self.rows[0].automaton.walk.surface.faces)
        if self.marks and faces >= self.marks[0]:
            self.report(self.marks.pop(0))
        return super().advance(tokens)

    def legal(self, tokens: Tensor) -> Tensor:
        start = time.process_time()
        found = super().legal(tokens)
        self.automaton_seconds += time.process_time() - start
        return found

    def report(self, faces: int) -> None:
        now = (time.process_time(), self.num_tokens, self.automaton_seconds)
        seconds, count, automaton = (new - old for new, old in zip(now, self.start_of_part, strict=True))
        self.start_of_part = now
        cache = sum(layer.keys.nbytes + layer.values.nbytes for layer in self.cache.layers) / 1e6
        current = int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize() / 1e6
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / 1e6
        each = 1000 / count
        print(
            f"| {faces} | {self.num_tokens} | {each * seconds:.2f} | {each * automaton:.2f} | {cache:.1f} | "
            f"{current:.0f}; {peak:.0f} |",
            flush=True,
        )


def generate(model: MeshTransformer, faces: int, window: int | None) -> list[int]:
    decoding = Measured(model, faces, holes=False, is_guided=False, window=window)
    decoding.measure()
    decoded = autoregressive.decode(
        decoding.begin,
        torch.empty(1, 0, dtype=torch.int64),
        torch.zeros(1, dtype=torch.int64),
        end_id=model.end_id,
        max_length=model.config.max_tokens(faces),
        rng=ItemRNG(0, [0], [0]),
        settings=Sampling(),
        cond={},
        legal=decoding.legal,
    )
    decoding.report(len(decoding.rows[0].automaton.walk.surface.faces))
    assert decoded.ended.all()
    return decoded.tokens[0, : int(decoded.lengths[0])].tolist()


def check(tokens: list[int]) -> None:
    positions, faces = unweave(tokens, BINS)
    mesh = Mesh(dequantise(positions, BINS), faces)
    found = {"valid": is_valid(mesh), "watertight": is_watertight(mesh), "manifold": is_manifold(mesh)}
    print(f"{len(faces)} faces, {len(tokens) / len(faces):.2f} tokens a face, {count_components(mesh)} parts, {found}")
    if not all(found.values()):
        raise SystemExit("the mesh is not a closed manifold")


if __name__ == "__main__":
    main()
