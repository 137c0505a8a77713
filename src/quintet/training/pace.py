"""`Pace`: keeps a run with `--budget` on time, by correcting its number of steps.

It does so at steps that all processes know beforehand. Each correction is recorded in `config.yaml` as a pair of
`optim.decay_extensions`, so the learning rate stays a function of step and configuration, and a resumed run does not
look at the clock; see docs/decisions/0031-budgets-correct-their-schedule.md.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from quintet.config.budget import FRACTION

FIRST_STEPS = 20
"""Number of steps before the first correction, or a quarter of the run if that is less."""
LAST_FRACTION = 0.02
"""No corrections in this last fraction of the budget."""


class Pace:
    """Plans the number of steps of a run so that it ends with its budget.

    The plan is corrected after the first steps, and then whenever a quarter of the remaining steps is done, so that
    the error of an estimate concerns ever fewer steps."""

    def __init__(
        self, seconds: float, steps: int, validates_every: int, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.seconds = seconds
        self._every = validates_every
        self._clock = clock
        self._began = self._planned_at = clock()
        self._planned_step = 0
        self._paused = self._paused_since_plan = 0.0
        self.next_step = max(1, min(FIRST_STEPS, steps // 4))
        """The step after which the plan is corrected next."""

    def start(self) -> None:
        """The time of the budget begins."""
        self._began = self._planned_at = self._clock()

    @contextmanager
    def after_step(self, step: int) -> Iterator[None]:
        """Context of the work after a step. The time of validations, with samples and saves, is not that of a step."""
        began = self._clock()
        yield
        if step % self._every == 0:
            spent = self._clock() - began
            self._paused += spent
            self._paused_since_plan += spent

    def plan(self, step: int, steps: int) -> tuple[int, float]:
        """The corrected number of steps at step `step` of `steps`, and the measured time of a step."""
        now = self._clock()
        each = max(now - self._planned_at - self._paused_since_plan, 1e-9) / max(1, step - self._planned_step)
        done = step // self._every
        pauses = ((steps - 1) // self._every - done) * self._paused / done if done else 0.0
        left = FRACTION * self.seconds - (now - self._began) - pauses
        return step + max(1, int(left / each)), each

    def planned(self, step: int, steps: int) -> None:
        """From this step on the run has `steps` steps; all processes then know when it is corrected next."""
        self._planned_at, self._planned_step, self._paused_since_plan = self._clock(), step, 0.0
        following = step + max(1, (steps - step) // 4)
        self.next_step = steps if steps - following <= LAST_FRACTION * steps else following
