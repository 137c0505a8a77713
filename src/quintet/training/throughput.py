"""`Throughput`: tokens and FLOPs of training steps, for tokens per second, FLOP/s and the fraction of the peak (MFU).

FLOPs are counted, not derived from a formula per model: `FlopCounter` adds up the matrix products, convolutions and
attention that a step runs, forward and backward. Counting delays a step a little, so only some steps are counted, ever
more rarely, and the others are estimated from them. The optimizer is not counted: the field counts model FLOPs.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.utils import flop_counter
from torch.utils._python_dispatch import TorchDispatchMode

from quintet.common import collectives

aten = torch.ops.aten


class FlopCounter(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Counts the FLOPs of all operations that run inside of it.

    Every operation runs as it is, so that results do not change by a byte. `FlopCounterMode` of torch would decompose
    operations and hook into all modules, and it has no formula for the attention of a CPU.
    """

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.flops = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        result = func(*args, **kwargs)
        formula = FORMULAS.get(func._overloadpacket)
        if formula is not None:
            self.flops += formula(*args, **kwargs, out_val=result)
        return result


def _attention(query: Tensor, key: Tensor, value: Tensor, *rest: Any, out_val: Any, **options: Any) -> int:
    counts: Any = flop_counter
    return int(counts.sdpa_flop_count(query.shape, key.shape, value.shape))


def _attention_backward(
    grad_out: Tensor, query: Tensor, key: Tensor, value: Tensor, *rest: Any, out_val: Any, **options: Any
) -> int:
    counts: Any = flop_counter
    return int(counts.sdpa_backward_flop_count(grad_out.shape, query.shape, key.shape, value.shape))


def _convolution_backward(grad_out: Tensor, x: Tensor, weight: Tensor, *rest: Any, out_val: Any) -> int:
    """The FLOPs of the forward pass for each of the two gradients; torch's own formula is wrong for groups."""
    _, _, _, _, transposed, _, _, (needs_x, needs_weight, _) = rest
    forward = flop_counter.conv_flop_count(list(x.shape), list(weight.shape), list(grad_out.shape), transposed)
    return int(forward * (needs_x + needs_weight))


FORMULAS: Mapping[Any, Callable[..., int]] = {
    **flop_counter.flop_registry,
    aten.convolution_backward: _convolution_backward,
    aten._scaled_dot_product_flash_attention_for_cpu: _attention,
    aten._scaled_dot_product_flash_attention_for_cpu_backward: _attention_backward,
}


@dataclass
class _Kind:
    """The steps with the same active phases."""

    steps: int = 0
    counted: int = 0
    next_counted: int = 1
    flops: int = 0
    """Of the counted steps."""
    size: int = 0
    """Tokens or items of the counted steps."""

    def is_due(self) -> bool:
        """Whether to count the FLOPs of the next step: steps 1, 2, 6, 15, 31, …, with gaps of square numbers.

        Multiples of two would always, or never, meet what a task does in every N-th step.
        """
        self.steps += 1
        if self.steps < self.next_counted:
            return False
        self.counted += 1
        self.next_counted += self.counted**2
        return True


class Throughput:
    """Tokens and FLOPs of the steps of this process since the last logging step."""

    def __init__(self, counts_flops: bool = True) -> None:
        self._counts_flops = counts_flops
        self._kinds: dict[tuple[str, ...], _Kind] = defaultdict(_Kind)
        self._totals: dict[str, float] = defaultdict(float)

    @contextmanager
    def step(self, phases: tuple[str, ...], items: int, tokens: int | None) -> Iterator[None]:
        """Around the forward and backward passes of one step with these active phases.

        The FLOPs of a step that is not counted are those of counted steps of its kind, in proportion to its tokens (or
        items, if the task has no tokens)."""
        kind, size = self._kinds[phases], items if tokens is None else tokens
        if self._counts_flops and kind.is_due():
            with FlopCounter() as counter:
                yield
            kind.flops += counter.flops
            kind.size += size
        else:
            yield
        if self._counts_flops:
            self._totals["flops"] += kind.flops / max(1, kind.size) * size
        if tokens is not None:
            self._totals["tokens"] += tokens

    def read(self, device: torch.device) -> dict[str, float]:
        """The totals over all ranks, with one all-reduce; resets them. All ranks must have the same names."""
        names = sorted(self._totals)
        if not names:
            return {}
        totals = collectives.sum_over_ranks(torch.tensor([self._totals[name] for name in names], device=device))
        self._totals.clear()
        return dict(zip(names, totals.tolist(), strict=True))
