"""Rank and world size of this process, from the launcher's environment. Does not import torch."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass

from quintet.errors import UsageError


@dataclass(frozen=True)
class RankInfo:
    """Rank, local rank and world size as the launcher set them."""

    rank: int
    local_rank: int
    world_size: int

    @classmethod
    def from_environment(cls, environment: Mapping[str, str] = os.environ) -> RankInfo:
        if "RANK" in environment and "WORLD_SIZE" in environment:
            rank, world = int(environment["RANK"]), int(environment["WORLD_SIZE"])
            return cls(rank, int(environment.get("LOCAL_RANK", rank)), world)
        if _slurm_tasks(environment) > 1:
            if "MASTER_ADDR" not in environment or "MASTER_PORT" not in environment:
                raise UsageError(
                    "under srun, set MASTER_ADDR and MASTER_PORT to the first node before starting quintet"
                )
            return cls(int(environment["SLURM_PROCID"]), int(environment["SLURM_LOCALID"]), _slurm_tasks(environment))
        return cls(0, 0, 1)


def is_first(environment: Mapping[str, str] = os.environ) -> bool:
    """Whether this is rank 0 or the only process; does not need the process group."""
    if "RANK" in environment and "WORLD_SIZE" in environment:
        return int(environment["RANK"]) == 0
    return _slurm_tasks(environment) <= 1 or int(environment["SLURM_PROCID"]) == 0


def _slurm_tasks(environment: Mapping[str, str]) -> int:
    return int(environment.get("SLURM_STEP_NUM_TASKS", "1"))
