"""Runs a demo: public commands on synthetic data, printed as they run, and the summary of their results.

Finished parts are skipped, so that an interrupted demo continues where it stopped.
"""

from __future__ import annotations

import json
import shlex
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from quintet.common.files import replace_text
from quintet.demos.demo import Demo, DemoMode, Row, Stage, row_of, verdict_of
from quintet.errors import UsageError

NUM_EVALUATIONS = 4
"""Number of evaluations of a stage with --minutes."""
MIN_SECONDS = 1.0
"""A stage with less time left is finished."""


@dataclass(frozen=True)
class Script:
    """Runs and prints commands of `quintet` in this process."""

    call: Callable[[Sequence[str]], int]
    say: Callable[[str], None]

    def run(self, *words: str) -> None:
        """Run a command; SystemExit with its exit code if it failed or a signal stopped the processes it launched."""
        self.say(f"\n$ quintet {shlex.join(words)}")
        if code := self.call(words):
            raise SystemExit(code)


@dataclass(frozen=True)
class Plan:
    """Planned training of a stage."""

    steps: int
    every: int
    seconds: float | None
    """Time limit; None without --minutes."""


class Ledger:
    """The file `demo.json`: the command that started the demo, the plan of each stage, and the total time of each part
    over all interruptions. (The time of a process that was killed is not included.)"""

    def __init__(self, path: Path, command: str) -> None:
        self._path = path
        self._command = command
        stored = self._read()
        self._first_command: str = stored.get("command", command)
        self._plans = {name: Plan(**plan) for name, plan in stored.get("plans", {}).items()}
        self.seconds: dict[str, float] = stored.get("seconds", {})

    def check_mode(self) -> None:
        """A demo can only continue in the mode it was started in, because its data and schedules depend on it."""
        if self._first_command != self._command:
            raise UsageError(
                f"{self._path.parent} was started by `{self._first_command}`: continue with that command, or choose "
                "another folder with --out"
            )

    def plan_of(self, stage: str) -> Plan | None:
        return self._plans.get(stage)

    def save_plan(self, stage: str, plan: Plan) -> None:
        self._plans[stage] = plan
        self._write()

    @contextmanager
    def timed(self, part: str) -> Iterator[None]:
        """Add the time spent in this context to a part, even if it fails."""
        start = time.monotonic()
        try:
            yield
        finally:
            self.seconds[part] = self.seconds.get(part, 0.0) + time.monotonic() - start
            self._write()

    def _read(self) -> dict[str, Any]:
        try:
            found: dict[str, Any] = json.loads(self._path.read_text(encoding="utf-8"))
        except FileNotFoundError:
            return {}
        except (OSError, ValueError) as error:
            raise UsageError(f"{self._path} cannot be read ({error}): choose another folder with --out") from None
        return found

    def _write(self) -> None:
        plans = {name: asdict(plan) for name, plan in self._plans.items()}
        content = {"command": self._first_command, "plans": plans, "seconds": self.seconds}
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            replace_text(self._path, json.dumps(content, indent=1) + "\n")
        except OSError as error:
            raise UsageError(f"cannot write {self._path}: {error.strerror}") from None


class DemoRun:
    """One demo and its folder."""

    def __init__(self, demo: Demo, out: Path, mode: DemoMode, script: Script) -> None:
        self.demo = demo
        self.out = out
        self.mode = mode
        self.length = demo.length(mode)
        self.script = script
        self.ledger = Ledger(out / "demo.json", f"quintet demo {demo.medium}{mode}")

    def run(self) -> list[Row]:
        """Run all parts, from the data to the page; returns the rows of the summary."""
        self.ledger.check_mode()
        self._make_data()
        for stage in self.demo.stages:
            self._train(stage)
        self._sample()
        extra = self.demo.extra(self)
        for stage in self.demo.stages:
            self._evaluate(stage)
        self._write_page()
        return [*self._rows(), *extra, *self._totals()]

    def timed(self, part: str, *words: str) -> None:
        """Run a command and add its time to a part of the demo."""
        with self.ledger.timed(part):
            self.script.run(*words)

    # --- stages -------------------------------------------------------------------------------------------

    def _make_data(self) -> None:
        data = self.out / "data"
        num = self.demo.num_items(self.mode)
        if not (data / "metadata.jsonl").exists():
            self.timed("data", "data", "make", self.demo.data, str(data), "--num", str(num), *self.demo.data_options)

    def _train(self, stage: Stage) -> None:
        plan = self.ledger.plan_of(stage.name) or self._plan(stage)
        while command := self._next_command(stage, plan):
            self.timed(stage.name, *command)

    def _plan(self, stage: Stage) -> Plan:
        """The plan of a stage, made when it starts. With --minutes: its fraction of the remaining time, and the number
        of steps that fit, from the expected speed and the speed of this machine in earlier stages.
        """
        if self.mode.minutes is None:
            length = stage.full if self.mode.full else stage.quick
            plan = Plan(length.steps, length.every, None)
        else:
            stages = self.demo.stages
            used = sum(self.ledger.seconds.get(each.name, 0.0) for each in stages)
            later = stages[stages.index(stage) :]
            fraction = stage.fraction / sum(each.fraction for each in later)
            seconds = max(60 * self.mode.minutes - used, MIN_SECONDS) * fraction
            steps = min(
                max(int(seconds * stage.steps_per_second * self._relative_speed()), NUM_EVALUATIONS), stage.full.steps
            )
            plan = Plan(steps, max(steps // NUM_EVALUATIONS, 1), seconds)
        self.ledger.save_plan(stage.name, plan)
        return plan

    def _relative_speed(self) -> float:
        """Speed of this machine relative to the expected speed, measured in the stages so far."""
        started = [stage for stage in self.demo.stages if stage.name in self.ledger.seconds]
        expected = sum(steps_taken(self.out / stage.name) / stage.steps_per_second for stage in started)
        seconds = sum(self.ledger.seconds[stage.name] for stage in started)
        return expected / seconds if expected and seconds else 1.0

    def _next_command(self, stage: Stage, plan: Plan) -> list[str] | None:
        """The command that starts or resumes a stage; None if its steps or its time are used up."""
        run = self.out / stage.name
        left = None if plan.seconds is None else plan.seconds - self.ledger.seconds.get(stage.name, 0.0)
        if left is not None and left < MIN_SECONDS and steps_taken(run):
            return None
        limit = [] if left is None else [f"train.minutes={max(left, MIN_SECONDS) / 60:.3f}"]
        if not (run / "config.yaml").exists():
            first = stage.first_steps(plan.steps)
            decay = [f"optim.decay_steps={plan.steps}"] if first < plan.steps else []
            frozen = [word for name, model in stage.frozen for word in (f"--{name}", self._reference(model))]
            words = ["train", stage.recipe, str(self.out / "data"), "--out", str(run), "--preset", self.demo.preset]
            return [*words, *frozen, f"train.steps={first}", *decay, *limit, *self._keys(stage, plan)]
        if steps_taken(run) < plan.steps:
            return ["resume", str(run), f"train.steps={plan.steps}", *limit]
        return None

    def _keys(self, stage: Stage, plan: Plan) -> list[str]:
        """The configuration keys of a stage, apart from its length."""
        schedule = stage.full if self.length == "full" else stage.quick
        seed = [] if self.mode.seed is None else [f"train.seed={self.mode.seed}"]
        judged = self.demo.num_judged(self.mode)
        return [*stage.keys(plan.steps, judged), *schedule.keys, *seed, *every(plan.every)]

    def _reference(self, model: str) -> str:
        """The run of an earlier stage, or the name of a model that needs no training."""
        return str(self.out / model) if any(stage.name == model for stage in self.demo.stages) else model

    def _evaluate(self, stage: Stage) -> None:
        run = self.out / stage.name
        if not _is_newer(run / "eval.json", run / "checkpoints" / "latest"):
            self.timed("evaluation", "eval", str(run))

    def _sample(self) -> None:
        out = self.out / self.demo.samples_folder
        if not (out / "samples.jsonl").exists():
            texts = [word for text in self.demo.texts for word in ("--text", text)]
            run = self.out / self.demo.stages[-1].name
            self.timed("samples", "sample", str(run), *texts, "--num", str(self.demo.num_per_text), "--out", str(out))

    def _write_page(self) -> None:
        page = self.out / "page.html"
        if not page.exists():
            self.timed("page", "view", str(self.out), "--export", str(page))

    # --- summary ------------------------------------------------------------------------------------------

    def _rows(self) -> Iterator[Row]:
        yield Row("data", "items", f"{count_items(self.out / 'data'):,}", seconds=self.ledger.seconds.get("data"))
        for stage in self.demo.stages:
            plan = self.ledger.plan_of(stage.name)
            taken = steps_taken(self.out / stage.name)
            planned = plan.steps if plan else taken
            note = "" if taken >= planned else f" of {planned:,}, stopped at its time limit"
            yield Row(stage.name, "steps", f"{taken:,}{note}", seconds=self.ledger.seconds.get(stage.name))
            results = read_metrics(self.out / stage.name)
            for metric in stage.metrics:
                yield row_of(metric, results, self.length)

    def _totals(self) -> Iterator[Row]:
        for part in ("evaluation", "samples"):
            yield Row(part, seconds=self.ledger.seconds.get(part))
        total = sum(self.ledger.seconds.values())
        target = f"<= {self.demo.minutes} min" if self.mode.full else ""
        verdict = verdict_of(total <= 60 * self.demo.minutes if self.mode.full else None)
        yield Row("total", target=target, verdict=verdict, seconds=total)


def every(steps: int) -> tuple[str, ...]:
    """Keys for the interval of evaluations, samples and checkpoints."""
    return tuple(f"{section}.every={steps}" for section in ("eval", "sample", "checkpoint"))


def steps_taken(run: Path) -> int:
    try:
        return int(json.loads((run / "state.json").read_text(encoding="utf-8"))["step"])
    except (OSError, ValueError, KeyError):
        return 0


def count_items(data: Path) -> int:
    with (data / "metadata.jsonl").open("rb") as lines:
        return sum(1 for _ in lines)


def read_metrics(run: Path) -> dict[str, Any]:
    """Metrics of the last `quintet eval` of a run."""
    metrics: dict[str, Any] = json.loads((run / "eval.json").read_text(encoding="utf-8"))
    return metrics


def _is_newer(path: Path, than: Path) -> bool:
    try:
        return path.stat().st_mtime_ns >= than.stat().st_mtime_ns
    except OSError:
        return False
