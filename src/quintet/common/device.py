"""Device and precision of a process."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext

import torch
from torch import nn

from quintet.common.precision import autocast_dtype, choose_precision
from quintet.common.rank import RankInfo
from quintet.config import EngineConfig
from quintet.errors import UsageError


class Device:
    """Device, dtype and number of threads of one process."""

    def __init__(self, config: EngineConfig) -> None:
        self.config = config
        self.device = own_device(config)
        self.precision = choose_precision(config.precision, self.device.type)
        self.dtype = torch.float64 if self.precision == "fp64" else torch.float32
        if config.threads is not None:
            torch.set_num_threads(config.threads)
        self._set_determinism()

    def _set_determinism(self) -> None:
        deterministic = self.device.type == "cpu" or self.config.deterministic
        torch.use_deterministic_algorithms(deterministic)
        # Deterministic mode would also fill every new tensor with NaN, which costs time and is not needed here.
        torch.utils.deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]

    def to_device(self, modules: Mapping[str, nn.Module]) -> None:
        """Convert modules in place to the device, dtype and memory format of the configuration."""
        for module in modules.values():
            module.to(self.device, self.dtype)
            if self.config.channels_last:
                # Not with `Module.to`, which raises for 5-dimensional tensors.
                for tensor in (*module.parameters(), *module.buffers()):
                    if tensor.ndim == 4:
                        tensor.data = tensor.data.contiguous(memory_format=torch.channels_last)

    def autocast(self) -> AbstractContextManager[object]:
        dtype = autocast_dtype(self.precision)
        return nullcontext() if dtype is None else torch.autocast(self.device.type, dtype)


def set_cuda_modes(config: EngineConfig) -> None:
    """Set TF32 for products and convolutions alike, which torch would set differently, and the choice of kernels."""
    torch.backends.cuda.matmul.allow_tf32 = config.tf32
    torch.backends.cudnn.allow_tf32 = config.tf32
    torch.backends.cudnn.benchmark = config.cudnn_benchmark and not config.deterministic


def numerics_of(device: torch.device) -> str:
    """What else the codes of a model depend on, besides its weights: " tf32", or nothing."""
    return " tf32" if device.type == "cuda" and torch.backends.cudnn.allow_tf32 else ""


def own_device(config: EngineConfig) -> torch.device:
    """The device of this process, with its modes set; available before the process group exists."""
    device = choose_device(config.device, RankInfo.from_environment().local_rank)
    if device.type == "cuda":
        set_cuda_modes(config)
    return device


def choose_device(name: str, local_rank: int = 0) -> torch.device:
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    if name == "cuda":
        if not torch.cuda.is_available():
            raise UsageError("engine.device=cuda, but torch finds no CUDA device; use engine.device=cpu")
        if local_rank >= torch.cuda.device_count():
            raise UsageError(
                f"local rank {local_rank} has no CUDA device: this machine has {torch.cuda.device_count()}; "
                "start fewer processes"
            )
        torch.cuda.set_device(local_rank)
        return torch.device("cuda", local_rank)
    if name == "mps" and not torch.backends.mps.is_available():
        raise UsageError("engine.device=mps, but torch finds no Apple GPU; use engine.device=cpu")
    return torch.device(name)
