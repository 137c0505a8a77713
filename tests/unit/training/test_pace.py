"""`Pace`: a run with a budget ends in time, however its speed changes."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest

from quintet.config.budget import FRACTION
from quintet.training.pace import Pace


@dataclass
class Machine:
    """Trains by a clock of its own: the time of a step depends on the step."""

    slow_from: int
    slow: float
    validation: float = 0.0
    time: float = 0.0
    plans: list[int] = field(default_factory=list)

    def train(self, seconds: float, estimate: int, every: int) -> int:
        """The number of steps of a run whose first estimate was `estimate`."""
        pace, step, steps = Pace(seconds, estimate, every, lambda: self.time), 0, estimate
        pace.start()
        while step < steps:
            self.time += 1.0 if step < self.slow_from else self.slow
            step += 1
            with pace.after_step(step):
                self.time += self.validation if step % every == 0 and step < steps else 0.0
            if pace.next_step <= step < steps:
                steps, _ = pace.plan(step, steps)
                pace.planned(step, steps)
                self.plans.append(step)
        return step


@pytest.mark.parametrize("estimate", [300, 1000, 3000])
@pytest.mark.parametrize("slow", [0.5, 1.0, 2.0])
@pytest.mark.parametrize("validation", [0.0, 5.0])
def test_a_run_ends_with_its_budget(estimate: int, slow: float, validation: float) -> None:
    machine = Machine(slow_from=400, slow=slow, validation=validation)
    machine.train(1000.0, estimate, every=max(1, estimate // 4))
    assert (FRACTION - 0.03) * 1000 <= machine.time <= 1000
    assert len(machine.plans) <= 20


def test_the_steps_of_corrections_follow_from_the_plans_alone() -> None:
    pace = Pace(1000.0, 1000, 250)
    assert pace.next_step == 20
    pace.planned(20, 800)
    assert pace.next_step == 215
    pace.planned(790, 800)
    assert pace.next_step == 800, "too late for another one"
    assert Pace(1.0, 1, 1).next_step == 1
