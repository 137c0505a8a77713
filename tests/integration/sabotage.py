"""The command, with a fault in one process at one step: `python -m integration.sabotage PLAN WORD…`.

The plan is a list of `ATTEMPT:RANK:STEP:FAULT` with commas between; the attempt is the launcher's count of restarts.
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
    """The machine of this process is gone, and with it the launcher's agent."""
    os.kill(os.getppid(), signal.SIGKILL)
    die()


FAULTS = {"die": die, "hang": hang, "lose-power": lose_power}


def sabotage(plan: str) -> None:
    place = (os.environ["TORCHELASTIC_RESTART_COUNT"], os.environ["RANK"])
    faults = {
        int(step): FAULTS[fault]
        for attempt, rank, step, fault in (each.split(":") for each in plan.split(","))
        if (attempt, rank) == place
    }
    taken = Trainer.train_step

    def train_step(trainer: Trainer) -> dict[str, Any]:
        if trainer.step in faults:
            faults[trainer.step]()
        return taken(trainer)

    Trainer.train_step = train_step  # type: ignore[method-assign]


if __name__ == "__main__":
    sabotage(sys.argv[1])
    main(sys.argv[2:])
