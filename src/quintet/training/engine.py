"""Owns a process's place in the world: rank, device, precision, wrapping of modules, start and end.

Started by `torchrun`, `accelerate launch`, Slurm or Ray Train alike: it reads the environment they set, or joins
the process group they made. This file, `collectives.py` and `sharding.py` alone import `torch.distributed`.
"""

from __future__ import annotations

import os
import resource
import socket
import sys
from collections.abc import Collection, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from datetime import timedelta
from functools import partial
from typing import NoReturn

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.rendezvous import rendezvous as _rendezvous
from torch.nn.parallel import DistributedDataParallel
from torch.utils.checkpoint import checkpoint

from quintet.common import collectives
from quintet.common.device import Device
from quintet.common.rank import RankInfo
from quintet.common.rng import seed_from
from quintet.config import EngineConfig
from quintet.errors import LostContactError, RunError, UsageError
from quintet.training.distributed import sharding
from quintet.training.distributed.rendezvous import rendezvous
from quintet.training.distributed.watchdog import HangWatchdog


def check_world(config: EngineConfig, world_size: int) -> None:
    if config.world_size is not None and config.world_size != world_size:
        raise UsageError(
            f"engine.world_size={config.world_size}, but the launcher started {world_size} "
            f"process{'es' if world_size > 1 else ''}; use `torchrun --nproc_per_node {config.world_size}`"
        )


def may_be_restarted(environment: Mapping[str, str] = os.environ) -> bool:
    """Whether the launcher was asked to run the same command again after a failure (`torchrun --max-restarts`)."""
    return int(environment.get("TORCHELASTIC_MAX_RESTARTS", "0")) > 0


class Engine(Device):
    """Devices, precision and the other processes, as one run sees them."""

    def __init__(self, config: EngineConfig, seed: int = 0) -> None:
        self.seed = seed
        place = RankInfo.from_environment()
        self._owns_group = place.world_size > 1 and not dist.is_initialized()
        super().__init__(config)
        self.watchdog: HangWatchdog | None = None
        """Only where the processes met by this engine: a launcher that made the group watches over it."""
        if self._owns_group:
            self._join(place)
        self.rank = collectives.rank()
        self.local_rank = place.local_rank
        self.world_size = collectives.world_size()
        check_world(config, self.world_size)

    @property
    def is_main(self) -> bool:
        return self.rank == 0

    @property
    def is_local_main(self) -> bool:
        return self.local_rank == 0

    @property
    def is_distributed(self) -> bool:
        return self.world_size > 1

    @property
    def is_sharded(self) -> bool:
        """Whether each process holds a part of the trained modules. Alone, a process holds all of them."""
        return self.config.fsdp and self.is_distributed

    @property
    def device_name(self) -> str:
        """What computes, and how many of it."""
        kind = torch.cuda.get_device_name(self.device) if self.device.type == "cuda" else self.device.type
        return kind if self.world_size == 1 else f"{self.world_size} x {kind}"

    def memory_in_use(self) -> int:
        """Bytes: the most that the device has held, or, on the CPU, that the process has."""
        if self.device.type == "cuda":
            return torch.cuda.max_memory_allocated(self.device)
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        return peak if sys.platform == "darwin" else peak * 1024

    def _join(self, place: RankInfo) -> None:
        backend = "nccl" if self.device.type == "cuda" else "gloo"
        timeout = timedelta(seconds=self.config.timeout_seconds)
        try:
            # By hand, because `timeout` is for processes that work: these need not have begun at one pace.
            store, _, _ = next(
                _rendezvous("env://", place.rank, place.world_size, timeout=max(timeout, RENDEZVOUS_TIMEOUT))
            )
            meeting = rendezvous(store, place.rank, place.world_size, max(timeout, RENDEZVOUS_TIMEOUT))
            own = dist.PrefixStore(f"quintet/{meeting}", store)  # type: ignore[attr-defined]
            dist.init_process_group(backend, store=own, rank=place.rank, world_size=place.world_size, timeout=timeout)
            self.watchdog = _watch(place, meeting)
        except (RuntimeError, TimeoutError) as error:
            raise LostContactError(
                f"the {place.world_size} processes of this run did not meet at MASTER_ADDR and MASTER_PORT "
                f"({str(error).splitlines()[0]})"
            ) from None

    # --- modules ------------------------------------------------------------------------------------------

    def to_device(self, modules: Mapping[str, nn.Module]) -> None:
        super().to_device(modules)
        if self.config.activation_checkpointing:
            for module in modules.values():
                _recompute_activations(module)

    def wrap(
        self, modules: Mapping[str, nn.Module], find_unused_parameters: bool, uncompiled: Collection[str] = ()
    ) -> dict[str, nn.Module]:
        """The modules as training must call them: alike on every rank, compiled and synchronised, one by one."""
        for module in modules.values():
            for tensor in (*module.parameters(), *module.buffers()):
                collectives.broadcast(tensor.data)
        return {
            name: self._wrap(module, find_unused_parameters, self.config.compile and name not in uncompiled)
            for name, module in modules.items()
        }

    def _wrap(self, module: nn.Module, find_unused_parameters: bool, compiled: bool) -> nn.Module:
        if compiled:
            module = torch.compile(module)  # type: ignore[assignment]
        trained = any(parameter.requires_grad for parameter in module.parameters())
        if not self.is_distributed or self.is_sharded or not trained:
            return module
        return DistributedDataParallel(
            module,
            device_ids=[self.device.index] if self.device.type == "cuda" else None,
            # State that is not trained changes in `after_step` alone, alike on every rank.
            forward_sync_buffers=False,
            find_unused_parameters=find_unused_parameters,
            bucket_cap_mb=self.config.bucket_megabytes,
        )

    def shard(self, modules: Mapping[str, nn.Module]) -> None:
        """Keep this process's part of the modules alone, in place, if the run is to be sharded."""
        if self.is_sharded:
            sharding.shard_modules(modules, self.device)

    # --- a step -------------------------------------------------------------------------------------------

    @contextmanager
    def micro_batch(
        self, modules: Mapping[str, nn.Module], step: int, number: int, synchronise: bool
    ) -> Iterator[None]:
        """Encloses forward and backward of one micro-batch: its dropout stream, and no exchange but in the last."""
        torch.manual_seed(seed_from(self.seed, step, number, self.rank))
        with ExitStack() as stack:
            for net in modules.values():
                sharding.set_gradient_sync(net, synchronise)
            if not synchronise:
                for net in modules.values():
                    if isinstance(net, DistributedDataParallel):
                        stack.enter_context(net.no_sync())
            yield

    def any_rank(self, *flags: bool | Tensor) -> list[bool]:
        """Which flags are raised on any rank: one message and one read from the device for all of them."""
        raised = torch.stack([torch.as_tensor(flag, device=self.device, dtype=torch.float32) for flag in flags])
        return [value > 0 for value in collectives.maximum_over_ranks(raised).tolist()]

    def from_main(self, value: int) -> int:
        """The main process's number, on every rank."""
        return int(collectives.broadcast(torch.tensor([value], device=self.device)).item())

    def explain(self, error: BaseException, accumulate: int, micro_batch: int) -> RunError | None:
        """One sentence for a failure that is not of the code; the processes that it leaves waiting are told."""
        failure = explain_failure(error, accumulate, micro_batch)
        if isinstance(failure, LostContactError) and self.watchdog is not None:
            self.watchdog.fail(str(failure))
        return failure

    def barrier(self) -> None:
        if self.is_distributed:
            dist.barrier()

    def close(self) -> None:
        """Leave the process group in good order; the last thing after all work succeeded."""
        if self._owns_group and dist.is_initialized():
            if self.watchdog is not None:
                self.watchdog.stop()
            dist.barrier()
            dist.destroy_process_group()
            self._owns_group = False


RENDEZVOUS_TIMEOUT = timedelta(minutes=10)
"""How long processes wait for each other to begin, at least: they need not start, nor list the data, at one pace."""


def _watch(place: RankInfo, meeting: str) -> HangWatchdog:
    """At the store through which the processes met, by a connection of its own."""
    address = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])

    def alive() -> bool:
        try:
            socket.create_connection(address, timeout=1).close()
        except OSError:
            return False
        return True

    store = dist.TCPStore(*address, is_master=False)  # type: ignore[attr-defined]
    return HangWatchdog(store, alive, meeting, place.rank, place.world_size)


def _recompute_activations(module: nn.Module) -> None:
    """Blocks whose class says `recomputable = True` forget their activations until the backward pass."""
    for block in module.modules():
        if getattr(type(block), "recomputable", False) and "forward" not in vars(block):
            block.forward = partial(checkpoint, block.forward, use_reentrant=False)


def explain_failure(error: BaseException, accumulate: int, micro_batch: int) -> RunError | None:
    """One sentence for the failures of machines rather than of code; None when it is not one."""
    text = str(error)
    # oneDNN and the C++ library have words of their own for memory they did not get.
    signs = ("can't allocate memory", "could not create a primitive", "bad_alloc")
    if isinstance(error, (MemoryError, torch.OutOfMemoryError)) or any(sign in text for sign in signs):
        if micro_batch <= 1:
            return RunError("out of memory with micro-batches of one item; use a smaller model or smaller items")
        factor = next(number for number in range(2, micro_batch + 1) if micro_batch % number == 0)
        return RunError(
            f"out of memory; use a larger train.grad_accum_steps (now {accumulate}, try {accumulate * factor}): "
            "micro-batches shrink and the batch stays what it is"
        )
    if isinstance(error, RuntimeError) and any(sign in text for sign in ("gloo", "NCCL", "Connection closed")):
        if "imed out" in text:
            return LostContactError(
                "another process of this run did not answer within engine.timeout_seconds; the run's log.txt has the "
                "stack of each"
            )
        reason = text.splitlines()[0].partition(". ")[0]
        return LostContactError(f"lost contact with another process of this run ({reason}); see that process's log")
    return None


def exit_process(code: int) -> NoReturn:
    """End a process that took part in a group. gloo's threads may abort an ordinary interpreter exit after all
    work is done, which would turn a green run red."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)
