"""Failed allocations: recognising them, and one-sentence errors for those that the size of a model causes.

Does not import torch, so that the command line can use it. The exceptions depend on who could not allocate: Python,
numpy, torch, CUDA, cuBLAS, cuDNN, NCCL, MPS, oneDNN or the C++ library.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from quintet.config import RunConfig, flatten
from quintet.errors import QuintetError, RunError

_SIGNS = (
    *("can't allocate memory", "could not create a primitive", "bad_alloc", "not enough memory"),
    *("out of memory", "ALLOC_FAILED", "ALLOCATION_FAILED"),
)
_OVERFLOWS = ("Storage size calculation overflowed", "Overflow when unpacking long", "overflow")


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
