"""Reads small tensors of a safetensors file from an open file, with numpy.

The file may contain anything, and another process may delete or truncate it at any time: it is not mapped into memory,
because a process dies when a mapped file is truncated.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from typing import IO, Any

import numpy as np

MAX_HEADER_BYTES = 2**24
MAX_TENSOR_BYTES = 2**26
DTYPES = {"F64": "<f8", "F32": "<f4", "F16": "<f2", "BF16": "<u2", "I64": "<i8", "I32": "<i4"}


def read_tensors(file: IO[bytes], suffix: str) -> Iterator[tuple[str, Any]]:
    """Name and values, flat and in float64, of each tensor whose name ends with `suffix`. Others, and those that the
    file does not contain completely, are skipped. Raises ValueError if the file is not a safetensors file."""
    size = int.from_bytes(file.read(8), "little")
    if not 2 <= size <= MAX_HEADER_BYTES:
        raise ValueError("the header of the safetensors file is too large")
    try:
        header = json.loads(file.read(size))
    except RecursionError:
        raise ValueError("the header of the safetensors file is nested too deeply") from None
    for name, entry in header.items() if isinstance(header, dict) else ():
        if name.endswith(suffix) and isinstance(entry, dict):
            values = _read(file, 8 + size, entry)
            if values is not None:
                yield name, values


def _read(file: IO[bytes], base: int, entry: dict[str, Any]) -> Any:
    dtype, shape, offsets = entry.get("dtype"), entry.get("shape"), entry.get("data_offsets")
    if not isinstance(shape, list) or not isinstance(offsets, list) or len(offsets) != 2:
        return None
    if not all(type(each) is int and each >= 0 for each in (*shape, *offsets)):
        return None
    if not isinstance(dtype, str) or dtype not in DTYPES:
        return None
    count = math.prod(shape) * np.dtype(DTYPES[dtype]).itemsize
    if offsets[1] - offsets[0] != count or count > MAX_TENSOR_BYTES or offsets[1] > 2**62:
        return None
    file.seek(base + offsets[0])
    content = file.read(count)
    if len(content) != count:
        return None
    values = np.frombuffer(content, DTYPES[dtype])
    if dtype == "BF16":  # the upper half of a float32
        values = (values.astype(np.uint32) << 16).view(np.float32)
    return values.astype(np.float64)
