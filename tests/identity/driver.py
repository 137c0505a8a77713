"""Runs all cases on both sides, compares them, and reuses what the base left on this machine."""

from __future__ import annotations

import hashlib
import json
import platform
import shutil
import sys
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_EXCEPTION, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, field
from importlib import metadata
from pathlib import Path
from typing import Any

import yaml

from identity import record as records
from identity.cases import DATA, GOLDEN, Case, data_case
from identity.compare import first_difference
from identity.keys import UnknownKeyError, translate
from identity.record import Record, record
from identity.sides import CommandError, Runner, Side


class DifferenceError(Exception):
    """A case in which the two sides differ, or that one of them cannot run."""


@dataclass
class Totals:
    """What has been compared so far."""

    cases: int = 0
    numbers: int = 0
    tensors: int = 0
    files: int = 0

    def add(self, compared: Record) -> None:
        self.cases += 1
        self.numbers += len(compared.numbers)
        self.tensors += len(compared.tensors)
        self.files += len(compared.files)


@dataclass
class Comparison:
    """Both sides and how their commands are run. Results of the base are kept, those of the working tree never."""

    base: Side
    work: Side
    run: Runner
    say: Callable[[str], object]
    totals: Totals = field(default_factory=Totals)
    answers: dict[tuple[str, ...], str] = field(default_factory=dict)
    asking: threading.Lock = field(default_factory=threading.Lock)

    def compare_all(self, cases: Sequence[Case], jobs: int, stop: Callable[[], object] = lambda: None) -> Totals:
        """All cases, some at once; the data sets are first, because the other cases read them."""
        with ThreadPoolExecutor(jobs) as pool:
            try:
                for group in (
                    [case for case in cases if not case.recipe],
                    [case for case in cases if case.recipe],
                ):
                    self._await([pool.submit(self.compare, case) for case in group])
            except BaseException:
                stop()
                pool.shutdown(cancel_futures=True)
                raise
        return self.totals

    def _await(self, futures: Sequence[Future[None]]) -> None:
        done, _ = wait(futures, return_when=FIRST_EXCEPTION)
        for future in done:
            future.result()

    def compare(self, case: Case) -> None:
        try:
            base = self.base_record(case)
            work = self.fresh_record(self.work, case, self.commands(self.work, case))
        except (CommandError, UnknownKeyError) as error:
            raise DifferenceError(f"case {case.name}: {error}") from error
        if difference := first_difference(base, work):
            raise DifferenceError(f"case {case.name}: {difference}")
        self.totals.add(work)
        self.say(f"{case.name}: identical ({counted(work)})")

    def base_record(self, case: Case) -> Record:
        """The base's record, computed only if this machine has none of the same commands."""
        commands = self.commands(self.base, case)
        key, path = result_key(case, commands), self.base.folder / case.name / "record.json"
        if path.exists():
            kept = json.loads(path.read_text(encoding="utf-8"))
            if kept["key"] == key:
                return Record.from_json(kept["record"])
        made = self.fresh_record(self.base, case, commands)
        path.write_text(json.dumps({"key": key, "record": made.to_json()}), encoding="utf-8")
        return made

    def fresh_record(self, side: Side, case: Case, commands: Sequence[Sequence[str]]) -> Record:
        """The case run from nothing, in an empty folder."""
        folder = side.folder / case.name
        shutil.rmtree(folder, ignore_errors=True)
        (folder / "logs").mkdir(parents=True)
        for name, content in case.inputs.items():
            (folder / name).write_bytes(content)
        for number, words in enumerate(commands):
            log = folder / "logs" / f"{number}-{words[0]}"
            self.run(side, words, folder, log, case.processes if words[0] == "train" else 1)
        return record(folder)

    def commands(self, side: Side, case: Case) -> list[tuple[str, ...]]:
        """The case's commands in the side's own vocabulary."""
        known = self.keys_of(side, case.recipe) if case.recipe else frozenset()
        data = f"../data-{case.data}/files"
        return [
            tuple(
                word.replace(DATA, data)
                for word in translate(command, known, lambda verb: self.said(side, verb, "--help"))
            )
            for command in case.commands
        ]

    def keys_of(self, side: Side, recipe: str) -> frozenset[str]:
        """Every key that the side has for a recipe."""
        return frozenset(flat(yaml.safe_load(self.said(side, "config", recipe))))

    def said(self, side: Side, *words: str) -> str:
        """What a command prints, asked once."""
        with self.asking:
            if (side.name, *words) not in self.answers:
                folder = side.folder / "asked"
                folder.mkdir(parents=True, exist_ok=True)
                log = folder / "-".join(word.strip("-") for word in words)
                self.run(side, words, folder, log)
                self.answers[side.name, *words] = Path(f"{log}.out").read_text(encoding="utf-8")
            return self.answers[side.name, *words]


def counted(compared: Record) -> str:
    return f"{len(compared.numbers)} numbers, {len(compared.tensors)} tensors, {len(compared.files)} files"


def flat(keys: dict[str, Any], prefix: str = "") -> list[str]:
    """The dotted names of nested keys."""
    names = []
    for name, value in keys.items():
        names += flat(value, f"{prefix}{name}.") if isinstance(value, dict) else [f"{prefix}{name}"]
    return names


def result_key(case: Case, commands: Sequence[Sequence[str]]) -> str:
    """What a kept result depends on, apart from the revision, which has a folder of its own."""
    inputs = [(name, hashlib.sha256(content).hexdigest()) for name, content in sorted(case.inputs.items())]
    data = data_case(case.data).commands
    parts = [machine(), commands, inputs, case.processes, data, digest_of(GOLDEN), reader()]
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()


def machine() -> list[str]:
    """The CPU and the versions of what computes."""
    lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines() if sys.platform == "linux" else []
    cpu = {line for line in lines if line.startswith(("model name", "flags", "Features"))}
    packages = sorted(f"{found.name} {found.version}" for found in metadata.distributions())
    return [platform.machine(), platform.processor(), *sorted(cpu), platform.python_version(), *packages]


def digest_of(folder: Path) -> str:
    """A digest of the exported models below a folder."""
    content = hashlib.sha256()
    for path in sorted(folder.glob("*/hub/**/*")):
        if path.is_file():
            content.update(path.relative_to(folder).as_posix().encode() + path.read_bytes())
    return content.hexdigest()


def reader() -> str:
    """A digest of the code that makes records: other code makes other ones."""
    return hashlib.sha256(Path(records.__file__).read_bytes()).hexdigest()
