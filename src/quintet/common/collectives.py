"""Collective operations between ranks: sums, means, gathered rows, broadcasts.

In a single process every function returns its local result, so that models call it without checking the number of
processes. The differentiable functions match DDP, which averages the gradients of the ranks: a loss that is computed
from summed or gathered values, and is the same on every rank, gets exactly the gradient it would have in one process.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

_alone: ContextVar[bool] = ContextVar("alone", default=False)


@contextmanager
def alone() -> Iterator[None]:
    """Context in which nothing is exchanged: this process may fail at any point without keeping others waiting."""
    token = _alone.set(True)
    try:
        yield
    finally:
        _alone.reset(token)


def is_distributed() -> bool:
    """Whether there is more than one process. Checked at every call: models may be built before the process group."""
    return dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1 and not _alone.get()


def world_size() -> int:
    return dist.get_world_size() if is_distributed() else 1


def rank() -> int:
    return dist.get_rank() if is_distributed() else 0


class _Sum(torch.autograd.Function):
    @staticmethod
    def forward(context: Any, tensor: Tensor) -> Tensor:
        total = tensor.clone(memory_format=torch.contiguous_format)
        dist.all_reduce(total)
        return total

    @staticmethod
    def backward(context: Any, gradient: Tensor) -> Tensor:
        total = gradient.clone(memory_format=torch.contiguous_format)
        dist.all_reduce(total)
        return total


class _Gather(torch.autograd.Function):
    @staticmethod
    def forward(context: Any, tensor: Tensor) -> Tensor:
        context.rows = tensor.shape[0]
        parts = [torch.empty_like(tensor) for _ in range(dist.get_world_size())]
        dist.all_gather(parts, tensor)
        return torch.cat(parts)

    @staticmethod
    def backward(context: Any, gradient: Tensor) -> Tensor:
        total = gradient.contiguous().clone()
        dist.all_reduce(total)
        start = dist.get_rank() * context.rows
        return total[start : start + context.rows]


def sum_over_ranks(tensor: Tensor) -> Tensor:
    """Sum of the tensors of all ranks; differentiable."""
    if not is_distributed():
        return tensor
    result: Tensor = _Sum.apply(tensor)  # type: ignore[no-untyped-call]
    return result


def gather_rows(tensor: Tensor) -> Tensor:
    """Concatenate the rows of all ranks in rank order; differentiable. All ranks must pass the same shape."""
    if not is_distributed():
        return tensor
    result: Tensor = _Gather.apply(tensor.contiguous())  # type: ignore[no-untyped-call]
    return result


def mean_over_ranks(values: Tensor, mask: Tensor | None = None) -> Tensor:
    """Mean of the values where `mask` is True, over the global batch, however they are distributed over the ranks.

    Returns the local sum scaled so that the average over ranks, which DDP and the logger compute, is the exact global
    mean. If no value is selected, the mean is 0, not NaN.
    """
    if mask is None:
        return values.mean()
    weights = mask.to(values.dtype).expand_as(values)
    count = sum_over_ranks(weights.sum().detach())
    selected = torch.where(weights != 0, values * weights, 0)  # values outside the mask may be infinite
    return selected.sum() * world_size() / count.clamp(min=1)


def broadcast(tensor: Tensor, source: int = 0) -> Tensor:
    """Overwrite `tensor` in place with the tensor of rank `source` and return it."""
    if is_distributed():
        buffer = tensor.contiguous()
        dist.broadcast(buffer, source)
        tensor.copy_(buffer)
    return tensor


def maximum_over_ranks(tensor: Tensor) -> Tensor:
    """Element-wise maximum over the ranks; not differentiable."""
    if is_distributed():
        tensor = tensor.clone()
        dist.all_reduce(tensor, op=dist.ReduceOp.MAX)
    return tensor


def gather_uneven_rows(tensor: Tensor) -> Tensor:
    """Concatenate the rows of all ranks in rank order; the number of rows may differ. Not differentiable."""
    if not is_distributed():
        return tensor
    # Rows may be on the CPU, such as the scores of a judge, although the backend supports only a GPU (NCCL).
    device, tensor = tensor.device, tensor.to(_backend_device())
    count = torch.tensor([len(tensor)], device=tensor.device)
    counts = gather_rows(count).tolist()
    padded = tensor.new_zeros((max(counts), *tensor.shape[1:]))
    padded[: len(tensor)] = tensor
    parts = gather_rows(padded).view(len(counts), max(counts), *tensor.shape[1:])
    return torch.cat([part[:length] for part, length in zip(parts, counts, strict=True)]).to(device)


def exchange(parts: Sequence[Tensor], lengths: Sequence[int]) -> list[Tensor]:
    """Send one flat tensor to each rank; returns those that the ranks sent to this one, whose lengths are known.

    Not differentiable."""
    received = parts[0].new_empty(sum(lengths))
    dist.all_to_all_single(received, torch.cat(list(parts)), list(lengths), [len(part) for part in parts])
    return list(torch.split(received, list(lengths)))


def gather_texts(text: str, device: torch.device) -> list[str]:
    """The text of every rank, in rank order. Sent as a byte tensor, because `all_gather_object` would pickle it."""
    data = torch.tensor(list(text.encode()), dtype=torch.uint8, device=device)
    joined = bytes(gather_uneven_rows(data).tolist())
    lengths = gather_rows(torch.tensor([len(data)], device=device)).tolist()
    ends = [sum(lengths[: number + 1]) for number in range(len(lengths))]
    return [joined[end - length : end].decode() for end, length in zip(ends, lengths, strict=True)]


def gather_names(names: Sequence[str], device: torch.device) -> list[str]:
    """Concatenate the names of all ranks, in rank order."""
    texts = gather_texts(json.dumps(list(names)), device)
    return [name for text in texts for name in json.loads(text)]


def _backend_device() -> torch.device:
    """A device whose tensors the backend of the process group supports."""
    return torch.device("cuda", torch.cuda.current_device()) if dist.get_backend() == "nccl" else torch.device("cpu")


def sum_statistics(statistics: dict[str, Tensor]) -> dict[str, Tensor]:
    """Sum a dictionary of tensors over the ranks with one all-reduce."""
    if not is_distributed() or not statistics:
        return statistics
    names: Sequence[str] = sorted(statistics)
    # Counts may be on the CPU and sums on a GPU: all of them go to the device that the backend supports.
    device = _backend_device()
    flat = torch.cat([statistics[name].detach().reshape(-1).double().to(device) for name in names])
    dist.all_reduce(flat)
    result: dict[str, Tensor] = {}
    offset = 0
    for name in names:
        local = statistics[name]
        result[name] = flat[offset : offset + local.numel()].view(local.shape).to(local)
        offset += local.numel()
    return result
