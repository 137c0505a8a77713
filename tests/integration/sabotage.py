"""Run the command with an injected fault in one process at one step: `python -m integration.sabotage PLAN WORD…`.

The plan is a comma-separated list of `ATTEMPT:RANK:STEP:FAULT`; the attempt is the launcher's count of restarts.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
from typing import Any

from quintet.cli import main
from quintet.training.trainer import Trainer


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def hang() -> None:
    threading.Event().wait()


def lose_power() -> None:
    """Simulate the loss of this machine, including the launcher's agent."""
    os.kill(os.getppid(), signal.SIGKILL)
    die()


FAULTS = {"die": die, "hang": hang, "lose-power": lose_power}


def sabotage(plan: str) -> None:
    here = (os.environ["TORCHELASTIC_RESTART_COUNT"], os.environ["RANK"])
    faults = {
        int(step): FAULTS[fault]
        for attempt, rank, step, fault in (each.split(":") for each in plan.split(","))
        if (attempt, rank) == here
    }
    original = Trainer.train_step

    def train_step(trainer: Trainer) -> dict[str, Any]:
        if trainer.step in faults:
            faults[trainer.step]()
        return original(trainer)

    Trainer.train_step = train_step  # type: ignore[method-assign]


if __name__ == "__main__":
    sabotage(sys.argv[1])
    main(sys.argv[2:])
