"""Owns models that lie in parts over the processes (FSDP2): how they are cut, looked at whole, saved and read.

A parameter that was cut is a `DTensor`: it says its whole shape and holds this process's rows. Everything here takes
whole tensors too and then does the obvious, so that optimizers, averages and checkpoints need not ask.

A checkpoint in parts is written by torch's distributed checkpoints, as safetensors, each process its own file of each
group, which it also hashes. Nothing is pickled to disk; what the processes tell each other about who writes what goes
through torch's own messages.

What is needed of torch takes a second to import, so that only runs in parts import it.
"""

from __future__ import annotations

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


def shard_modules(modules: Mapping[str, nn.Module], device: torch.device) -> None:
    """Leave each process its part of each module, in place. Blocks are gathered one at a time when they are used: those
    whose class says `recomputable`; all else of a module is gathered together."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    # Nothing here changes what a module returns in place, which is what torch warns of.
    warnings.filterwarnings("ignore", message="FSDP2-wrapped module .* returned a view tensor")
    mesh = init_device_mesh(device.type, (collectives.world_size(),))
    for module in modules.values():
        for block in module.modules():
            if getattr(type(block), "recomputable", False):
                fully_shard(block, mesh=mesh)
        fully_shard(module, mesh=mesh)


def set_gradient_sync(module: nn.Module, wanted: bool) -> None:
    """Whether the next backward pass of a cut module exchanges gradients, or keeps them for a later one."""
    set_synchronisation: Callable[[bool], None] | None = getattr(module, "set_requires_gradient_sync", None)
    if set_synchronisation is not None:
        set_synchronisation(wanted)


@contextmanager
def unsharded(modules: Iterable[nn.Module]) -> Iterator[None]:
    """Cut modules with all their weights in every process, so that any of their methods can be called."""
    parts = _sharded_parts(modules)
    for part in parts:
        part.set_reshard_after_forward(False, recurse=False)
        part.unshard()
    try:
        yield
    finally:
        for part in parts:
            part.reshard()
            part.set_reshard_after_forward(True, recurse=False)


def _sharded_parts(modules: Iterable[nn.Module]) -> list[Any]:
    """Those parts of modules that torch has made an `FSDPModule`."""
    found = {id(part): part for module in modules for part in module.modules() if hasattr(part, "unshard")}
    return list(found.values())


# --- tensors ----------------------------------------------------------------------------------------------------


def local_tensor(tensor: Tensor) -> Tensor:
    """What this process holds of a tensor."""
    part: Tensor = tensor.to_local() if is_sharded(tensor) else tensor
    return part


def is_sharded(tensor: Tensor) -> TypeGuard[Any]:
    """Whether it is a `DTensor`. By its name, which is asked of many tensors at every step."""
    return type(tensor).__name__ == "DTensor"


def full_tensor(tensor: Tensor) -> Tensor:
    """The whole tensor, or the whole result of a computation on parts. All processes must ask together."""
    whole: Tensor = tensor.full_tensor() if is_sharded(tensor) else tensor
    return whole


def copy_into(target: Tensor, source: Tensor) -> None:
    """Copy a whole tensor, the same in all processes, into one that may be cut."""
    if is_sharded(target) and not is_sharded(source):
        from torch.distributed.tensor import distribute_tensor

        ready = source.to(target.device, target.dtype)
        source = distribute_tensor(ready, target.device_mesh, target.placements, src_data_rank=None)
    target.copy_(source)


# --- checkpoints ------------------------------------------------------------------------------------------------


def write(root: Path, step: int, contents: Contents, device: torch.device) -> None:
    """As `checkpoint.write`, by all processes together: where one of them fails, all raise its OSError."""
    target = checkpoint.folder_of(root, step)
    temporary = checkpoint.temporary_of(target)
    main = collectives.rank() == 0
    try:
        _together(partial(checkpoint.begin_folder, target) if main else _nothing, device)
        for name, tensors in contents.tensors.items():
            _save(temporary / name, tensors)
        own = _together(partial(_own_hashes, temporary), device)
        hashes = {
            name: value
            for text in collectives.gather_texts(json.dumps(own), device)
            for name, value in json.loads(text).items()
        }
        finish = partial(checkpoint.finish_folder, target, Contents(json=contents.json, text=contents.text), hashes)
        _together(finish if main else _nothing, device)
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
    own = checkpoint.unshared({name: tensor.detach() for name, tensor in tensors.items()}, local_tensor)
    try:
        state_dict_saver.save(own, storage_writer=writer)
    except CheckpointException as error:
        raise OSError(_reason(error)) from None


def _own_hashes(folder: Path) -> dict[str, str]:
    mine = folder.rglob(f"shard-{collectives.rank() + 1:05d}-*.safetensors")
    return {path.relative_to(folder).as_posix(): checkpoint.hash_file(path) for path in mine}


def read(folder: Path, name: str, into: Mapping[str, Tensor]) -> None:
    """Fill tensors, cut as they are now, from a group of a checkpoint that was cut in any way."""
    from torch.distributed.checkpoint import state_dict_loader
    from torch.distributed.checkpoint.api import CheckpointException
    from torch.distributed.checkpoint.hf_storage import HuggingFaceStorageReader

    try:
        state_dict_loader.load(dict(into), storage_reader=HuggingFaceStorageReader(str(folder / name)))
    except CheckpointException as error:
        raise CheckpointError(f"cannot read {folder / name}: {_reason(error)}") from None


def _together(work: Callable[[], T], device: torch.device) -> T:
    """Do something in each process; where one cannot, none goes on."""
    problem, done = "", []
    try:
        done.append(work())
    except OSError as error:
        problem = str(error) or type(error).__name__
    problems = [text for text in collectives.gather_texts(problem, device) if text]
    if problems:
        raise OSError(problems[0])
    return done[0]


def _nothing() -> None:
    """What the other processes do while one works."""


def _reason(error: CheckpointException) -> str:
    """Torch brings the failures of all processes, each with its stack."""
    first, _ = next(iter(error.failures.values()))
    return one_line(first if isinstance(first, Exception) else Exception(str(first)))
