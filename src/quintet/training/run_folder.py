"""`Run`: the folder of a run, its files and its lock.

Everything about a training run is in its folder and can be read without quintet. A lock, which is released when the
process dies, ensures that only one process writes. Files that quintet did not write are never deleted.
"""

from __future__ import annotations

import fcntl
import json
import math
import os
import re
import shlex
import socket
import time
import weakref
from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from pathlib import Path
from typing import IO, Any, Literal

from quintet.common import files
from quintet.common.printable import printable_lines
from quintet.common.processes import is_alive
from quintet.common.weights import checkpoint
from quintet.common.weights.checkpoint import Contents
from quintet.common.weights.run_reader import CONFIG_FILE, check_run, with_hash
from quintet.config import RunConfig
from quintet.errors import RunError, UsageError

Status = Literal["running", "finished", "stopped", "failed"]


_STARTUP_FILES = frozenset({"lock", "data.json", ".data.json.writing", ".config.yaml.writing"})
"""Files that a folder may contain before it is a run, besides copies of frozen models: see `write_initial_files`."""


class Run:
    """A run folder, from `new` or `open`. The folder of a new run is created by `lock`."""

    def __init__(self, folder: Path) -> None:
        self.move_to(folder)
        self._directory: int | None = None
        """File descriptor of the folder while it is locked: it stays valid if the folder is moved or deleted."""
        self._lock: IO[bytes] | None = None
        self.lost_writes: dict[str, str] = {}
        """File name to error, for best-effort files that could not be written; training continues without them."""
        self.notify: Callable[[str], object] = lambda text: None
        """Receives a message when a best-effort write fails, and when it works again."""

    @classmethod
    def new(cls, folder: Path, frozen: Collection[str] = ()) -> Run:
        """A run that does not exist yet. Raises UsageError if the folder exists and is not empty.

        `frozen` are the keys of the frozen models of the run (`FROZEN_KEYS` of its configuration)."""
        run = cls(folder)
        run.refuse_used(frozen)
        return run

    def refuse_used(self, frozen: Collection[str]) -> None:
        """Raise UsageError if the folder is not empty. Files of a process that died during start-up do not count."""
        folder = self.folder
        files.refuse_other_encoding(folder)
        ignored = _STARTUP_FILES.union(frozen, (f".writing-{name}" for name in frozen))
        used = folder.exists() and (not folder.is_dir() or {path.name for path in folder.iterdir()} - ignored)
        if used:
            hint = f"continue it with `{resume_command(folder)}` or choose" if self.config_file.exists() else "choose"
            raise UsageError(f"{folder} exists already; {hint} another folder with --out")

    @classmethod
    def open(cls, folder: Path) -> Run:
        """An existing run."""
        check_run(folder)
        return cls(folder)

    def move_to(self, folder: Path) -> None:
        """Use another path from now on."""
        self.folder = folder
        self.checkpoints = folder / checkpoint.ROOT
        self.config_file = folder / CONFIG_FILE
        self.state_file = folder / "state.json"
        self.metrics_file = folder / "metrics.jsonl"
        self.log_file = folder / "log.txt"
        self.data_file = folder / "data.json"
        self.eval_file = folder / "eval.json"

    def find(self) -> Path | None:
        """The path of the locked folder now: the same, another one if it was moved, or None if it was deleted."""
        if self._directory is None:
            return self.folder
        try:
            if os.path.samestat(os.stat(self.folder), os.fstat(self._directory)):
                return self.folder
        except (FileNotFoundError, NotADirectoryError):
            pass
        except OSError:  # a file system that does not answer for a moment
            return self.folder
        with suppress(OSError):
            moved = Path(os.readlink(f"/proc/self/fd/{self._directory}"))
            if os.path.samestat(os.stat(moved), os.fstat(self._directory)):
                return moved
        return None

    def restore(self, config: RunConfig, data: Mapping[str, Any]) -> None:
        """Write the files again without which a folder is not a run."""
        self.write_json(self.data_file, data)
        self._write_config(config)

    def _write_config(self, config: RunConfig) -> None:
        files.replace_text(self.config_file, with_hash(config.to_yaml()))

    # --- one writer ---------------------------------------------------------------------------------------

    def lock(self) -> None:
        """Lock the folder for this process, until `close` or the end of the process."""
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
        self._directory = os.open(self.folder, os.O_RDONLY | os.O_DIRECTORY)
        self.best_effort_write("lock", lambda: _write_owner(lock))

    def close(self) -> None:
        if self._lock is not None:
            # Later error messages must not name a process that has released the lock.
            with suppress(OSError):
                self._lock.truncate(0)
            self._lock.close()
        self._lock = None
        if self._directory is not None:
            os.close(self._directory)
        self._directory = None

    def begin(self, config: RunConfig, data: Mapping[str, Any], frozen: Mapping[str, Contents]) -> None:
        """Create the run, unless another process has created one in this folder since the first check."""
        self.lock()
        try:
            self.refuse_used(config.FROZEN_KEYS)
            self.write_initial_files(config, data, frozen)
        except BaseException:
            self.close()
            raise

    # --- required files ----------------------------------------------------------------------------------

    def write_initial_files(self, config: RunConfig, data: Mapping[str, Any], frozen: Mapping[str, Contents]) -> None:
        """Write frozen models, data.json and config.yaml. The configuration is last: a folder is a run, and can be
        resumed, once it has one."""
        try:
            for name, contents in frozen.items():
                if not (self.folder / name).exists():
                    checkpoint.write_folder(self.folder / name, contents)
            self.write_json(self.data_file, data)
            self._write_config(config)
        except OSError as error:
            raise RunError(f"cannot write to the run folder {self.folder}: {error.strerror}") from None

    def write_json(self, path: Path, value: Any, durable: bool = True) -> None:
        files.replace_text(path, json.dumps(value, indent=1, ensure_ascii=False) + "\n", durable)

    # --- best-effort files: a failed write never stops training ---------------------------------------------

    def write_state(self, status: Status, **values: Any) -> None:
        state = {"status": status, "heartbeat": time.time(), "pid": os.getpid(), "host": socket.gethostname(), **values}
        # Not durable: a heartbeat is worthless after a power failure, and fsync at every logging step is slow.
        self.best_effort_write("state.json", lambda: self.write_json(self.state_file, state, durable=False))

    def try_write_config(self, config: RunConfig) -> bool:
        """Replace config.yaml during training; whether it could be written."""
        self.best_effort_write("config.yaml", lambda: self._write_config(config))
        return "config.yaml" not in self.lost_writes

    def update_data(self, record: Mapping[str, Any]) -> None:
        """Rewrite data.json with the unreadable items found during training."""
        self.best_effort_write("data.json", lambda: self.write_json(self.data_file, record))

    def write_metrics(self, row: Mapping[str, Any]) -> None:
        # JSON has no NaN; readers in other languages reject it.
        finite = {
            key: None if isinstance(value, float) and not math.isfinite(value) else value for key, value in row.items()
        }
        line = json.dumps(finite, ensure_ascii=False)
        self.best_effort_write("metrics.jsonl", lambda: append_line(self.metrics_file, line))

    def write_log(self, text: str) -> None:
        stamp = time.strftime("%Y-%m-%d %H:%M:%S")
        line = f"{stamp} {printable_lines(text)}"
        self.best_effort_write("log.txt", lambda: append_line(self.log_file, line))

    def write_log_if_run(self, text: str) -> None:
        """Write to log.txt, but only if the folder is already a run: a log would prevent a new run in it."""
        if self.config_file.exists():
            self.write_log(text)

    def write_sample(
        self, step: int, prefix: str, file: str, write: Callable[[Path], object], metadata: Mapping[str, Any]
    ) -> None:
        """Write a sample under samples/step-…/, with its metadata in samples.jsonl."""
        folder = self.folder / "samples" / f"step-{step:08d}"
        self.best_effort_write("samples", lambda: self._add_sample(folder, prefix + file, write, metadata))

    def _add_sample(
        self, folder: Path, file: str, write: Callable[[Path], object], metadata: Mapping[str, Any]
    ) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        write(folder / file)
        append_line(folder / "samples.jsonl", json.dumps({"file": file, **metadata}, ensure_ascii=False))

    def best_effort_write(self, name: str, write: Callable[[], object]) -> None:
        """Write a file that may be lost. Reports the first failure and the recovery, not the failures between them."""
        try:
            write()
        except Exception as error:  # trackers and media encoders may raise anything
            if name not in self.lost_writes:
                reason = getattr(error, "strerror", None) or f"{type(error).__name__}: {error}"
                self.notify(f"warning: cannot write {name} ({reason}); training continues without it")
            self.lost_writes[name] = str(error)
        else:
            if self.lost_writes.pop(name, None) is not None:
                self.notify(f"{name} can be written again")

    # --- reading back ---------------------------------------------------------------------------------------

    def read_metrics(self) -> list[dict[str, Any]]:
        """All rows of metrics.jsonl. A partial last line of a killed process is skipped."""
        try:
            text = checkpoint.read_regular(self.metrics_file).decode("utf-8", errors="replace")
        except OSError:
            return []
        return [row for row in map(_row, text.split("\n")) if row is not None]

    def drop_metrics_after(self, step: int) -> None:
        """Remove rows of steps that a resumed run repeats."""
        if self.metrics_file.exists():
            rows = [row for row in self.read_metrics() if row["step"] <= step]
            text = "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)
            self.best_effort_write("metrics.jsonl", lambda: files.replace_text(self.metrics_file, text))


def _row(line: str) -> dict[str, Any] | None:
    """Parse a line of metrics.jsonl; None if it is not a valid row."""
    try:
        row = json.loads(line)
    except (ValueError, RecursionError):
        return None
    return row if isinstance(row, dict) and isinstance(row.get("step"), (int, float)) else None


def append_line(path: Path, line: str) -> None:
    """Append a complete line or, if the disk is full, nothing."""
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


def _write_owner(lock: IO[bytes]) -> None:
    lock.truncate(0)
    lock.write(f"process {os.getpid()} on {socket.gethostname()}\n".encode())


def _owner(lock: IO[bytes], timeout: float = 1.0) -> str:
    """The process that holds the lock. Waits briefly for the new owner if the file still names a dead process."""
    deadline = time.monotonic() + timeout
    while True:
        lock.seek(0)
        match = re.fullmatch(rb"process ([0-9]{1,9}) on ([\x21-\x7e]{1,255})\n", lock.read(300) or b"")
        if match and (match[2].decode() != socket.gethostname() or is_alive(int(match[1]))):
            return match[0].decode().strip()
        if time.monotonic() > deadline:
            return "another process"
        time.sleep(0.01)


def _close_in_children(lock: IO[bytes]) -> None:
    """Close the lock file in forked data workers: they may outlive a killed trainer and must not hold its lock."""
    reference = weakref.ref(lock)

    def close() -> None:
        held = reference()
        if held is not None:
            held.close()

    os.register_at_fork(after_in_child=close)


def resume_command(folder: Path, *options: str) -> str:
    """The command that resumes a run, quoted so that it can be pasted into a shell."""
    return shlex.join(["quintet", "resume", str(folder), *options])


def next_folder(recipe: str, root: Path = Path("runs")) -> Path:
    """The default of `--out`: runs/<recipe>-<n> with the first unused n."""
    number = 1
    while (root / f"{recipe}-{number}").exists():
        number += 1
    return root / f"{recipe}-{number}"
