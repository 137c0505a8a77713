"""Owns the way through a demo: public commands on embedded data, printed as they run, and what they came to.

What stands already is passed over, so that an interrupted demo goes on where it was.
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
from quintet.demos.demo import Demo, Form, Row, Stage, row_of
from quintet.errors import UsageError

LOOKS = 4
"""How often a stage looks at itself where minutes are given."""
SHORTEST = 1.0
"""Seconds; a stage that has less left of its time is over."""


@dataclass(frozen=True)
class Script:
    """Runs commands of `quintet` in this process and says what it does."""

    call: Callable[[Sequence[str]], int]
    say: Callable[[str], None]

    def run(self, *words: str) -> None:
        self.say(f"\n$ quintet {shlex.join(words)}")
        self.call(words)


@dataclass(frozen=True)
class Plan:
    """What a stage is to do."""

    steps: int
    every: int
    seconds: float | None
    """Its time, if minutes were given."""


class Ledger:
    """`demo.json`, what a demo remembers of itself: in which form it was begun, what each stage was to do, and how long
    each part took, over all the times it was interrupted and gone on with. (The time of a process that was killed is
    not in it.)"""

    def __init__(self, path: Path, command: str) -> None:
        self._path = path
        self._command = command
        found = self._read()
        self._begun_as: str = found.get("command", command)
        self._plans = {name: Plan(**plan) for name, plan in found.get("plans", {}).items()}
        self.seconds: dict[str, float] = found.get("seconds", {})

    def keep_to_form(self) -> None:
        """A demo goes on as it was begun: its data and schedules are those of its form."""
        if self._begun_as != self._command:
            raise UsageError(
                f"{self._path.parent} was begun by `{self._begun_as}`: go on with that, or choose another folder; "
                f"--out {self._path.parent} is this one"
            )

    def plan_of(self, stage: str) -> Plan | None:
        return self._plans.get(stage)

    def keep_plan(self, stage: str, plan: Plan) -> None:
        self._plans[stage] = plan
        self._write()

    @contextmanager
    def timed(self, part: str) -> Iterator[None]:
        """What happens within takes its time from a part, however it ends."""
        began = time.monotonic()
        try:
            yield
        finally:
            self.seconds[part] = self.seconds.get(part, 0.0) + time.monotonic() - began
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
        content = {"command": self._begun_as, "plans": plans, "seconds": self.seconds}
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            replace_text(self._path, json.dumps(content, indent=1) + "\n")
        except OSError as error:
            raise UsageError(f"cannot write {self._path}: {error.strerror}") from None


class Show:
    """One demo in its folder."""

    def __init__(self, demo: Demo, out: Path, form: Form, script: Script) -> None:
        self.demo = demo
        self.out = out
        self.form = form
        self.script = script
        self.ledger = Ledger(out / "demo.json", f"quintet demo {demo.medium}{form}")

    def run(self) -> list[Row]:
        """Everything from data to the page; the rows of the summary."""
        self.ledger.keep_to_form()
        self._make_data()
        for stage in self.demo.stages:
            self._train(stage)
        self._sample()
        more = self.demo.besides(self)
        for stage in self.demo.stages:
            self._evaluate(stage)
        self._write_page()
        return [*self._rows(), *more, *self._whole()]

    def timed(self, part: str, *words: str) -> None:
        """Run a command; its time counts for a part of the demo."""
        with self.ledger.timed(part):
            self.script.run(*words)

    # --- stages -------------------------------------------------------------------------------------------

    def _make_data(self) -> None:
        data = self.out / "data"
        num = self.demo.num(self.form)
        if not (data / "metadata.jsonl").exists():
            self.timed("data", "data", "make", self.demo.data, str(data), "--num", str(num), *self.demo.data_words)

    def _train(self, stage: Stage) -> None:
        plan = self.ledger.plan_of(stage.name) or self._plan(stage)
        while command := self._next_command(stage, plan):
            self.timed(stage.name, *command)

    def _plan(self, stage: Stage) -> Plan:
        """How far a stage goes, decided when it begins. With minutes: its share of what is left of them, and the
        steps that fit by its pace elsewhere and by how this machine did in the stages before, for the schedule."""
        if self.form.minutes is None:
            length = stage.full if self.form.full else stage.quick
            plan = Plan(length.steps, length.every, None)
        else:
            stages = self.demo.stages
            used = sum(self.ledger.seconds.get(each.name, 0.0) for each in stages)
            later = stages[stages.index(stage) :]
            share = stage.share / sum(each.share for each in later)
            seconds = max(60 * self.form.minutes - used, SHORTEST) * share
            steps = min(max(int(seconds * stage.pace * self._swiftness()), LOOKS), stage.full.steps)
            plan = Plan(steps, max(steps // LOOKS, 1), seconds)
        self.ledger.keep_plan(stage.name, plan)
        return plan

    def _swiftness(self) -> float:
        """Of this machine, as a multiple of where the paces were taken: from the steps of the stages so far."""
        begun = [stage for stage in self.demo.stages if stage.name in self.ledger.seconds]
        expected = sum(steps_taken(self.out / stage.name) / stage.pace for stage in begun)
        seconds = sum(self.ledger.seconds[stage.name] for stage in begun)
        return expected / seconds if expected and seconds else 1.0

    def _next_command(self, stage: Stage, plan: Plan) -> list[str] | None:
        """What brings a stage on: its training, or going on with it. None if it has its steps, or had its time."""
        run = self.out / stage.name
        left = None if plan.seconds is None else plan.seconds - self.ledger.seconds.get(stage.name, 0.0)
        if left is not None and left < SHORTEST and steps_taken(run):
            return None
        limit = [] if left is None else [f"train.minutes={max(left, SHORTEST) / 60:.3f}"]
        if not (run / "config.yaml").exists():
            first = stage.first_steps(plan.steps)
            horizon = [f"optim.decay_steps={plan.steps}"] if first < plan.steps else []
            links = [word for name, to in stage.links for word in (f"--{name}", self._link(to))]
            keys = [*stage.keys(plan.steps, self.demo.judged(self.form)), *every(plan.every)]
            words = ["train", stage.recipe, str(self.out / "data"), "--out", str(run), "--preset", self.demo.preset]
            return [*words, *links, f"train.steps={first}", *horizon, *limit, *keys]
        if steps_taken(run) < plan.steps:
            return ["resume", str(run), f"train.steps={plan.steps}", *limit]
        return None

    def _link(self, to: str) -> str:
        """A stage before, or something that needs no training."""
        return str(self.out / to) if any(stage.name == to for stage in self.demo.stages) else to

    def _evaluate(self, stage: Stage) -> None:
        run = self.out / stage.name
        if not _is_newer(run / "eval.json", run / "checkpoints" / "latest"):
            self.timed("evaluation", "eval", str(run))

    def _sample(self) -> None:
        out = self.out / self.demo.made
        if not (out / "samples.jsonl").exists():
            texts = [word for text in self.demo.texts for word in ("--text", text)]
            run = self.out / self.demo.stages[-1].name
            self.timed("samples", "sample", str(run), *texts, "--num", str(self.demo.each), "--out", str(out))

    def _write_page(self) -> None:
        page = self.out / "page.html"
        if not page.exists():
            self.timed("page", "view", str(self.out), "--export", str(page))

    # --- what it came to ----------------------------------------------------------------------------------

    def _rows(self) -> Iterator[Row]:
        yield Row("data", "items", f"{count_items(self.out / 'data'):,}", seconds=self.ledger.seconds.get("data"))
        for stage in self.demo.stages:
            plan = self.ledger.plan_of(stage.name)
            taken = steps_taken(self.out / stage.name)
            asked = plan.steps if plan else taken
            cut = "" if taken >= asked else f" of {asked:,}, its time was over"
            yield Row(stage.name, "steps", f"{taken:,}{cut}", seconds=self.ledger.seconds.get(stage.name))
            found = figures(self.out / stage.name)
            for figure in stage.figures:
                yield row_of(figure, found)

    def _whole(self) -> Iterator[Row]:
        for part in ("evaluation", "samples"):
            yield Row(part, seconds=self.ledger.seconds.get(part))
        whole = sum(self.ledger.seconds.values())
        bar = f"<= {self.demo.minutes} min"
        verdict = ("reached" if whole <= 60 * self.demo.minutes else "not reached") if self.form.full else ""
        yield Row("the whole", bar=bar if self.form.full else "", verdict=verdict, seconds=whole)


def every(steps: int) -> tuple[str, ...]:
    """How often a run looks at itself and saves."""
    return tuple(f"{what}.every={steps}" for what in ("eval", "sample", "checkpoint"))


def steps_taken(run: Path) -> int:
    try:
        return int(json.loads((run / "state.json").read_text(encoding="utf-8"))["step"])
    except (OSError, ValueError, KeyError):
        return 0


def count_items(data: Path) -> int:
    with (data / "metadata.jsonl").open("rb") as lines:
        return sum(1 for _ in lines)


def figures(run: Path) -> dict[str, Any]:
    """What the last `quintet eval` of a run wrote."""
    found: dict[str, Any] = json.loads((run / "eval.json").read_text(encoding="utf-8"))
    return found


def _is_newer(path: Path, than: Path) -> bool:
    try:
        return path.stat().st_mtime_ns >= than.stat().st_mtime_ns
    except OSError:
        return False
