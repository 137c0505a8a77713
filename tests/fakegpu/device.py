"""`fakegpu:0`: a device whose tensors hold CPU tensors and compute for real, with the rules of a GPU.

Refused, as by CUDA: operands on different devices, reading a tensor with numpy, pinning a tensor of the device, and,
with `refuse_cpu_collectives`, collectives of CPU tensors (NCCL). Refused, as by MPS: float64, unless it is allowed.
With a `memory` in bytes, tensors that do not fit are refused by the error of CUDA's allocator.

It is one of torch's Python backends for the device type PrivateUse1. A process can have one of them, and cannot remove
it, so use it in a process of its own.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.utils import backend_registration
from torch.utils._python_dispatch import TorchDispatchMode, return_and_correct_aliasing
from torch.utils._pytree import tree_leaves, tree_map

from fakegpu.waits import Wait, wait_of

NAME = "fakegpu"

COPIES = ("aten.copy_.default", "aten._to_copy.default", "aten._foreach_copy_.default")
"""Operations between devices."""
INDEXING = (
    *("aten.index.Tensor", "aten._unsafe_index.Tensor"),
    *("aten.index_put.default", "aten.index_put_.default", "aten._index_put_impl_.default"),
)
"""Operations of a tensor on the GPU that accept indices on the CPU."""
JOINS = ("aten.cat.default", "aten.stack.default")
"""Operations that refuse even a scalar tensor on the CPU, which arithmetic accepts."""


@dataclass
class Rules:
    """What the device refuses."""

    refuse_float64: bool = True
    refuse_cpu_collectives: bool = False
    memory: int | None = None
    """In bytes; None: without limit."""


class Memory:
    """The bytes of all tensors of the device that are alive, as far as Python sees them."""

    def __init__(self) -> None:
        self.used = self.peak = 0
        self._sizes: dict[int, int] = {}
        self._missing = 0
        """Bytes that a backward pass would have needed above the limit."""

    def hold(self, tensor: Tensor, limit: int | None) -> None:
        """Count the memory of a new tensor, unless it shares that of another one."""
        storage = tensor.untyped_storage()
        key = storage._cdata
        if key in self._sizes:
            return
        self._sizes[key] = size = storage.nbytes()
        self.used += size
        self.peak = max(self.peak, self.used)
        weakref.finalize(storage, self._free, key).atexit = False
        if limit is not None:
            self._missing = max(self._missing, self.used - limit)
            self._check()

    def _check(self) -> None:
        # Torch ends the process for an error of Python in some operations of a backward pass: it is raised behind it.
        if self._missing > 0 and torch._C._current_graph_task_id() < 0:
            missing, self._missing = self._missing, 0
            raise torch.OutOfMemoryError(f"{NAME} out of memory: {missing} bytes are missing")

    def _free(self, key: int) -> None:
        self.used -= self._sizes.pop(key)


class BackendModule:
    """What `torch.fakegpu` has to answer."""

    class device:  # noqa: N801
        def __init__(self, index: object) -> None:
            pass

        def __enter__(self) -> None:
            pass

        def __exit__(self, *error: object) -> None:
            pass

    def _is_in_bad_fork(self) -> bool:
        return False

    def _lazy_init(self) -> None:
        pass

    def is_available(self) -> bool:
        return True

    def is_initialized(self) -> bool:
        return True

    def device_count(self) -> int:
        return 1

    def current_device(self) -> int:
        return 0

    def set_device(self, index: object) -> None:
        pass

    def synchronize(self, *device: object) -> None:
        pass

    def manual_seed_all(self, seed: int) -> None:
        """Its random numbers are those of the CPU."""

    def get_rng_state(self, device: object = 0) -> Tensor:
        return torch.get_rng_state()

    def set_rng_state(self, state: Tensor, device: object = 0) -> None:
        pass

    def get_amp_supported_dtype(self) -> list[torch.dtype]:
        return [torch.bfloat16, torch.float16]


class FakeGPUTensor(Tensor):
    """A tensor that says it is on the device; `inner` has its values."""

    inner: Tensor
    __torch_function__ = torch._C._disabled_torch_function_impl

    @staticmethod
    def __new__(cls, inner: Tensor) -> FakeGPUTensor:
        made = Tensor._make_wrapper_subclass(  # type: ignore[attr-defined]
            cls,
            inner.size(),
            strides=inner.stride(),
            storage_offset=inner.storage_offset(),
            dtype=inner.dtype,
            device=torch.device(NAME, 0),
        )
        made.inner = inner
        return made

    def __repr__(self, **options: object) -> str:  # type: ignore[override]
        return f"FakeGPUTensor({self.inner})"

    def tolist(self) -> Any:
        return self.detach().cpu().tolist()

    def numpy(self, **options: object) -> Any:  # type: ignore[override]
        raise TypeError("cannot convert a tensor on a GPU to numpy; use Tensor.cpu() first")

    def __array__(self, *arguments: object) -> Any:  # type: ignore[override]
        return self.numpy()

    def pin_memory(self, *device: object) -> Tensor:
        raise RuntimeError("cannot pin a tensor on a GPU")

    @classmethod
    def __torch_dispatch__(cls, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return MODE.run(function, args, kwargs or {})


class FakeGPU(TorchDispatchMode):
    """Runs every operation of the process: those that create tensors on the device have no operand there."""

    def __init__(self) -> None:
        super().__init__()
        self.rules = Rules()
        self.waits: list[Wait] = []
        """The waits so far."""
        self.memory = Memory()

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return self.run(function, args, kwargs or {})

    def run(self, function: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
        name = str(function)
        tensors = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, Tensor)]
        here = [tensor for tensor in tensors if isinstance(tensor, FakeGPUTensor)]
        target = None if kwargs.get("device") is None else torch.device(kwargs["device"]).type
        if name.startswith("c10d."):
            return self._collective(function, args, kwargs, tensors)
        if not here and target != NAME:
            return function(*args, **kwargs)
        if name == "prim.device.default":
            return torch.device(NAME, 0)
        check_devices(name, args, tensors)
        if self.rules.refuse_float64 and target != "cpu":
            check_float64(name, [*here, *([kwargs["dtype"]] if "dtype" in kwargs else [])])
        wait = wait_of(name, args, kwargs, FakeGPUTensor, target)
        if wait is not None:
            self.waits.append(wait)
        result = function(*tree_map(unwrap, args), **inner_keywords(name, kwargs))
        if target == "cpu":
            return result
        if name == "aten.copy_.default" and not isinstance(args[0], FakeGPUTensor):
            return args[0]
        if name == "aten._to_copy.default" and any(result is unwrap(tensor) for tensor in tensors):
            result = result.clone()
        for leaf in tree_leaves(result):
            if isinstance(leaf, Tensor):
                self.memory.hold(unwrap(leaf), self.rules.memory)
        result = tree_map(wrap, result)
        return return_and_correct_aliasing(function, args, kwargs, result) if here else result

    def _collective(self, function: Any, args: Any, kwargs: Any, tensors: Sequence[Tensor]) -> Any:
        """Of the CPU's process group; in place, so that the tensors of the result are those of the call."""
        here = [isinstance(tensor, FakeGPUTensor) for tensor in tensors]
        # A barrier has no tensor of its caller: each backend makes one on its own device.
        if self.rules.refuse_cpu_collectives and not all(here) and "barrier" not in str(function):
            raise RuntimeError(f"No backend type associated with device type cpu ({function})")
        result = function(*tree_map(unwrap, args), **tree_map(unwrap, kwargs))
        if not any(here) or not isinstance(result, tuple):
            return result
        return (args[0], *result[1:])


MODE = FakeGPU()


def use(refuse_float64: bool = True, refuse_cpu_collectives: bool = False) -> None:
    """Add the device to this process, for good."""
    MODE.rules = Rules(refuse_float64, refuse_cpu_collectives)
    backend_registration._setup_privateuseone_for_python_backend(rename=NAME, backend_module=BackendModule())
    torch._C._set_only_lift_cpu_tensors(True)
    # A wrapper cannot share the version counter of an inference tensor, which has none.
    torch.inference_mode.__enter__ = lambda self: vars(self).setdefault("no_grad", torch.no_grad()).__enter__()
    torch.inference_mode.__exit__ = lambda self, *error: vars(self).pop("no_grad").__exit__(*error)
    MODE.__enter__()


def recorded(function: Callable[..., Any], waits: list[str], *args: Any, **kwargs: Any) -> Any:
    """Call a function; its waits are added to `waits`, each with the line of quintet that asked for it."""
    before = len(MODE.waits)
    try:
        return function(*args, **kwargs)
    finally:
        waits += [str(wait) for wait in MODE.waits[before:]]


def check_devices(name: str, args: Sequence[Any], tensors: Sequence[Tensor]) -> None:
    """As CUDA: all operands on one device, except for scalar tensors of the CPU, indices and copies."""
    if name in COPIES:
        return
    here = [tensor for tensor in tensors if isinstance(tensor, FakeGPUTensor)]
    elsewhere = [tensor for tensor in tensors if not isinstance(tensor, FakeGPUTensor)]
    if name in INDEXING:
        indices = [index for index in args[1] if index is not None]
        mixed = not isinstance(args[0], FakeGPUTensor) or any(
            tensor.ndim and not any(tensor is index for index in indices) for tensor in elsewhere
        )
    else:
        mixed = bool(here) and any(tensor.ndim or name in JOINS for tensor in elsewhere)
    if mixed:
        raise RuntimeError(f"Expected all tensors to be on the same device, but found {NAME} and cpu ({name})")


def check_float64(name: str, operands: Sequence[Any]) -> None:
    """As MPS, which has no float64."""
    if torch.float64 in (operand if isinstance(operand, torch.dtype) else operand.dtype for operand in operands):
        raise TypeError(f"Cannot convert a tensor of {NAME} to float64: it does not support it ({name})")


def unwrap(value: Any) -> Any:
    return value.inner if isinstance(value, FakeGPUTensor) else value


def wrap(value: Any) -> Any:
    return FakeGPUTensor(value) if isinstance(value, Tensor) and not isinstance(value, FakeGPUTensor) else value


def inner_keywords(name: str, kwargs: dict[str, Any]) -> dict[str, Any]:
    """The keywords of the same operation on the CPU, which neither pins memory nor copies in the background."""
    inner = {
        key: unwrap(value) if isinstance(value, Tensor) else tree_map(unwrap, value) for key, value in kwargs.items()
    }
    if inner.get("device") is not None:
        inner["device"] = torch.device("cpu")
    if inner.get("pin_memory"):
        inner["pin_memory"] = False
    if name == "aten._to_copy.default":
        inner.pop("non_blocking", None)
    return inner
