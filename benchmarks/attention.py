"""Attention on a CPU with torch's kernel and with matrix products: `benchmarks/attention.py`. One thread, CPU time.

The sizes are those of the models. `nn/transformer.py` uses the faster implementation for each precision.
"""

from __future__ import annotations

import time
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

from quintet.nn.attention import cpu_bf16_attention

SIZES = ((16, 4, 80, 80, 32), (4, 4, 320, 32, 64), (4, 4, 250, 250, 64), (4, 4, 320, 320, 64), (4, 4, 1024, 1024, 64))
"""(batch, heads, queries, keys, dimension of a head)"""
CALLS = 10


def milliseconds(attend: Callable[[Tensor, Tensor, Tensor], Tensor], vectors: list[Tensor], backward: bool) -> float:
    """CPU milliseconds of one call, optionally with its backward pass."""
    start_time = 0.0
    with torch.set_grad_enabled(backward):
        for call in range(CALLS + 2):
            if call == 2:  # warm-up
                start_time = time.process_time()
            output = attend(*vectors)
            if backward:
                output.sum().backward()  # type: ignore[no-untyped-call]
    return (time.process_time() - start_time) / CALLS * 1000


def main() -> None:
    torch.set_num_threads(1)
    implementations = {
        "kernel": F.scaled_dot_product_attention,
        "products": lambda queries, keys, values: cpu_bf16_attention(queries, keys, values, None),
    }
    print("| precision, size | implementation | forward, ms | forward and backward, ms |\n|---|---|---|---|")
    for precision in (torch.float32, torch.bfloat16):
        for batch, heads, queries, keys, width in SIZES:
            # With the memory layout of the model: heads next to each other.
            vectors = [
                torch.randn(batch, length, heads, width, dtype=precision).transpose(1, 2).requires_grad_()
                for length in (queries, keys, keys)
            ]
            for name, attend in implementations.items():
                forward, both = (milliseconds(attend, vectors, backward) for backward in (False, True))
                print(f"| {precision}, {queries} x {keys} x {width} | {name} | {forward:.2f} | {both:.2f} |")


if __name__ == "__main__":
    main()
