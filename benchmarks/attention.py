"""Attention on a CPU, by torch's kernel and by plain products: `benchmarks/attention.py`. One thread, CPU milliseconds.

Sizes of the models here. `nn/transformer.py` takes the quicker way by what this shows.
"""

from __future__ import annotations

import time
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

from quintet.nn.attention import cpu_bf16_attention

SIZES = ((16, 4, 80, 80, 32), (4, 4, 320, 32, 64), (4, 4, 250, 250, 64), (4, 4, 320, 320, 64), (4, 4, 1024, 1024, 64))
"""(batch, heads, queries, keys, width of a head)"""
CALLS = 10


def milliseconds(attend: Callable[[Tensor, Tensor, Tensor], Tensor], vectors: list[Tensor], learn: bool) -> float:
    """Of one call, with its gradients if it learns."""
    began = 0.0
    with torch.set_grad_enabled(learn):
        for call in range(CALLS + 2):
            if call == 2:  # the first ones make memory ready
                began = time.process_time()
            made = attend(*vectors)
            if learn:
                made.sum().backward()  # type: ignore[no-untyped-call]
    return (time.process_time() - began) / CALLS * 1000


def main() -> None:
    torch.set_num_threads(1)
    ways = {
        "kernel": F.scaled_dot_product_attention,
        "products": lambda queries, keys, values: cpu_bf16_attention(queries, keys, values, None),
    }
    print("| precision, size | way | forward, ms | forward and backward, ms |\n|---|---|---|---|")
    for precision in (torch.float32, torch.bfloat16):
        for batch, heads, queries, keys, width in SIZES:
            # As the model has them: heads beside each other in memory.
            vectors = [
                torch.randn(batch, places, heads, width, dtype=precision).transpose(1, 2).requires_grad_()
                for places in (queries, keys, keys)
            ]
            for name, attend in ways.items():
                alone, both = (milliseconds(attend, vectors, learn) for learn in (False, True))
                print(f"| {precision}, {queries} x {keys} x {width} | {name} | {alone:.2f} | {both:.2f} |")


if __name__ == "__main__":
    main()
