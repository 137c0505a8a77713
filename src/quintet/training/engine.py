"""`Engine`: rank, device and precision of a process, wrapping of modules (compile, DDP, FSDP), process group.

Works under `torchrun`, `accelerate launch`, Slurm and Ray Train: it reads the environment that they set, or uses the
process group that they created. Only this file, `collectives.py` and `sharding.py` import `torch.distributed`.
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
from typing import Any, ClassVar, NoReturn

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.rendezvous import rendezvous as torch_rendezvous
from torch.nn.parallel import DistributedDataParallel
from torch.utils.checkpoint import checkpoint

from quintet.common import collectives, launched, streams
from quintet.common.allocator import keep_freed_memory
from quintet.common.device import Device
from quintet.common.files import one_line
from quintet.common.memory import is_out_of_memory
from quintet.common.rank import RankInfo, check_world
from quintet.common.regions import Regions
from quintet.common.rng import seed_from
from quintet.config import EngineConfig
from quintet.errors import LostContactError, RunError
from quintet.training.distributed import sharding
from quintet.training.distributed.rendezvous import rendezvous
from quintet.training.distributed.watchdog import HangWatchdog, did_not_answer


def may_be_restarted(environment: Mapping[str, str] = os.environ) -> bool:
    """Whether the launcher restarts the command after a failure (`torchrun --max-restarts`)."""
    return int(environment.get("TORCHELASTIC_MAX_RESTARTS", "0")) > 0


class Engine(Device):
    """Device, precision and process group of one run."""

    compile_backend: ClassVar[str] = "inductor"
    """Backend of `torch.compile`."""

    def __init__(self, config: EngineConfig, seed: int = 0) -> None:
        self.seed = seed
        rank_info = RankInfo.from_environment()
        self._owns_group = rank_info.world_size > 1 and not dist.is_initialized()
        super().__init__(config)
        if self.device.type == "cpu":
            keep_freed_memory()
        self.loss_scale = 1.0
        """Factor of the loss in the backward pass (fp16); set by the trainer before each step."""
        self._regions: Regions | None = None
        self.watchdog: HangWatchdog | None = None
        """None if the launcher created the process group: it then detects hangs itself."""
        if self._owns_group:
            self._join(rank_info)
        self.rank = collectives.rank()
        self.local_rank = rank_info.local_rank
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
        """Whether the trained modules are sharded over processes (FSDP). A single process always holds all weights."""
        return self.config.fsdp and self.is_distributed

    @property
    def device_name(self) -> str:
        """The kind of device, with the number of processes."""
        kind = torch.cuda.get_device_name(self.device) if self.device.type == "cuda" else self.device.type
        return kind if self.world_size == 1 else f"{self.world_size} x {kind}"

    @property
    def product_dtype(self) -> torch.dtype:
        """The data type of matrix products in the forward and backward pass."""
        with self.autocast():
            kind = self.device.type
            return torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else self.dtype

    def memory_in_use(self) -> int:
        """Peak memory in bytes: of the CUDA device, or of the process on other devices."""
        if self.device.type == "cuda":
            return torch.cuda.max_memory_allocated(self.device)
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        return peak if sys.platform == "darwin" else peak * 1024

    def _join(self, rank_info: RankInfo) -> None:
        timeout = timedelta(seconds=self.config.timeout_seconds)
        try:
            # An explicit rendezvous: `timeout` is for running processes, and processes may start at different times.
            patience = max(timeout, RENDEZVOUS_TIMEOUT)
            store = _open_store(rank_info, patience)
            attempt = rendezvous(store, rank_info.rank, rank_info.world_size, patience)
            dist.init_process_group(
                **group_arguments(self.device),
                store=dist.PrefixStore(f"quintet/{attempt}", store),  # type: ignore[attr-defined]
                rank=rank_info.rank,
                world_size=rank_info.world_size,
                timeout=collective_timeout(self.device, timeout),
            )
            self.watchdog = _start_watchdog(rank_info, attempt, watchdog_timeout(self.device, timeout))
        except (RuntimeError, TimeoutError) as error:
            raise LostContactError(
                f"the {rank_info.world_size} processes of this run did not find each other at MASTER_ADDR and "
                f"MASTER_PORT ({str(error).splitlines()[0]})"
            ) from None

    # --- modules ------------------------------------------------------------------------------------------

    def to_device(self, modules: Mapping[str, nn.Module]) -> None:
        super().to_device(modules)
        if self.config.activation_checkpointing:
            for module in modules.values():
                recompute_activations(module)

    def wrap(
        self,
        modules: Mapping[str, nn.Module],
        find_unused_parameters: bool,
        uncompiled: Collection[str] = (),
        varying_shapes: bool = False,
    ) -> dict[str, nn.Module]:
        """Prepare modules for training: broadcast the weights of rank 0, compile, and wrap in DDP."""
        for module in modules.values():
            for tensor in (*module.parameters(), *module.buffers()):
                if not tensor.is_meta:  # all processes compute the same values (DeferredInit)
                    collectives.broadcast(tensor.data)
        if self.config.compile:
            self._regions = Regions(varying_shapes, self.compile_backend)
        return {
            name: self._wrap(module, find_unused_parameters, None if name in uncompiled else self._regions)
            for name, module in modules.items()
        }

    def _wrap(self, module: nn.Module, find_unused_parameters: bool, regions: Regions | None) -> nn.Module:
        if regions is not None:
            module = regions.compile_module(module)
        trained = any(parameter.requires_grad for parameter in module.parameters())
        if not self.is_distributed or self.is_sharded or not trained:
            return module
        return DistributedDataParallel(
            module,
            device_ids=[self.device.index] if self.device.type == "cuda" else None,
            # Buffers change only in `after_step`, in the same way on every rank.
            forward_sync_buffers=False,
            find_unused_parameters=find_unused_parameters,
            bucket_cap_mb=self.config.bucket_megabytes,
            # Gradients are views of the buckets, which otherwise need the memory of the gradients once more.
            gradient_as_bucket_view=True,
        )

    def shard(self, modules: Mapping[str, nn.Module]) -> None:
        """Shard modules in place if the run uses FSDP and has several processes."""
        if self.is_sharded:
            # Half of the traffic. Not in fp16, whose range is too small for what blocks add up.
            gathered = torch.bfloat16 if self.precision == "bf16" else None
            sharding.shard_modules(modules, self.device, gathered)

    # --- a step -------------------------------------------------------------------------------------------

    @contextmanager
    def micro_batch(
        self, modules: Mapping[str, nn.Module], step: int, number: int, synchronise: bool
    ) -> Iterator[None]:
        """Context of one micro-batch: seeds dropout, compiles if the run does, and disables gradient synchronisation
        unless `synchronise`."""
        torch.manual_seed(seed_from(self.seed, step, number, self.rank))
        with ExitStack() as stack:
            if self._regions is not None:
                stack.enter_context(self._regions.active())
            for module in modules.values():
                sharding.set_gradient_sync(module, synchronise)
            if not synchronise:
                for module in modules.values():
                    if isinstance(module, DistributedDataParallel):
                        stack.enter_context(module.no_sync())
            yield

    def forget_compiled(self) -> None:
        """See `Regions.forget`."""
        if self._regions is not None:
            self._regions.forget()

    def scaled(self, loss: Tensor) -> Tensor:
        """The loss for the backward pass; in fp16 it is scaled, and the trainer unscales the gradients."""
        return loss if self.loss_scale == 1.0 else loss * self.loss_scale

    def any_rank(self, *flags: bool | Tensor) -> list[bool]:
        """For each flag, whether it is set on any rank. One all-reduce and one device read for all flags."""
        raised = torch.stack([self._as_flag(flag) for flag in flags])
        return [value > 0 for value in collectives.maximum_over_ranks(raised).tolist()]

    def _as_flag(self, flag: bool | Tensor) -> Tensor:
        """1 or 0 on the device. Filled there: a copy from the CPU would wait for the device."""
        if isinstance(flag, Tensor):
            return flag.to(self.device, torch.float32)
        return torch.full((), float(flag), device=self.device)

    def from_main(self, value: int) -> int:
        """Broadcast a number from rank 0."""
        return int(collectives.broadcast(torch.tensor([value], device=self.device)).item())

    def pass_point(self) -> None:
        """Tell the watchdogs of the other processes that this one moves; see `HangWatchdog.pass_point`."""
        if self.watchdog is not None:
            self.watchdog.pass_point()

    def explain(self, error: BaseException, grad_accum_steps: int, micro_batch_size: int) -> RunError | None:
        """See `explain_failure`. If contact with another process was lost, also end the processes that still wait."""
        failure = explain_compilation(error) or explain_failure(error, grad_accum_steps, micro_batch_size)
        if isinstance(failure, LostContactError) and self.watchdog is not None:
            if str(failure) == did_not_answer(()):
                failure = LostContactError(did_not_answer(self.watchdog.suspects))
            self.watchdog.fail(str(failure))
        return failure

    def barrier(self) -> None:
        if self.is_distributed:
            dist.barrier()

    def close(self) -> None:
        """Leave the process group. Call this last, after all work succeeded."""
        if self._owns_group and dist.is_initialized():
            if self.watchdog is not None:
                self.watchdog.stop()
            dist.barrier()
            dist.destroy_process_group()
            self._owns_group = False


RENDEZVOUS_TIMEOUT = timedelta(minutes=10)
"""Minimum timeout of the rendezvous: processes may start and list the data at different speeds."""


def group_arguments(device: torch.device) -> dict[str, Any]:
    """Arguments of `init_process_group` for a device. NCCL connects at once if it knows the GPU, so that a failure
    shows at the start, and barriers do not have to guess it."""
    return {"backend": "nccl", "device_id": device} if device.type == "cuda" else {"backend": "gloo"}


NCCL_DELAY = timedelta(minutes=1)
"""What NCCL waits for longer than the watchdog: at its timeout it ends the process without a Python error."""
GLOO_DELAY = timedelta(seconds=5)
"""What the watchdog waits for longer than gloo, whose timeout is an error in the main thread, which can end the run."""


def collective_timeout(device: torch.device, timeout: timedelta) -> timedelta:
    """The timeout of the collectives of a process group."""
    return timeout + NCCL_DELAY if device.type == "cuda" else timeout


def watchdog_timeout(device: torch.device, timeout: timedelta) -> timedelta:
    """The time after which the watchdog ends a run that waits for a hung process."""
    return timeout if device.type == "cuda" else timeout + GLOO_DELAY


def _open_store(rank_info: RankInfo, timeout: timedelta) -> Any:
    """The rendezvous store at MASTER_ADDR and MASTER_PORT, which rank 0 or the launcher hosts."""
    listener = launched.store_socket()
    if listener is None:
        store, _, _ = next(torch_rendezvous("env://", rank_info.rank, rank_info.world_size, timeout=timeout))
        return store
    address = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
    return dist.TCPStore(  # type: ignore[attr-defined]
        *address, is_master=True, timeout=timeout, wait_for_workers=False, master_listen_fd=listener
    )


def _start_watchdog(rank_info: RankInfo, attempt: str, timeout: timedelta) -> HangWatchdog:
    """A watchdog with its own connection to the rendezvous store."""
    address = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])

    def alive() -> bool:
        try:
            socket.create_connection(address, timeout=1).close()
        except OSError:
            return False
        return True

    store = dist.TCPStore(*address, is_master=False)  # type: ignore[attr-defined]
    return HangWatchdog(store, alive, attempt, rank_info.rank, rank_info.world_size, timeout.total_seconds())


def recompute_activations(module: nn.Module, **options: Any) -> None:
    """Activation checkpointing for blocks whose class sets `recomputable = True`; `options` of torch's `checkpoint`."""
    for block in module.modules():
        if getattr(type(block), "recomputable", False) and "forward" not in vars(block):
            block.forward = partial(checkpoint, block.forward, use_reentrant=False, **options)


def explain_compilation(error: BaseException) -> RunError | None:
    """A one-sentence error if `torch.compile` found no compiler, or if that failed; None for any other exception."""
    # By its name: importing the compiler takes a second.
    if not any(kind.__name__ == "BackendCompilerFailed" for kind in type(error).__mro__):
        return None
    cause: Any = error
    reason = one_line(getattr(cause, "inner_exception", cause))
    return RunError(f"torch.compile failed ({reason}); install the compiler that it needs, or set engine.compile=false")


def explain_failure(error: BaseException, grad_accum_steps: int, micro_batch_size: int) -> RunError | None:
    """A one-sentence error for out-of-memory and lost connections; None for any other exception."""
    text = str(error)
    if is_out_of_memory(error):
        if micro_batch_size <= 1:
            return RunError("out of memory with micro-batches of one item; use a smaller model or smaller items")
        factor = next(number for number in range(2, micro_batch_size + 1) if micro_batch_size % number == 0)
        return RunError(
            f"out of memory; use a larger train.grad_accum_steps (now {grad_accum_steps}, try "
            f"{grad_accum_steps * factor}): "
            "micro-batches become smaller and the batch size stays the same; if that is not enough, use a smaller "
            "model or smaller items"
        )
    if isinstance(error, RuntimeError) and any(sign in text for sign in ("gloo", "NCCL", "Connection closed")):
        if "Duplicate GPU" in text:
            return RunError("two processes of this run use the same GPU; start one process per GPU")
        if "imed out" in text or "timing out" in text:
            return LostContactError(did_not_answer(()))
        reason = text.splitlines()[0].partition(". ")[0]
        return LostContactError(f"lost contact with another process of this run ({reason}); see that process's log")
    return None


def exit_process(code: int) -> NoReturn:
    """Exit a process that was part of a process group, without interpreter shutdown: gloo's threads may abort during
    that shutdown, and a successful run would then exit with an error code."""
    streams.flush()
    os._exit(code)
