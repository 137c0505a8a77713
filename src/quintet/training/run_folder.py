"""Owns a run's folder: what lies where, who may write, and the files a person reads.

Everything about one training run is in the folder and readable without quintet. One process writes at a time, held
to it by a lock that a dead process does not keep. Nothing here deletes what it did not write.
"""

from __future__ import annotations

import fcntl
import json
import math
import os
import re
import socket
import time
import weakref
from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from pathlib import Path
from typing import IO, Any, Literal

from quintet.common import files
from quintet.common.processes import is_alive
from quintet.common.weights import checkpoint
from quintet.common.weights.checkpoint import Contents
from quintet.common.weights.run_reader import CONFIG_FILE, check_run
from quintet.config import RunConfig
from quintet.errors import RunError, UsageError

Status = Literal["running", "finished", "stopped", "failed"]


_BEGINNINGS = frozenset({"lock", "data.json", ".data.json.writing", ".config.yaml.writing"})
"""What a folder may hold before it is a run, beside the copies of what the run stands on: see `write_initial_files`."""


class Run:
    """A run folder. Got by `new` or `open`; the folder of a new one appears when it is locked."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.checkpoints = folder / checkpoint.ROOT
        self.config_file = folder / CONFIG_FILE
        self.state_file = folder / "state.json"
        self.metrics_file = folder / "metrics.jsonl"
        self.log_file = folder / "log.txt"
        self.data_file = folder / "data.json"
        self.eval_file = folder / "eval.json"
        self._lock: IO[bytes] | None = None
        self.lost_writes: dict[str, str] = {}
        """File name to error, for observations that could not be written; training goes on without them."""
        self.notify: Callable[[str], object] = lambda text: None
        """Where a person is told that an observation is lost, and that it can be written again."""

    @classmethod
    def new(cls, folder: Path, links: Collection[str] = ()) -> Run:
        """A run that does not exist yet; an existing folder is refused, unless it is empty.

        `links` are the names of what the run will stand on (`FROZEN_KEYS` of its configuration)."""
        run = cls(folder)
        run.refuse_used(links)
        return run

    def refuse_used(self, links: Collection[str]) -> None:
        """Refuse a folder that holds anything. What a process left that died before its first line is nothing."""
        folder = self.folder
        nothing = _BEGINNINGS.union(links, (f".writing-{name}" for name in links))
        used = folder.exists() and (not folder.is_dir() or {path.name for path in folder.iterdir()} - nothing)
        if used:
            hint = f"continue it with `quintet resume {folder}` or choose" if self.config_file.exists() else "choose"
            raise UsageError(f"{folder} exists already; {hint} another folder with --out")

    @classmethod
    def open(cls, folder: Path) -> Run:
        """An existing run."""
        check_run(folder)
        return cls(folder)

    # --- one writer ---------------------------------------------------------------------------------------

    def lock(self) -> None:
        """Become the only writer, until `close` or the end of the process, however it ends."""
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            lock = files.open_no_follow(self.folder / "lock", "a+b")
        except OSError as error:
            raise UsageError(f"cannot write to the run folder {self.folder}: {error.strerror}") from None
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            owner = _owner(lock)
            lock.close()
            raise UsageError(f"{self.folder} is being written by {owner}; stop that process first") from None
        except OSError as error:
            lock.close()
            raise UsageError(f"cannot lock the run folder {self.folder}: {error.strerror}") from None
        _close_in_children(lock)
        self._lock = lock
        self.best_effort_write("lock", lambda: _sign(lock))

    def close(self) -> None:
        if self._lock is not None:
            # Whoever is refused next must not read the name of a process that has let go.
            with suppress(OSError):
                self._lock.truncate(0)
            self._lock.close()
        self._lock = None

    def begin(self, config: RunConfig, data: Mapping[str, Any], links: Mapping[str, Contents]) -> None:
        """Make the folder a run, unless another process has done so since it was looked at."""
        self.lock()
        try:
            self.refuse_used(config.FROZEN_KEYS)
            self.write_initial_files(config, data, links)
        except BaseException:
            self.close()
            raise

    # --- what must be written ------------------------------------------------------------------------------

    def write_initial_files(self, config: RunConfig, data: Mapping[str, Any], links: Mapping[str, Contents]) -> None:
        """What a run is made of, before anything happens in it. The configuration last: a folder is a run, and can
        be resumed, once it has one."""
        try:
            for name, contents in links.items():
                if not (self.folder / name).exists():
                    checkpoint.write_folder(self.folder / name, contents)
            self.write_json(self.data_file, data)
            files.replace_text(self.config_file, config.to_yaml())
        except OSError as error:
            raise RunError(f"cannot write to the run folder {self.folder}: {error.strerror}") from None

    def write_json(self, path: Path, value: Any, durable: bool = True) -> None:
        files.replace_text(path, json.dumps(value, indent=1, ensure_ascii=False) + "\n", durable)

    # --- what may be lost: observations never stop a training -----------------------------------------------

    def write_state(self, status: Status, **values: Any) -> None:
        state = {"status": status, "heartbeat": time.time(), "pid": os.getpid(), "host": socket.gethostname(), **values}
        # A heartbeat is old news after a power cut; waiting for the disk at every logging step would cost more.
        self.best_effort_write("state.json", lambda: self.write_json(self.state_file, state, durable=False))

    def update_data(self, record: Mapping[str, Any]) -> None:
        """Name items in data.json that turned out unreadable on the way."""
        self.best_effort_write("data.json", lambda: self.write_json(self.data_file, record))

    def write_metrics(self, row: Mapping[str, Any]) -> None:
        # JSON knows no NaN, and readers in other languages stumble over it.
        finite = {
            key: None if isinstance(value, float) and not math.isfinite(value) else value for key, value in row.items()
        }
        line = json.dumps(finite, ensure_ascii=False)
        self.best_effort_write("metrics.jsonl", lambda: append_line(self.metrics_file, line))

    def write_log(self, text: str) -> None:
        stamp = time.strftime("%Y-%m-%d %H:%M:%S")
        self.best_effort_write("log.txt", lambda: append_line(self.log_file, f"{stamp} {text}"))

    def write_log_once_begun(self, text: str) -> None:
        """A folder that is no run yet is left as it is: with a log in it, it could not become one."""
        if self.config_file.exists():
            self.write_log(text)

    def write_sample(
        self, step: int, prefix: str, file: str, write: Callable[[Path], object], metadata: Mapping[str, Any]
    ) -> None:
        """One thing to look at, under samples/step-…/, with a line about it in samples.jsonl."""
        folder = self.folder / "samples" / f"step-{step:08d}"
        self.best_effort_write("samples", lambda: self._add_sample(folder, prefix + file, write, metadata))

    def _add_sample(
        self, folder: Path, file: str, write: Callable[[Path], object], metadata: Mapping[str, Any]
    ) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        write(folder / file)
        append_line(folder / "samples.jsonl", json.dumps({"file": file, **metadata}, ensure_ascii=False))

    def best_effort_write(self, name: str, write: Callable[[], object]) -> None:
        """Write something that may be lost. The first loss is said, and that it works again; not each one between."""
        try:
            write()
        except Exception as error:  # also what a tracker or an encoder of samples may think of
            if name not in self.lost_writes:
                reason = getattr(error, "strerror", None) or f"{type(error).__name__}: {error}"
                self.notify(f"warning: cannot write {name} ({reason}); the run goes on without it")
            self.lost_writes[name] = str(error)
        else:
            if self.lost_writes.pop(name, None) is not None:
                self.notify(f"{name} can be written again")

    # --- reading back ---------------------------------------------------------------------------------------

    def read_metrics(self) -> list[dict[str, Any]]:
        """The rows so far. A half-written last line, left by a killed process, is passed over."""
        try:
            text = checkpoint.read_regular(self.metrics_file).decode("utf-8", errors="replace")
        except OSError:
            return []
        return [row for row in map(_row, text.split("\n")) if row is not None]

    def drop_metrics_after(self, step: int) -> None:
        """Forget rows of steps that a resumed run will take again."""
        if self.metrics_file.exists():
            rows = [row for row in self.read_metrics() if row["step"] <= step]
            text = "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)
            self.best_effort_write("metrics.jsonl", lambda: files.replace_text(self.metrics_file, text))


def _row(line: str) -> dict[str, Any] | None:
    """A row of figures, if the line is one."""
    try:
        row = json.loads(line)
    except (ValueError, RecursionError):
        return None
    return row if isinstance(row, dict) and isinstance(row.get("step"), (int, float)) else None


def append_line(path: Path, line: str) -> None:
    """Add a whole line or, where the disk is full, nothing of it."""
    rest = memoryview(f"{line}\n".encode())
    with files.open_no_follow(path, "ab") as file:
        before = file.seek(0, os.SEEK_END)
        try:
            while rest:
                rest = rest[file.write(rest) :]
        except OSError:
            with suppress(OSError):
                file.truncate(before)
            raise


def _sign(lock: IO[bytes]) -> None:
    lock.truncate(0)
    lock.write(f"process {os.getpid()} on {socket.gethostname()}\n".encode())


def _owner(lock: IO[bytes], within: float = 1.0) -> str:
    """Who holds the lock. A dead process's name stands in the file until its successor, a moment later, has signed."""
    deadline = time.monotonic() + within
    while True:
        lock.seek(0)
        signed = re.fullmatch(rb"process ([0-9]{1,9}) on ([\x21-\x7e]{1,255})\n", lock.read(300) or b"")
        if signed and (signed[2].decode() != socket.gethostname() or is_alive(int(signed[1]))):
            return signed[0].decode().strip()
        if time.monotonic() > deadline:
            return "another process"
        time.sleep(0.01)


def _close_in_children(lock: IO[bytes]) -> None:
    """Data workers are forked and may outlive a killed trainer for seconds; they must not keep its lock."""
    reference = weakref.ref(lock)

    def close() -> None:
        held = reference()
        if held is not None:
            held.close()

    os.register_at_fork(after_in_child=close)


def next_folder(recipe: str, root: Path = Path("runs")) -> Path:
    """The default of `--out`: runs/<recipe>-<n>, the first n that is free."""
    number = 1
    while (root / f"{recipe}-{number}").exists():
        number += 1
    return root / f"{recipe}-{number}"
