"""Groups of tensors in a checkpoint: reading them from files that are not trusted.

A group is one file or, if several processes wrote it (`sharding.py`), a folder of files with shards of tensors and
their offsets.
"""

from __future__ import annotations

import json
import math
from collections import defaultdict
from collections.abc import Sequence
from itertools import combinations
from pathlib import Path
from typing import NamedTuple

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file
from torch import Tensor

from quintet.common.files import one_line
from quintet.common.weights.checkpoint import refuse_irregular
from quintet.errors import CheckpointError

_DTYPES = {
    torch.float64,
    torch.float32,
    torch.float16,
    torch.bfloat16,
    torch.int64,
    torch.int32,
    torch.uint8,
    torch.bool,
}
_MAX_DIMS = 64
_UNREADABLE = (OSError, SafetensorError, ValueError, KeyError, TypeError, RuntimeError)
"""Exceptions of safetensors, and of torch, which maps the file into memory, for files that cannot be read."""


def read_tensors(folder: Path, name: str) -> dict[str, Tensor]:
    """Read a group of tensors. The file is untrusted: it may contain anything, and nothing in it is executed."""
    sharded = is_sharded(folder, name)
    path = folder / name if sharded else folder / f"{name}.safetensors"
    try:
        if not sharded:
            refuse_irregular(path)
        tensors = _join(path) if sharded else load_file(path)
    except _UNREADABLE as error:
        raise CheckpointError(f"cannot read {path}: {one_line(error)}") from None
    for key, tensor in tensors.items():
        if tensor.dtype not in _DTYPES:
            raise CheckpointError(f"{path}: {key[:100]!r} has dtype {tensor.dtype}, which quintet never writes")
        if tensor.ndim > _MAX_DIMS:
            raise CheckpointError(f"{path}: {key[:100]!r} has {tensor.ndim} dimensions, more than torch supports")
        if not bool(tensor.isfinite().all()):
            raise CheckpointError(f"{path}: {key[:100]!r} contains NaN or infinite values; use another checkpoint")
    return tensors


class _Shard(NamedTuple):
    """One shard of a tensor: its file, its offsets in the full tensor and its shape."""

    file: Path
    offsets: tuple[int, ...]
    shape: tuple[int, ...]

    @property
    def slices(self) -> tuple[slice, ...]:
        return tuple(slice(start, start + size) for start, size in zip(self.offsets, self.shape, strict=True))

    def overlaps(self, other: _Shard) -> bool:
        return all(
            max(own.start, theirs.start) < min(own.stop, theirs.stop)
            for own, theirs in zip(self.slices, other.slices, strict=True)
        )


def is_sharded(folder: Path, name: str) -> bool:
    """Whether a group of tensors was written by several processes."""
    return (folder / name).is_dir() and not (folder / f"{name}.safetensors").exists()


def sharded_shapes(folder: Path, name: str) -> dict[str, tuple[int, ...]]:
    """The full shapes of the tensors of a sharded group."""
    try:
        return {key: _full_shape(key, shards) for key, shards in _find_shards(folder / name).items()}
    except _UNREADABLE as error:
        raise CheckpointError(f"cannot read {folder / name}: {one_line(error)}") from None


def _join(folder: Path) -> dict[str, Tensor]:
    tensors: dict[str, Tensor] = {}
    for key, shards in _find_shards(folder).items():
        shape = _full_shape(key, shards)
        for shard in shards:
            with safe_open(shard.file, framework="pt") as opened:
                values = opened.get_tensor(key)
            full = tensors.setdefault(key, torch.zeros(shape, dtype=values.dtype))
            if values.dtype != full.dtype:
                raise ValueError(f"the shards of {key[:100]!r} have different dtypes")
            full[shard.slices] = values
    return tensors


def _find_shards(folder: Path) -> dict[str, list[_Shard]]:
    found: dict[str, list[_Shard]] = defaultdict(list)
    for file in sorted(folder.glob("*.safetensors")):
        refuse_irregular(file)
        with safe_open(file, framework="pt") as opened:
            sharding_info = json.loads((opened.metadata() or {})["DCP_SHARDING_INFO"])
            for key in opened.keys():  # noqa: SIM118 - not a mapping
                offsets = sharding_info[key]["saved_offsets"]
                found[key].append(_Shard(file, tuple(offsets), tuple(opened.get_slice(key).get_shape())))
    return dict(found)


def _full_shape(key: str, shards: Sequence[_Shard]) -> tuple[int, ...]:
    """The full shape, from offsets that the files declare; they must not declare more elements than they contain."""
    dims = len(shards[0].shape)
    for shard in shards:
        if (
            len(shard.offsets) != dims
            or len(shard.shape) != dims
            or not all(type(each) is int for each in shard.offsets)
        ):
            raise ValueError(f"the shards of {key[:100]!r} have different numbers of dimensions")
    shape = tuple(max(shard.offsets[axis] + shard.shape[axis] for shard in shards) for axis in range(dims))
    if min((each for shard in shards for each in shard.offsets), default=0) < 0:
        raise ValueError(f"a shard of {key[:100]!r} has a negative offset")
    if any(one.overlaps(other) for one, other in combinations(shards, 2)):
        raise ValueError(f"shards of {key[:100]!r} overlap")
    if sum(math.prod(shard.shape) for shard in shards) != math.prod(shape):
        raise ValueError(f"the shards of {key[:100]!r} do not cover the tensor")
    return shape
