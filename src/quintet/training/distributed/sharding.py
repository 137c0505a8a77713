"""Sharded models (FSDP2): sharding modules, gathering full tensors, sharded checkpoints.

A sharded parameter is a `DTensor`: it reports the full shape and holds the local shard of this process. Every function
also accepts ordinary tensors, so that optimizers, EMA and checkpoints need no case distinction.

Sharded checkpoints are written with torch's distributed checkpointing, as safetensors: each process writes and hashes
its own file of each group. Nothing is pickled to disk; the processes coordinate through torch's own messages.

The torch modules for this take a second to import, so they are imported inside functions.
"""

from __future__ import annotations

import copy
import json
import shutil
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeGuard, TypeVar

import torch
from torch import Tensor, nn

from quintet.common import collectives
from quintet.common.files import one_line
from quintet.common.weights import checkpoint
from quintet.common.weights.checkpoint import Contents
from quintet.errors import CheckpointError

if TYPE_CHECKING:
    from torch.distributed.checkpoint.api import CheckpointException

T = TypeVar("T")


# --- modules ----------------------------------------------------------------------------------------------------


def shard_modules(modules: Mapping[str, nn.Module], device: torch.device, gathered: torch.dtype | None = None) -> None:
    """Shard modules in place over all processes (`fully_shard`).

    Blocks whose class sets `recomputable = True` are gathered one at a time when they are used; the rest of a module is
    gathered together. With `gathered`, weights are gathered and used in that data type; shards, optimizers and
    gradients stay in that of the weights."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

    # torch warns about in-place changes of module outputs; quintet makes none.
    warnings.filterwarnings("ignore", message="FSDP2-wrapped module .* returned a view tensor")
    mesh = init_device_mesh(device.type, (collectives.world_size(),))
    # Inputs are left to autocast: positions and masks are not for rounding.
    policy = MixedPrecisionPolicy(gathered, torch.float32 if gathered else None, cast_forward_inputs=False)
    for module in modules.values():
        for block in module.modules():
            if getattr(type(block), "recomputable", False):
                fully_shard(block, mesh=mesh, mp_policy=policy)
        fully_shard(module, mesh=mesh, mp_policy=policy)


def copy_without_weights(module: nn.Module) -> nn.Module:
    """A copy of a module whose parameters are on `meta`, to be sharded and then filled by `allocate_shards`."""
    empty = {id(parameter): nn.Parameter(parameter.detach().to("meta")) for parameter in module.parameters()}
    return copy.deepcopy(module, memo=empty)


def allocate(module: nn.Module, device: torch.device) -> None:
    """Allocate the tensors of a module that are on `meta`; of a sharded module, the local shards."""
    fill: Any = module._apply
    fill(lambda tensor: torch.empty_like(tensor, device=device) if tensor.is_meta else tensor)


def allocate_shards(module: nn.Module, source: nn.Module) -> None:
    """Allocate the parameters of a sharded module on `meta`, with the values of another one of the same shards."""
    values = dict(source.named_parameters(remove_duplicate=False))
    allocate(module, local_tensor(next(iter(values.values()))).device)
    for name, parameter in module.named_parameters(remove_duplicate=False):
        local_tensor(parameter).copy_(local_tensor(values[name]))
    for copied, buffer in zip(module.buffers(), source.buffers(), strict=True):
        copied.copy_(buffer)


def set_gradient_sync(module: nn.Module, enabled: bool) -> None:
    """Whether the next backward pass of a sharded module reduces gradients over ranks, or only accumulates them."""
    set_sync: Callable[[bool], None] | None = getattr(module, "set_requires_gradient_sync", None)
    if set_sync is not None:
        set_sync(enabled)


@contextmanager
def unsharded(modules: Iterable[nn.Module]) -> Iterator[None]:
    """Gather the full weights of sharded modules in every process, so that any of their methods can be called."""
    submodules = _fsdp_modules(modules)
    for submodule in submodules:
        submodule.set_reshard_after_forward(False, recurse=False)
        submodule.unshard()
    try:
        yield
    finally:
        for submodule in submodules:
            submodule.reshard()
            submodule.set_reshard_after_forward(True, recurse=False)


def _fsdp_modules(modules: Iterable[nn.Module]) -> list[Any]:
    """All submodules that are an `FSDPModule`."""
    found = {
        id(submodule): submodule
        for module in modules
        for submodule in module.modules()
        if hasattr(submodule, "unshard")
    }
    return list(found.values())


# --- tensors ----------------------------------------------------------------------------------------------------


def local_tensor(tensor: Tensor) -> Tensor:
    """The local shard of a `DTensor`; any other tensor unchanged."""
    local: Tensor = tensor.to_local() if is_sharded(tensor) else tensor
    return local


def is_sharded(tensor: Tensor) -> TypeGuard[Any]:
    """Whether a tensor is a `DTensor`. Compares the class name: cheap, because many tensors are checked per step."""
    return type(tensor).__name__ == "DTensor"


def full_tensor(tensor: Tensor) -> Tensor:
    """Gather the full tensor of a `DTensor`; any other tensor unchanged. All processes must call this together."""
    full: Tensor = tensor.full_tensor() if is_sharded(tensor) else tensor
    return full


def copy_into(target: Tensor, source: Tensor) -> None:
    """Copy a full tensor, the same in all processes, into a tensor that may be sharded."""
    if is_sharded(target) and not is_sharded(source):
        from torch.distributed.tensor import distribute_tensor

        ready = source.to(target.device, target.dtype)
        source = distribute_tensor(ready, target.device_mesh, target.placements, src_data_rank=None)
    target.copy_(source)


# --- checkpoints ------------------------------------------------------------------------------------------------


def write(root: Path, step: int, contents: Contents, device: torch.device) -> None:
    """Like `checkpoint.write`, by all processes together. If one process fails, all raise its OSError."""
    target = checkpoint.folder_of(root, step)
    temporary = checkpoint.temporary_of(target)
    main = collectives.rank() == 0
    try:
        _on_all_ranks(partial(checkpoint.begin_folder, target) if main else _no_op, device)
        for name, tensors in contents.tensors.items():
            _save(temporary / name, tensors)
        local_hashes = _on_all_ranks(partial(_local_hashes, temporary), device)
        hashes = {
            name: value
            for text in collectives.gather_texts(json.dumps(local_hashes), device)
            for name, value in json.loads(text).items()
        }
        finish = partial(checkpoint.finish_folder, target, Contents(json=contents.json, text=contents.text), hashes)
        _on_all_ranks(finish if main else _no_op, device)
    finally:
        if main:
            shutil.rmtree(temporary, ignore_errors=True)
    if main:
        checkpoint.update_latest(target)


def _save(folder: Path, tensors: Mapping[str, Tensor]) -> None:
    from torch.distributed.checkpoint import state_dict_saver
    from torch.distributed.checkpoint.api import CheckpointException
    from torch.distributed.checkpoint.hf_storage import HuggingFaceStorageWriter

    writer = HuggingFaceStorageWriter(str(folder), save_distributed=True)
    state = checkpoint.unshared({name: tensor.detach() for name, tensor in tensors.items()}, local_tensor)
    try:
        state_dict_saver.save(state, storage_writer=writer)
    except CheckpointException as error:
        raise OSError(_reason(error)) from None


def _local_hashes(folder: Path) -> dict[str, str]:
    written = folder.rglob(f"shard-{collectives.rank() + 1:05d}-*.safetensors")
    return {path.relative_to(folder).as_posix(): checkpoint.hash_file(path) for path in written}


def read(folder: Path, name: str, into: Mapping[str, Tensor]) -> None:
    """Read a group of a sharded checkpoint into tensors, which may be sharded in another way than the checkpoint."""
    from torch.distributed.checkpoint import state_dict_loader
    from torch.distributed.checkpoint.api import CheckpointException
    from torch.distributed.checkpoint.hf_storage import HuggingFaceStorageReader

    try:
        state_dict_loader.load(dict(into), storage_reader=HuggingFaceStorageReader(str(folder / name)))
    except CheckpointException as error:
        raise CheckpointError(f"cannot read {folder / name}: {_reason(error)}") from None


def _on_all_ranks(work: Callable[[], T], device: torch.device) -> T:
    """Call `work` in every process. If it fails in one of them, all raise OSError."""
    problem, results = "", []
    try:
        results.append(work())
    except OSError as error:
        problem = str(error) or type(error).__name__
    problems = [text for text in collectives.gather_texts(problem, device) if text]
    if problems:
        raise OSError(problems[0])
    return results[0]


def _no_op() -> None:
    """The work of all ranks but 0."""


def _reason(error: CheckpointException) -> str:
    """The first message: torch collects the failures of all processes, each with its traceback."""
    first, _ = next(iter(error.failures.values()))
    return one_line(first if isinstance(first, Exception) else Exception(str(first)))
