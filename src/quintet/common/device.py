"""The device and precision that a process computes with."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext

import torch
from torch import nn

from quintet.common.rank import RankInfo
from quintet.config import EngineConfig
from quintet.errors import UsageError


class Device:
    """What one process computes with: where tensors are, in which precision, and by how many threads."""

    def __init__(self, config: EngineConfig) -> None:
        self.config = config
        self.device = own_device(config)
        self.dtype = torch.float64 if config.precision == "fp64" else torch.float32
        if config.threads is not None:
            torch.set_num_threads(config.threads)
        self._set_determinism()

    def _set_determinism(self) -> None:
        wanted = self.device.type == "cpu" or self.config.deterministic
        torch.use_deterministic_algorithms(wanted)
        # Deterministic mode would also fill every new tensor with NaN, which costs time and hides nothing here.
        torch.utils.deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]

    def to_device(self, modules: Mapping[str, nn.Module]) -> None:
        """Move modules to the device, precision and memory format, in place."""
        for module in modules.values():
            module.to(self.device, self.dtype)
            if self.config.channels_last:
                # Not by `to`, which would refuse tensors of five axes.
                for tensor in (*module.parameters(), *module.buffers()):
                    if tensor.ndim == 4:
                        tensor.data = tensor.data.contiguous(memory_format=torch.channels_last)

    def autocast(self) -> AbstractContextManager[object]:
        if self.config.precision != "bf16":
            return nullcontext()
        return torch.autocast(self.device.type, torch.bfloat16)


def own_device(config: EngineConfig) -> torch.device:
    """The device of this process, also before it has joined the others."""
    return choose_device(config.device, RankInfo.from_environment().local_rank)


def choose_device(wanted: str, local_rank: int = 0) -> torch.device:
    if wanted == "auto":
        wanted = "cuda" if torch.cuda.is_available() else "cpu"
    if wanted == "cuda":
        if not torch.cuda.is_available():
            raise UsageError("engine.device=cuda, but torch finds no CUDA device; use engine.device=cpu")
        if local_rank >= torch.cuda.device_count():
            raise UsageError(
                f"process {local_rank} of this machine has no CUDA device of its own "
                f"({torch.cuda.device_count()} found); start fewer processes"
            )
        torch.cuda.set_device(local_rank)
        return torch.device("cuda", local_rank)
    if wanted == "mps" and not torch.backends.mps.is_available():
        raise UsageError("engine.device=mps, but torch finds no Apple GPU; use engine.device=cpu")
    return torch.device(wanted)
