"""Rank and world size of this process, from the launcher's environment. Does not import torch."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass

from quintet.config import EngineConfig, RunConfig
from quintet.errors import UsageError


@dataclass(frozen=True)
class RankInfo:
    """Rank, local rank and world size as the launcher set them."""

    rank: int
    local_rank: int
    world_size: int

    @classmethod
    def from_environment(cls, environment: Mapping[str, str] = os.environ) -> RankInfo:
        if _has_rank(environment):
            rank, world = int(environment["RANK"]), int(environment["WORLD_SIZE"])
            return cls(rank, int(environment.get("LOCAL_RANK", rank)), world)
        if _slurm_tasks(environment) > 1:
            if "MASTER_ADDR" not in environment or "MASTER_PORT" not in environment:
                raise UsageError(
                    "under srun, set MASTER_ADDR and MASTER_PORT to the first node before starting quintet"
                )
            return cls(int(environment["SLURM_PROCID"]), int(environment["SLURM_LOCALID"]), _slurm_tasks(environment))
        return cls(0, 0, 1)


def local_world_size(environment: Mapping[str, str] = os.environ) -> int:
    """The number of processes of this launch on this machine; 1 if the launcher does not say it."""
    return int(environment.get("LOCAL_WORLD_SIZE", environment.get("SLURM_NTASKS_PER_NODE", "1")))


def is_first(environment: Mapping[str, str] = os.environ) -> bool:
    """Whether this is rank 0 or the only process; does not need the process group."""
    if _has_rank(environment):
        return int(environment["RANK"]) == 0
    return _slurm_tasks(environment) <= 1 or int(environment["SLURM_PROCID"]) == 0


def has_launcher(environment: Mapping[str, str] = os.environ) -> bool:
    """Whether a launcher started this process, perhaps as the only one."""
    return _has_rank(environment) or _slurm_tasks(environment) > 1


def _has_rank(environment: Mapping[str, str]) -> bool:
    return "RANK" in environment and "WORLD_SIZE" in environment


def _slurm_tasks(environment: Mapping[str, str]) -> int:
    return int(environment.get("SLURM_STEP_NUM_TASKS", "1"))


def check_processes(config: RunConfig, world_size: int) -> None:
    """Raise `UsageError` if the processes are not those of `engine.world_size`, or cannot share a batch equally."""
    check_world(config.engine, world_size)
    train = config.train
    if train.batch_size % (world_size * train.micro_batches):
        raise UsageError(
            f"train.batch_size={train.batch_size} is not divisible by {world_size} processes x "
            f"train.grad_accum_steps={train.grad_accum_steps}"
        )


def check_world(config: EngineConfig, world_size: int) -> None:
    """Raise `UsageError` if `engine.world_size` is set and differs from the number of processes."""
    if config.world_size is not None and config.world_size != world_size:
        raise UsageError(
            f"engine.world_size={config.world_size}, but the launcher started {world_size} "
            f"process{'es' if world_size > 1 else ''}; use `torchrun --nproc_per_node {config.world_size}` or "
            f"engine.launch={config.world_size}"
        )
