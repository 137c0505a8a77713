"""Compares a VQ-GAN training step with muse-maskgit-pytorch 0.3.5: `make bench-vqgan`.

dim 32, 4 downsamplings, LFQ 1024, 128 pixels, batch 4, generator and discriminator step, one thread.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from side_by_side import HERE, Contender, interleave, record, table, vision_peer


def contenders(precisions: list[str]) -> tuple[list[Contender], dict[str, str]]:
    peer_python = vision_peer()
    chosen: list[Contender] = []
    against: dict[str, str] = {}
    for precision in precisions:
        peer = Contender(f"peer {precision}", peer_python, "peers/vqgan_peer.py", (precision,))
        same = Contender(f"ours, same algorithm, {precision}", sys.executable, "vqgan_ours.py", ("same", precision))
        ours = Contender(f"ours, our recipe, {precision}", sys.executable, "vqgan_ours.py", ("recipe", precision))
        chosen += [peer, same, ours]
        against |= {same.name: peer.name, ours.name: peer.name}
    return chosen, against


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=12)
    parser.add_argument("--warmup", type=int, default=3)
    parser.add_argument("--precisions", nargs="+", default=["fp32", "bf16"])
    parser.add_argument("--out", type=Path, default=HERE / "results" / "vqgan.json")
    arguments = parser.parse_args()
    chosen, against = contenders(arguments.precisions)
    interleave(chosen, arguments.warmup, arguments.rounds)
    record(chosen, arguments.out)
    print(table(chosen, against))
    print(f"raw results: {arguments.out}")


if __name__ == "__main__":
    main()
