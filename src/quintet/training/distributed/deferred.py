"""`DeferredInit`: initial weights of a sharded model, computed tensor by tensor after the model is sharded.

The constructors of the modules run as usual, but allocate nothing: new tensors are on `meta`, and every operation on
them is recorded, with the random draws. Later each process replays the record. The draws keep their order, so the
weights are, byte for byte, those of a model that is built at once. Of each finished tensor a process keeps its shard.
"""

from __future__ import annotations

import heapq
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple, Self

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map

from quintet.common.logging import say
from quintet.training.distributed.sharding import allocate, copy_into

if TYPE_CHECKING:
    from quintet.training.task import Task

_aten = torch.ops.aten
_ALLOCATING = frozenset(
    (
        *(_aten.empty, _aten.empty_like, _aten.empty_strided, _aten.new_empty, _aten.new_empty_strided),
        *(_aten.zeros, _aten.zeros_like, _aten.new_zeros, _aten.ones, _aten.ones_like, _aten.new_ones),
        *(_aten.full, _aten.full_like, _aten.new_full),
    )
)
"""What parameters are made by, besides random draws. Tables (`arange`) are computed at once: they may be read."""
_IS_META = torch.Tensor.is_meta.__get__  # type: ignore[attr-defined]
CPU, META = torch.device("cpu"), torch.device("meta")


class NotRecordableError(RuntimeError):
    """A constructor reads the values of a new tensor, or writes random numbers to an existing one."""


class _View(NamedTuple):
    """A recorded tensor: the number of its memory, and how it lies in it."""

    memory: int
    dtype: torch.dtype
    size: torch.Size
    stride: tuple[int, ...]
    offset: int


@dataclass(frozen=True)
class _Step:
    """A recorded operation; views take the place of its recorded tensors."""

    function: Any
    arguments: tuple[Any, ...]
    keywords: Mapping[str, Any]
    results: tuple[_View | None, ...]
    """The results in new memory; None for others."""
    written: frozenset[int]
    """The memory that it changes or creates."""
    is_source: bool
    """Whether it draws random numbers, or depends on no other step."""

    @property
    def memories(self) -> set[int]:
        """The memory that it reads, changes or creates."""
        return {view.memory for view in _views((self.arguments, self.keywords))} | self.written


class _OrdinaryTensors(TorchFunctionMode):
    """Hides that tensors are on `meta`: the initialisations of `torch.nn.init` would leave them as they are."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return False if func == _IS_META else func(*args, **(kwargs or {}))


class DeferredInit(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """As a context: records how tensors are computed. `fill` computes them."""

    def __init__(self, seed: int) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.seed = seed
        """Seed of torch's global generator for the first draw."""
        self._steps: list[_Step] = []
        self._numbers: dict[int, int] = {}
        """Address of a memory to its number."""
        self._kept: list[torch.UntypedStorage] = []
        """Each memory, so that no address is used twice."""
        self._ordinary = _OrdinaryTensors()
        self._threads = torch.get_num_threads()
        self._sources: set[int] = set()
        """Addresses of the existing memory that recorded operations read."""
        self._generators: dict[int, tuple[torch.Generator, Tensor]] = {}
        """The state of each generator at its first recorded draw: recording draws nothing."""

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """False: to skip it, torch would import the compiler, which takes a second and 30 MB."""
        return False

    # --- recording ----------------------------------------------------------------------------------------------

    def __enter__(self) -> Self:
        self._ordinary.__enter__()  # type: ignore[no-untyped-call]
        super().__enter__()  # type: ignore[no-untyped-call]
        return self

    def __exit__(self, *reason: Any) -> None:
        super().__exit__(*reason)  # type: ignore[no-untyped-call]
        self._ordinary.__exit__(*reason)  # type: ignore[no-untyped-call]

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        depends = any(map(_is_recorded, tree_leaves((args, kwargs))))
        is_random = torch.Tag.nondeterministic_seeded in func.tags
        # As for `down.to(weight)`: the tensor moves to the device of a recorded one.
        moves = torch.device(kwargs.get("device") or CPU) == META
        if not (depends or is_random or moves or func.overloadpacket in _ALLOCATING):
            if any(_address(each) in self._sources for each in _changed(func, args, kwargs)):
                raise NotRecordableError(f"{func} changes a tensor that was read before")
            return func(*args, **kwargs)
        if is_random:
            self._check_generator(kwargs.get("generator") or torch.default_generator)
        return self._record(func, args, kwargs, is_random or not depends)

    def _record(self, function: Any, args: Any, kwargs: Any, is_source: bool) -> Any:
        changed = _changed(function, args, kwargs)
        if not all(map(_is_recorded, changed)):
            raise NotRecordableError(f"{function} changes an existing tensor")
        self._sources |= {
            _address(each)
            for each in tree_leaves((args, kwargs))
            if isinstance(each, Tensor) and not _is_recorded(each)
        }
        arguments, keywords = tree_map(self._described, (args, kwargs))
        if "device" in keywords and torch.device(keywords["device"] or CPU) == META:
            keywords["device"] = CPU
        try:
            made = _on_meta(function, args, kwargs)
        except (RuntimeError, TypeError) as error:
            raise NotRecordableError(f"{function}: {error}") from None
        results = tuple(self._new_memory(each) for each in tree_leaves(made))
        written = frozenset(
            [self._view(each).memory for each in changed] + [view.memory for view in results if view is not None]
        )
        # Otherwise it is a view, also if it turns a tensor into a view of itself (`t_`).
        if written and torch.Tag.inplace_view not in function.tags:
            self._steps.append(_Step(function, arguments, keywords, results, written, is_source))
        return made

    def _check_generator(self, generator: torch.Generator) -> None:
        state = generator.get_state()
        _, known = self._generators.setdefault(id(generator), (generator, state))
        if not torch.equal(state, known):
            raise NotRecordableError("a generator was seeded or used between two draws")

    def _described(self, value: Any) -> Any:
        return self._view(value) if _is_recorded(value) else value

    def _view(self, tensor: Tensor) -> _View:
        number = self._numbers.get(_address(tensor))
        if number is None:
            raise NotRecordableError("a tensor on meta was not recorded")
        return _View(number, tensor.dtype, tensor.size(), tensor.stride(), int(tensor.storage_offset()))

    def _new_memory(self, result: Any) -> _View | None:
        """The view of a result in new memory; None for others."""
        if not isinstance(result, Tensor) or _address(result) in self._numbers:
            return None
        self._numbers[_address(result)] = len(self._kept)
        self._kept.append(result.untyped_storage())
        return self._view(result)

    # --- replaying ----------------------------------------------------------------------------------------------

    @torch.no_grad()
    def shard(self, modules: Iterable[nn.Module], device: torch.device, shard: Callable[[], None]) -> None:
        """Shard modules with `shard`, allocate the shards on `device`, and fill them with the recorded values."""
        modules = list(modules)
        views = [{name: self._described(tensor) for name, tensor in _tensors(module).items()} for module in modules]
        shard()
        targets: dict[int, list[tuple[_View, Tensor]]] = defaultdict(list)
        for module, known in zip(modules, views, strict=True):
            allocate(module, device)
            for name, tensor in _tensors(module).items():
                if isinstance(view := known[name], _View):
                    targets[view.memory].append((view, tensor))

        def keep_shard(memory: _Memory, number: int) -> None:
            for view, target in targets[number]:
                copy_into(target, memory.tensor(view))

        self._replay(keep_shard)

    def _replay(self, finish: Callable[[_Memory, int], None]) -> None:
        """Run the steps. Each memory is passed to `finish` after the last step that uses it, and then freed.

        Sources keep their order, and with it the random numbers. Every other step runs as soon as it can, so that a
        tensor is finished before the next one is begun.
        """
        memory = _Memory()
        dependents, waiting = _dependencies(self._steps)
        uses = Counter(number for step in self._steps for number in step.memories)
        ready = [(step.is_source, index) for index, step in enumerate(self._steps) if not waiting[index]]
        heapq.heapify(ready)
        with torch.random.fork_rng(devices=[]), _threads(self._threads):
            torch.manual_seed(self.seed)
            while ready:
                _, index = heapq.heappop(ready)
                memory.run(self._steps[index])
                for number in self._steps[index].memories:
                    uses[number] -= 1
                    if not uses[number]:
                        finish(memory, number)
                        memory.free(number)
                for later in dependents[index]:
                    waiting[later] -= 1
                    if not waiting[later]:
                        heapq.heappush(ready, (self._steps[later].is_source, later))


def build_deferred(build: Callable[[], Task[Any]], seed: int) -> Task[Any]:
    """A task whose modules are on `meta`, with the record of their weights. If its constructors need values, it is
    built as in one process."""
    deferred = DeferredInit(seed)
    with suppress(RuntimeError, TypeError), deferred:  # from here, or from torch: values on `meta` cannot be read
        task = build()
        if not _has_other_tensors(task):
            task.deferred = deferred
            return task
    say("the initial weights cannot be computed in shards: each process builds the full model first")
    torch.manual_seed(seed)
    return build()


def _has_other_tensors(task: Task[Any]) -> bool:
    """Whether the task or a module has a recorded tensor that is neither a parameter nor a buffer."""
    parts = [part for module in task.modules.values() for part in module.modules()]
    known = ("_parameters", "_buffers", "_modules", "modules")
    values = [value for owner in (task, *parts) for name, value in vars(owner).items() if name not in known]
    return any(_is_recorded(each) and not isinstance(each, nn.Parameter) for each in tree_leaves(values))


def recording(task: Task[Any]) -> AbstractContextManager[object]:
    """While the modules of a task are changed: if their weights are computed later, the changes are recorded."""
    return task.deferred or nullcontext()


@contextmanager
def _threads(number: int) -> Iterator[None]:
    """Sums depend on the number of threads."""
    before = torch.get_num_threads()
    torch.set_num_threads(number)
    try:
        yield
    finally:
        torch.set_num_threads(before)


class _Memory:
    """The tensors of a replay, by the number of their memory."""

    def __init__(self) -> None:
        self._made: dict[int, tuple[_View, Tensor]] = {}

    def run(self, step: _Step) -> None:
        arguments, keywords = tree_map(self._value, (step.arguments, step.keywords), is_leaf=_is_view)
        made = tree_leaves(step.function(*arguments, **keywords))
        self._made |= {
            view.memory: (view, tensor) for view, tensor in zip(step.results, made, strict=True) if view is not None
        }

    def tensor(self, view: _View) -> Tensor:
        whole, made = self._made[view.memory]
        if view == whole:  # its strides may differ from those on `meta`
            return made
        assert made.stride() == whole.stride
        empty = torch.empty(0, dtype=view.dtype, device=made.device)
        return empty.set_(made.untyped_storage(), view.offset, view.size, view.stride)

    def free(self, number: int) -> None:
        del self._made[number]

    def _value(self, value: Any) -> Any:
        return self.tensor(value) if _is_view(value) else value


def _dependencies(steps: list[_Step]) -> tuple[list[set[int]], list[int]]:
    """The steps that need each step to be done, and the number of steps that each one waits for."""
    writer: dict[int, int] = {}
    readers: dict[int, set[int]] = defaultdict(set)
    dependents: list[set[int]] = [set() for _ in steps]
    waiting = []
    for index, step in enumerate(steps):
        needed = {writer[number] for number in step.memories if number in writer}
        for number in step.memories:
            if number in step.written:
                needed |= readers.pop(number, set())
                writer[number] = index
            else:
                readers[number].add(index)
        waiting.append(len(needed))
        for earlier in needed:
            dependents[earlier].add(index)
    return dependents, waiting


def _on_meta(function: Any, args: Any, kwargs: Any) -> Any:
    """The result of an operation without contents."""
    arguments, keywords = tree_map(lambda value: value.to(META) if isinstance(value, Tensor) else value, (args, kwargs))
    if "device" in keywords:
        keywords["device"] = META
    if "generator" in keywords:
        keywords["generator"] = None  # it is one of the CPU
    return function(*arguments, **keywords)


def _changed(function: Any, args: Any, kwargs: Any) -> list[Tensor]:
    """The tensors that an operation changes in place."""
    values = dict(zip((argument.name for argument in function._schema.arguments), args, strict=False)) | kwargs
    names = [each.name for each in function._schema.arguments if each.alias_info and each.alias_info.is_write]
    return [each for name in names for each in tree_leaves(values.get(name)) if isinstance(each, Tensor)]


def _tensors(module: nn.Module) -> dict[str, Tensor]:
    """Parameters and buffers, also those that are shared, by name."""
    parameters = module.named_parameters(remove_duplicate=False)
    return {**dict(parameters), **dict(module.named_buffers(remove_duplicate=False))}


def _is_recorded(value: Any) -> bool:
    return isinstance(value, Tensor) and value.device == META


def _address(tensor: Tensor) -> int:
    return int(tensor.untyped_storage()._cdata)


def _is_view(value: Any) -> bool:
    return isinstance(value, _View)


def _views(values: Any) -> list[_View]:
    return [value for value in tree_leaves(values, is_leaf=_is_view) if _is_view(value)]
