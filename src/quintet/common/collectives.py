"""Owns what ranks tell each other: sums, means, gathered rows, broadcasts.

Every function is the identity (or the obvious local result) in a single process, so that models call it without
asking how many processes there are. The functions with a gradient fit the rule of DDP, which averages the
gradients of the ranks: a loss computed from summed or gathered values, the same on every rank, gets exactly the
gradient it would have in one process.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor


def is_distributed() -> bool:
    """Whether more than one process takes part. Asked at every call: models may be built before the group."""
    return dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1


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
    """The sum of every rank's tensor, with gradient."""
    if not is_distributed():
        return tensor
    result: Tensor = _Sum.apply(tensor)  # type: ignore[no-untyped-call]
    return result


def gather_rows(tensor: Tensor) -> Tensor:
    """Every rank's rows, in the order of the ranks, with gradient. All ranks must bring the same shape."""
    if not is_distributed():
        return tensor
    result: Tensor = _Gather.apply(tensor.contiguous())  # type: ignore[no-untyped-call]
    return result


def mean_over_ranks(values: Tensor, mask: Tensor | None = None) -> Tensor:
    """The mean of the chosen values over the whole global batch, whatever each rank's share of them is.

    Returns this rank's part scaled so that the average over ranks, which is what DDP and the logger take, is
    the exact global mean. A mean over nothing is 0, not NaN.
    """
    if mask is None:
        return values.mean()
    weights = mask.to(values.dtype).expand_as(values)
    count = sum_over_ranks(weights.sum().detach())
    chosen = torch.where(weights != 0, values * weights, 0)  # what is not chosen may be infinite
    return chosen.sum() * world_size() / count.clamp(min=1)


def broadcast(tensor: Tensor, source: int = 0) -> Tensor:
    """Overwrite `tensor` in place with the source rank's and return it."""
    if is_distributed():
        buffer = tensor.contiguous()
        dist.broadcast(buffer, source)
        tensor.copy_(buffer)
    return tensor


def maximum_over_ranks(tensor: Tensor) -> Tensor:
    """The largest value of each element over the ranks, without gradient."""
    if is_distributed():
        tensor = tensor.clone()
        dist.all_reduce(tensor, op=dist.ReduceOp.MAX)
    return tensor


def gather_uneven_rows(tensor: Tensor) -> Tensor:
    """Every rank's rows, in the order of the ranks, where their numbers may differ. Without gradient."""
    if not is_distributed():
        return tensor
    count = torch.tensor([len(tensor)], device=tensor.device)
    counts = gather_rows(count).tolist()
    padded = tensor.new_zeros((max(counts), *tensor.shape[1:]))
    padded[: len(tensor)] = tensor
    parts = gather_rows(padded).view(len(counts), max(counts), *tensor.shape[1:])
    return torch.cat([part[:length] for part, length in zip(parts, counts, strict=True)])


def gather_texts(text: str, device: torch.device) -> list[str]:
    """Every rank's text, in rank order. As bytes in a tensor: torch's own gather of objects would pickle."""
    data = torch.tensor(list(text.encode()), dtype=torch.uint8, device=device)
    joined = bytes(gather_uneven_rows(data).tolist())
    lengths = gather_rows(torch.tensor([len(data)], device=device)).tolist()
    ends = [sum(lengths[: number + 1]) for number in range(len(lengths))]
    return [joined[end - length : end].decode() for end, length in zip(ends, lengths, strict=True)]


def gather_names(names: Sequence[str], device: torch.device) -> list[str]:
    """The names of all ranks, in the order of the ranks."""
    texts = gather_texts(json.dumps(list(names)), device)
    return [name for text in texts for name in json.loads(text)]


def _meeting_device() -> torch.device:
    return torch.device("cuda", torch.cuda.current_device()) if dist.get_backend() == "nccl" else torch.device("cpu")


def sum_statistics(statistics: dict[str, Tensor]) -> dict[str, Tensor]:
    """Sum a dictionary of tensors over the ranks with one message."""
    if not is_distributed() or not statistics:
        return statistics
    names: Sequence[str] = sorted(statistics)
    # A count made on the CPU beside sums made on a GPU: they travel together, where the processes can meet.
    device = _meeting_device()
    flat = torch.cat([statistics[name].detach().reshape(-1).double().to(device) for name in names])
    dist.all_reduce(flat)
    result: dict[str, Tensor] = {}
    offset = 0
    for name in names:
        like = statistics[name]
        result[name] = flat[offset : offset + like.numel()].view(like.shape).to(like)
        offset += like.numel()
    return result
