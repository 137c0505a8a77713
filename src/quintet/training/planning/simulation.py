"""`Simulation`: runs a training step on the device of a plan, without its memory and without that device.

Its tensors have shapes, dtypes and a device, but no contents: operations run on torch's `meta` device. Python sees
the planned device, so that every branch is the one that a training takes there; torch itself, which may be built
without CUDA, sees a CPU. Integers and masks also keep their contents (`PlannedTensor.value`), because the shapes of
masked tokens depend on them. Counted are the bytes that are alive, FLOPs by dtype, bytes read and written, and kernels.
"""

from __future__ import annotations

import weakref
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Self

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from torch.utils import flop_counter
from torch.utils._python_dispatch import TorchDispatchMode

from quintet.training.planning.autocast import cuda_autocast
from quintet.training.planning.nested import leaves, mapped
from quintet.training.throughput import FORMULAS

aten = torch.ops.aten

CPU = torch.device("cpu")
BLOCK = 512
"""The allocator of CUDA rounds sizes up to multiples of this many bytes."""
MOST_VALUES = 1 << 22
"""Largest number of elements whose contents are computed."""


class PlannedTensor(Tensor):
    """A tensor without contents on the device of a simulation."""

    meta: Tensor
    """The same tensor on the `meta` device; shares its storage."""
    value: Tensor | None
    """The contents, on the CPU, if they are known."""
    simulation: Simulation

    @staticmethod
    def __new__(cls, meta: Tensor, simulation: Simulation, value: Tensor | None = None) -> PlannedTensor:
        make: Any = torch.Tensor._make_subclass
        made: PlannedTensor = make(cls, meta, False, dispatch_device=True, device_for_backend_keys=CPU)
        made.meta, made.value, made.simulation = meta, value, simulation
        return made

    def with_shape_of_meta(self) -> Self:
        """This tensor, after an operation in place that may have changed the shape, such as `transpose_`."""
        with torch._C._DisableTorchDispatch():
            if self.shape != self.meta.shape or self.stride() != self.meta.stride():
                aten.as_strided_(self, self.meta.shape, self.meta.stride(), self.meta.storage_offset())
        return self

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func is F.scaled_dot_product_attention:
            return _attention(*args, **kwargs)
        if getattr(func, "__self__", None) is Tensor.device:
            return args[0].simulation.device
        if func is Tensor.tolist and args[0].value is not None:  # torch does not support this for subclasses
            return args[0].value.tolist()
        if torch.is_autocast_enabled("cuda"):
            args, kwargs = cuda_autocast(func.__name__, args, kwargs)
        with torch._C.DisableTorchFunctionSubclass():
            return func(*args, **kwargs)

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:  # type: ignore[override]
        if func is torch.ops.prim.device.default:
            return CPU
        first = next(each for each in leaves(args, kwargs) if isinstance(each, PlannedTensor))
        return first.simulation.run(func, args, kwargs or {})


class Simulation(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Context in which operations with `PlannedTensor`s, and factories on the planned device, are simulated."""

    # As torch's own mode of tensors without contents: torch then does not initialise the device, which may be absent.
    _mode_key = torch._C._TorchDispatchModeKey.FAKE

    def __init__(self, device: torch.device) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.device = device
        self.flops: Counter[torch.dtype] = Counter()
        self.bytes_moved = 0
        self.kernels = 0
        self.memory = 0
        """Bytes of all tensors that are alive."""
        self.peak = 0
        self._sizes: dict[int, int] = {}
        self._shapes: dict[Any, Any] = {}
        self._constructors = _Constructors(self)

    def place(self, module: nn.Module) -> None:
        """Replace the parameters and buffers of a module, which may be on `meta` or have contents, in place."""
        for part in module.modules():
            for name, parameter in part._parameters.items():
                if parameter is not None:
                    planned = self.planned(parameter.detach())
                    part._parameters[name] = nn.Parameter(planned, parameter.requires_grad)
            for name, buffer in part._buffers.items():
                if buffer is not None:
                    part._buffers[name] = self.planned(buffer, keep=not buffer.is_floating_point())

    def planned(self, tensor: Tensor, keep: bool = False) -> PlannedTensor:
        """The planned form of a tensor; `keep` keeps its contents, unless it is on `meta`."""
        made = PlannedTensor(tensor.to("meta"), self, tensor if keep and tensor.device.type != "meta" else None)
        self._track(made.meta)
        return made

    @contextmanager
    def peak_since_now(self) -> Iterator[Callable[[], int]]:
        """Yields a function that returns the peak of the memory since the beginning of the context, above that of the
        beginning."""
        before, self.peak = self.memory, self.memory
        yield lambda: self.peak - before

    # --- operations -----------------------------------------------------------------------------------------

    def __enter__(self) -> Self:
        super().__enter__()  # type: ignore[no-untyped-call]
        self._constructors.__enter__()  # type: ignore[no-untyped-call]
        return self

    def __exit__(self, *error: Any) -> None:
        self._constructors.__exit__(*error)  # type: ignore[no-untyped-call]
        super().__exit__(*error)  # type: ignore[no-untyped-call]

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is torch.ops.prim.device.default:
            return CPU
        with torch._C.DisableTorchFunction():  # operations that torch derives in Python make tensors of their own
            return self.run(func, args, kwargs or {})

    def run(self, func: Any, args: Any, kwargs: Any) -> Any:
        planned = [each for each in leaves(args, kwargs) if isinstance(each, PlannedTensor)]
        if not planned and not self._is_here(kwargs.get("device")):
            return func(*args, **kwargs)
        special = _SPECIAL.get(func._overloadpacket)
        if special is not None:
            args, kwargs, done = special(self, args, kwargs)
            if done is not _NOT_DONE:
                return done
        inputs = [each for each in leaves(args, kwargs) if isinstance(each, PlannedTensor)]
        result = self._on_meta(func, args, kwargs)
        values = self._values(func, args, kwargs, inputs, result)
        outputs = self._wrap(result, values, inputs)
        self._count(func, args, kwargs, inputs, result)
        return outputs

    def _on_meta(self, func: Any, args: Any, kwargs: Any) -> Any:
        """The result on `meta`. Shapes are remembered, because the blocks of a model repeat the same operations and
        torch derives many shapes in Python."""
        if func._schema.is_mutable or any(each.alias_info is not None for each in func._schema.returns):
            return func(*mapped(_to_meta, args), **_on("meta", mapped(_to_meta, kwargs)))
        key = func, _signature(args), _signature(kwargs)
        if key not in self._shapes:
            result = func(*mapped(_to_meta, args), **_on("meta", mapped(_to_meta, kwargs)))
            self._shapes[key] = mapped(_shape, result)
            return result
        return mapped(_new, self._shapes[key])

    def _is_here(self, device: Any) -> bool:
        return device is not None and torch.device(device).type == self.device.type

    def _values(self, func: Any, args: Any, kwargs: Any, inputs: list[PlannedTensor], result: Any) -> Any:
        """The contents of the result, in its structure, if those of all inputs are known; else None."""
        outputs = [each for each in leaves(result) if isinstance(each, Tensor)]
        small = sum(each.numel() for each in outputs) <= MOST_VALUES
        known = all(each.value is not None for each in inputs)
        if known and small:
            return func(*mapped(_to_value, args), **_on("cpu", mapped(_to_value, kwargs)))
        if func._schema.is_mutable:
            for each, argument in zip(args, func._schema.arguments, strict=False):
                if argument.alias_info is not None and argument.alias_info.is_write:
                    for tensor in leaves(each):
                        if isinstance(tensor, PlannedTensor):
                            tensor.value = None
        return None

    def _wrap(self, result: Any, values: Any, inputs: list[PlannedTensor]) -> Any:
        known = {id(each.meta): each for each in inputs}
        flat = iter(leaves(values) if values is not None else ())

        def wrap(each: Any) -> Any:
            value = next(flat, None) if values is not None else None
            if not isinstance(each, Tensor):
                return each
            if id(each) in known:  # an operation in place
                return known[id(each)].with_shape_of_meta()
            self._track(each)
            return PlannedTensor(each, self, value)

        return mapped(wrap, result)

    def _track(self, meta: Tensor) -> None:
        storage = meta.untyped_storage()
        key = storage._cdata
        if key in self._sizes:
            return
        size = -(-storage.nbytes() // BLOCK) * BLOCK
        self._sizes[key] = size
        self.memory += size
        self.peak = max(self.peak, self.memory)
        weakref.finalize(storage, self._free, key).atexit = False

    def _free(self, key: int) -> None:
        self.memory -= self._sizes.pop(key)

    def _count(self, func: Any, args: Any, kwargs: Any, inputs: list[PlannedTensor], result: Any) -> None:
        outputs = [each for each in leaves(result) if isinstance(each, Tensor)]
        storages = {each.meta.untyped_storage()._cdata for each in inputs}
        if not func._schema.is_mutable and all(each.untyped_storage()._cdata in storages for each in outputs):
            return  # a view
        self.kernels += 1
        self.bytes_moved += sum(each.numel() * each.element_size() for each in (*outputs, *inputs))
        formula = FORMULAS.get(func._overloadpacket)
        if formula is not None:
            shapes, options = mapped(_to_meta, args), mapped(_to_meta, kwargs)
            self.flops[outputs[0].dtype] += int(formula(*shapes, **options, out_val=result))


class _Constructors(TorchFunctionMode):
    """Tensors from Python numbers: torch makes them on the device itself, out of the sight of dispatch modes."""

    def __init__(self, simulation: Simulation) -> None:
        super().__init__()
        self.simulation = simulation

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func in (torch.tensor, torch.as_tensor) and self.simulation._is_here(kwargs.get("device")):
            if isinstance(args[0], PlannedTensor):
                return args[0].to(kwargs.get("dtype") or args[0].dtype)
            return self.simulation.planned(func(*args, **{**kwargs, "device": CPU}), keep=True)
        return func(*args, **kwargs)


_NOT_DONE = object()


@dataclass(frozen=True)
class _Shape:
    size: torch.Size
    stride: tuple[int, ...]
    dtype: torch.dtype


def _shape(each: Any) -> Any:
    return _Shape(each.size(), each.stride(), each.dtype) if isinstance(each, Tensor) else each


def _new(each: Any) -> Any:
    if not isinstance(each, _Shape):
        return each
    return torch.empty_strided(each.size, each.stride, dtype=each.dtype, device="meta")


def _signature(value: Any) -> Any:
    """A hashable description of arguments on which the shapes of a result depend."""
    if isinstance(value, Tensor):
        return value.size(), value.stride(), value.dtype
    if isinstance(value, (tuple, list)):
        return tuple([_signature(each) for each in value])
    if isinstance(value, dict):
        return tuple([(name, _signature(each)) for name, each in value.items()])
    return type(value), value


def _to_meta(each: Any) -> Any:
    if isinstance(each, PlannedTensor):
        return each.meta
    return each.to("meta") if isinstance(each, Tensor) else each


def _to_value(each: Any) -> Any:
    return each.value if isinstance(each, PlannedTensor) else each


def _on(device: str, kwargs: dict[str, Any]) -> dict[str, Any]:
    kwargs = {name: value for name, value in kwargs.items() if name != "pin_memory"}
    return {**kwargs, "device": torch.device(device)} if kwargs.get("device") is not None else kwargs


# --- operations whose result depends on contents ----------------------------------------------------------------


def _indices(simulation: Simulation, indices: Any) -> list[Any]:
    """Indices without masks, whose number of true elements `meta` does not know."""
    found: list[Any] = []
    for index in indices:
        if isinstance(index, Tensor) and index.dtype in (torch.bool, torch.uint8):
            value = _to_value(index)
            if value is None:
                raise NotImplementedError("a mask whose contents depend on the weights selects elements")
            found += [simulation.planned(each, keep=True) for each in value.nonzero(as_tuple=True)]
        else:
            found.append(index)
    return found


def _index(simulation: Simulation, args: Any, kwargs: Any) -> Any:
    return (args[0], _indices(simulation, args[1]), *args[2:]), kwargs, _NOT_DONE


def _from_values(function: Any) -> Any:
    def run(simulation: Simulation, args: Any, kwargs: Any) -> Any:
        values = mapped(_to_value, args)
        if any(each is None for each in leaves(values)) and any(
            isinstance(each, PlannedTensor) and each.value is None for each in leaves(args)
        ):
            raise NotImplementedError(f"the shape of {function} depends on the weights")
        result = function(*values, **mapped(_to_value, kwargs))
        planned = mapped(lambda each: simulation.planned(each, keep=True) if isinstance(each, Tensor) else each, result)
        return args, kwargs, planned

    return run


def _move(simulation: Simulation, args: Any, kwargs: Any) -> Any:
    """A tensor of the planned device is there already, although torch believes that it is on the CPU."""
    (tensor,) = args
    same = kwargs.get("dtype") in (None, tensor.dtype) and kwargs.get("memory_format") is None
    if isinstance(tensor, PlannedTensor) and same:
        return args, kwargs, PlannedTensor(tensor.meta.detach(), simulation, tensor.value)
    return args, kwargs, _NOT_DONE


def _read(simulation: Simulation, args: Any, kwargs: Any) -> Any:
    """A number; 1 in the place of one that depends on the weights, which a step at most checks."""
    return args, kwargs, torch.ones((), dtype=args[0].dtype).item() if args[0].value is None else args[0].value.item()


def _fused_step(simulation: Simulation, args: Any, kwargs: Any) -> Any:
    """One kernel that reads weights, gradients and moments and writes all but the gradients."""
    tensors = [each for each in leaves(args) if isinstance(each, Tensor)]
    simulation.kernels += 1
    simulation.bytes_moved += 2 * sum(each.numel() * each.element_size() for each in tensors)
    return args, kwargs, None


_SPECIAL: Mapping[Any, Callable[[Simulation, Any, Any], Any]] = {
    aten._to_copy: _move,
    aten.index: _index,
    aten.index_put: _index,
    aten.index_put_: _index,
    aten._index_put_impl_: _index,
    aten.nonzero: _from_values(aten.nonzero),
    aten.masked_select: _from_values(aten.masked_select),
    aten.repeat_interleave: _from_values(aten.repeat_interleave),
    aten.bincount: _from_values(aten.bincount),
    aten._local_scalar_dense: _read,
    aten._fused_adamw_: _fused_step,
    aten._fused_adam_: _fused_step,
}


# --- attention: the fused kernels keep nothing that is quadratic in the number of tokens ------------------------


class _FusedAttention(torch.autograd.Function):
    @staticmethod
    def forward(context: Any, queries: Any, keys: Any, values: Any, mask: Any) -> Tensor:
        simulation: Simulation = queries.simulation
        out = torch.empty_like(queries)
        context.save_for_backward(queries, keys, values, out, torch.empty_like(queries[..., 0], dtype=torch.float32))
        # A mask becomes a bias, which is kept.
        context.bias = None if mask is None else torch.empty_like(mask, dtype=queries.dtype)
        counts: Any = flop_counter
        simulation.flops[queries.dtype] += counts.sdpa_flop_count(queries.shape, keys.shape, values.shape)
        return out

    @staticmethod
    def backward(context: Any, gradient: Tensor) -> Any:
        queries, keys, values, *_ = context.saved_tensors
        simulation: Simulation = queries.simulation
        counts: Any = flop_counter
        simulation.flops[queries.dtype] += counts.sdpa_backward_flop_count(
            gradient.shape, queries.shape, keys.shape, values.shape
        )
        return torch.empty_like(queries), torch.empty_like(keys), torch.empty_like(values), None


def _attention(
    query: Any,
    key: Any,
    value: Any,
    attn_mask: Any = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    **options: Any,
) -> Any:
    kind = query.device.type
    if torch.is_autocast_enabled(kind):
        query, key, value = (each.to(torch.get_autocast_dtype(kind)) for each in (query, key, value))
    return _FusedAttention.apply(query, key, value, attn_mask)  # type: ignore[no-untyped-call]
