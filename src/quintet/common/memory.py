"""Failed allocations: recognising them, and one-sentence errors for those that the size of a model causes.

Does not import torch, so that the command line can use it. The exceptions depend on who could not allocate: Python,
numpy, torch, CUDA, cuBLAS, cuDNN, NCCL, MPS, oneDNN or the C++ library.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path, PurePosixPath

from quintet.config import RunConfig, flatten
from quintet.errors import QuintetError, RunError

_SIGNS = (
    *("can't allocate memory", "could not create a primitive", "bad_alloc", "not enough memory"),
    *("out of memory", "ALLOC_FAILED", "ALLOCATION_FAILED"),
)
_OVERFLOWS = ("Storage size calculation overflowed", "Overflow when unpacking long", "overflow")


ROOT = Path("/")


def available_memory(root: Path = ROOT) -> int:
    """Bytes of the main memory that this process can still use, also under the limit of a container (cgroup 2).

    `root` is the folder that contains `sys` and `proc`."""
    available = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    with suppress(OSError, StopIteration):
        lines = (root / "proc/meminfo").read_text().splitlines()
        available = 1024 * int(next(line for line in lines if line.startswith("MemAvailable:")).split()[1])
    return min([available, *_cgroup_memory(root)])


def _cgroup_memory(root: Path) -> Iterator[int]:
    """The bytes that are left to the cgroup of this process and to the groups that contain it."""
    group = ""
    with suppress(OSError, StopIteration):
        lines = (root / "proc/self/cgroup").read_text().splitlines()
        group = next(line.removeprefix("0::/") for line in lines if line.startswith("0::/"))
    own = PurePosixPath(group)
    for folder in (root / "sys/fs/cgroup" / each for each in (own, *own.parents)):
        with suppress(OSError, ValueError):  # ValueError for "max"
            limit, used = (int((folder / f"memory.{name}").read_text()) for name in ("max", "current"))
            stat = dict(line.split() for line in (folder / "memory.stat").read_text().splitlines())
            yield max(0, limit - used + int(stat.get("inactive_file", 0)))  # cached files make room


def is_out_of_memory(error: BaseException) -> bool:
    """Whether an exception means that memory could not be allocated."""
    if isinstance(error, QuintetError):
        return False  # its sentence may speak of memory, but has its own advice
    named = isinstance(error, MemoryError) or type(error).__name__ == "OutOfMemoryError"
    return named or any(sign in str(error) for sign in _SIGNS)


@contextmanager
def building(config: RunConfig) -> Iterator[None]:
    """While the modules of a configuration are built: a size that does not fit into memory is one sentence."""
    try:
        yield
    except (RuntimeError, MemoryError, OverflowError, TypeError) as error:
        # A size of more than 64 bits is an overflow, or an argument of the wrong type.
        if not is_out_of_memory(error) and not any(sign in str(error) for sign in _OVERFLOWS):
            raise
        sizes = {
            key: value
            for key, value in flatten(config.model_dump(mode="json", include={"model"})).items()
            if type(value) is int
        }
        largest = sorted(sizes, key=lambda key: -sizes[key])[:3]
        raise RunError(
            f"out of memory while the model of recipe '{config.recipe}' is built; use smaller sizes in model.* "
            f"(the largest numbers are {', '.join(f'{key}={sizes[key]}' for key in largest)})"
        ) from None


@contextmanager
def creating_state() -> Iterator[None]:
    """While moving average and optimizers are created: the model itself fits into memory, but they do not."""
    try:
        yield
    except (RuntimeError, MemoryError) as error:
        if not is_out_of_memory(error):
            raise
        raise RunError(
            "out of memory while the moving average and the optimizers are created; use smaller sizes in model.*, "
            "ema.enabled=false, or engine.fsdp=true with several processes"
        ) from None
