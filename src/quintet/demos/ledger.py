"""Owns `demo.json`, what a demo remembers of itself: in which form it was begun, what each stage was to do, and how
long each part took, over all the times it was interrupted and gone on with. (The time of a process that was killed
is not in it.)"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from quintet.common.files import replace_text
from quintet.errors import UsageError


@dataclass(frozen=True)
class Plan:
    """What a stage is to do."""

    steps: int
    every: int
    seconds: float | None
    """Its time, if minutes were given."""


class Ledger:
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
