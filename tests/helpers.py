"""Helpers of contract, fault and integration tests: running the command, waiting for events, comparing folders."""

from __future__ import annotations

import fcntl
import hashlib
import io
import json
import multiprocessing
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, redirect_stderr, redirect_stdout, suppress
from dataclasses import dataclass
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import pytest

from quintet.cli import main

DEADLINE = 180
"""Timeout in seconds of anything that a test waits for; nothing is expected to come near it."""

LAUNCHER_VARIABLES = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")

TWELVE_STEPS = (
    *("train.batch_size=4", "train.steps=12", "eval.every=4", "sample.every=6", "sample.num=2"),
    *("checkpoint.every=4", "log.every=1", "log.trackers=[]"),
)
"""Keys of the smallest training, which the tests of all recipes rely on: its length and the files it writes."""

TINY = (
    *("--preset", "debug", "model.dim=8", "model.image_size=16", "model.quantizer=fsq", "loss.discriminator_dim=8"),
    *("loss.discriminator_start=4", "loss.discriminator_ramp=4"),
    *TWELVE_STEPS,
)
"""A VQ-GAN of a few thousand weights with an active discriminator: twelve steps in half a second."""

LAST_STEP = 40
UNENDING = ("train.steps=1000000", "optim.decay_steps=1000", "checkpoint.every=5", "checkpoint.keep=100")
"""A training that is stopped from outside. Resumed with `train.steps=40` it must equal `straight`, bit by bit."""


# --- the command ----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Outcome:
    """Exit code and output of a command."""

    code: int
    output: str
    errors: str


def quintet(*words: object) -> Outcome:
    """Run the command in this process: everything except the start of an interpreter."""
    output, errors = io.StringIO(), io.StringIO()
    with redirect_stdout(output), redirect_stderr(errors), pytest.raises(SystemExit) as ended:
        main([str(word) for word in words])
    return Outcome(int(ended.value.code or 0), output.getvalue(), errors.getvalue())


def succeed(*words: object) -> Outcome:
    """Run the command in this process; it must succeed."""
    outcome = quintet(*words)
    assert outcome.code == 0, outcome.errors
    return outcome


def install_entry_points(folder: Path, package: str, points: Mapping[str, str]) -> None:
    """Write the metadata of an installed package, so that its recipes are found if `folder` is on the path."""
    metadata = folder / f"{package}-0.1.0.dist-info"
    metadata.mkdir(parents=True)
    (metadata / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {package}\nVersion: 0.1.0\n", encoding="utf-8")
    lines = "".join(f"{name} = {value}\n" for name, value in points.items())
    (metadata / "entry_points.txt").write_text(f"[quintet.families]\n{lines}", encoding="utf-8")


def train_tiny(data: Path, out: Path, *more: object) -> Outcome:
    return succeed("train", "vqgan", data, "--out", out, *TINY, *more)


def error_line(errors: str) -> str:
    """The error message of a failed command: its last line, after any progress."""
    lines = errors.splitlines()
    assert [line for line in lines if line.startswith("error:")] == lines[-1:], errors
    assert "Traceback" not in errors
    return lines[-1]


# --- processes ------------------------------------------------------------------------------------------------

FORKS = multiprocessing.get_context("forkserver")
FORKS.set_forkserver_preload(["__main__", "pytest", "torch._inductor.config", "quintet.runs", "tensorboardX"])


def environment(**more: object) -> dict[str, str]:
    """The environment of this process without the variables of a launcher, and with one thread."""
    plain = {name: value for name, value in os.environ.items() if name not in LAUNCHER_VARIABLES}
    return {**plain, "OMP_NUM_THREADS": "1", **{name: str(value) for name, value in more.items()}}


class Process:
    """A process in its own session; both its streams go to one file."""

    def __init__(self, handle: subprocess.Popen[bytes] | BaseProcess, output: Path) -> None:
        self.handle = handle
        self.output = output
        assert handle.pid is not None
        self.pid = handle.pid

    @property
    def code(self) -> int | None:
        """The exit code, minus the signal that ended the process, or None while it runs."""
        return self.handle.poll() if isinstance(self.handle, subprocess.Popen) else self.handle.exitcode

    @property
    def seen(self) -> str:
        """Its output so far."""
        return self.output.read_text(encoding="utf-8")

    def send(self, number: signal.Signals) -> None:
        os.kill(self.pid, number)

    def kill(self) -> None:
        """kill -9, and wait for the end."""
        self.send(signal.SIGKILL)
        assert self.end() == -signal.SIGKILL, self.seen

    def end(self, within: float = DEADLINE) -> int:
        """The exit code, once the process has ended."""
        if isinstance(self.handle, subprocess.Popen):
            with suppress(subprocess.TimeoutExpired):
                self.handle.wait(within)
        else:
            self.handle.join(within)
        assert self.code is not None, f"the process did not end in {within} s:\n{self.seen}"
        return self.code

    def remove(self) -> None:
        """Kill the process and its children."""
        with suppress(ProcessLookupError):
            os.killpg(self.pid, signal.SIGKILL)
        self.end()


@contextmanager
def executed(words: Iterable[object], output: Path, **options: Any) -> Iterator[Process]:
    """A program, started as a shell would; it does not survive the test."""
    options.setdefault("env", environment())
    with output.open("wb") as stream:
        handle = subprocess.Popen(
            [*map(str, words)],
            stdout=stream,
            stderr=stream,
            stdin=subprocess.DEVNULL,
            start_new_session=True,
            **options,
        )
    process = Process(handle, output)
    try:
        yield process
    finally:
        process.remove()


def python(*words: object) -> list[str]:
    return [sys.executable, *map(str, words)]


def torchrun(processes: int, *words: object, restarts: int = 0) -> list[str]:
    address = ("--master_addr", "127.0.0.1", "--master_port", free_port(), "--max-restarts", restarts)
    return python("-m", "torch.distributed.run", "--nproc_per_node", processes, *address, *words)


def accelerate_launch(processes: int, *words: object) -> list[str]:
    # --multi_gpu also on CPUs: with --cpu accelerate would start a single process.
    options = ("--num_machines", 1, "--mixed_precision", "no", "--dynamo_backend", "no")
    port = ("--main_process_port", free_port())
    return python(
        "-m", "accelerate.commands.launch", "--multi_gpu", "--num_processes", processes, *options, *port, *words
    )


@contextmanager
def forked(
    words: Iterable[object], output: Path, prepare: Callable[[], object] | None = None, **variables: object
) -> Iterator[Process]:
    """Run the command in a real process whose interpreter has already imported torch, saving three of four seconds.

    `prepare` is called in it first. It does not survive the test.
    """
    arguments = ([*map(str, words)], str(output), prepare, environment(**variables))
    handle = FORKS.Process(target=_run_command, args=arguments)
    handle.start()
    process = Process(handle, output)
    try:
        yield process
    finally:
        process.remove()
        handle.close()


@contextmanager
def two_ranks(
    words: Iterable[object],
    folder: Path,
    prepare: Callable[[], object] | None = None,
    second: Iterable[object] | None = None,
    prepare_first: Callable[[], object] | None = None,
) -> Iterator[list[Process]]:
    """Two processes of one world, without a launcher that would clean up after them. `prepare` is for the second, and
    so are the words of `second`, if it has words of its own."""
    address = {"WORLD_SIZE": 2, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": free_port()}
    own = ((words, prepare_first), (words if second is None else second, prepare))
    with ExitStack() as stack:
        yield [
            stack.enter_context(
                forked(own_words, folder / f"said-{rank}", own_prepare, RANK=rank, LOCAL_RANK=rank, **address)
            )
            for rank, (own_words, own_prepare) in enumerate(own)
        ]


def _run_command(
    words: list[str], output: str, prepare: Callable[[], object] | None, variables: dict[str, str]
) -> None:
    os.setsid()
    # As in an ordinary process: data workers are its own children.
    multiprocessing.set_start_method("fork", force=True)
    # As in a terminal: a process that a shell starts in the background, such as these tests, ignores it.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    stream = os.open(output, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    os.dup2(stream, 1)
    os.dup2(stream, 2)
    os.environ.update(variables)
    if prepare is not None:
        prepare()
    main(words)


def children(process: int) -> list[int]:
    """The processes that a process has started, as the kernel sees them."""
    found = []
    for folder in Path("/proc").iterdir():
        with suppress(OSError):
            if folder.name.isdigit() and int((folder / "stat").read_text().rpartition(")")[2].split()[1]) == process:
                found.append(int(folder.name))
    return found


def wait_until(happened: Callable[[], bool], process: Process, what: str, pause: float = 0.002) -> None:
    """Wait until a running process has done something, such as writing a file."""
    deadline = time.monotonic() + DEADLINE
    while not happened():
        assert process.code is None, f"the process ended with {process.code} before {what}:\n{process.seen}"
        assert time.monotonic() < deadline, f"{DEADLINE} s passed before {what}:\n{process.seen}"
        time.sleep(pause)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


# --- run folders ----------------------------------------------------------------------------------------------


def metrics(run: Path) -> list[dict[str, Any]]:
    """The complete rows of metrics.jsonl, also while another process writes it."""
    try:
        lines = (run / "metrics.jsonl").read_text(encoding="utf-8").splitlines(keepends=True)
    except FileNotFoundError:
        return []
    return [json.loads(line) for line in lines if line.endswith("\n")]


def last_step(run: Path) -> int:
    return max((row["step"] for row in metrics(run)), default=0)


def state(run: Path) -> dict[str, Any]:
    return dict(json.loads((run / "state.json").read_text(encoding="utf-8")))


def log_text(run: Path) -> str:
    return (run / "log.txt").read_text(encoding="utf-8")


def step_folder(run: Path, step: int) -> Path:
    return run / "checkpoints" / f"step-{step:08d}"


def wait_for_step(run: Path, step: int, process: Process) -> None:
    """Wait until a running training has reached a step."""
    wait_until(lambda: last_step(run) >= step, process, f"step {step}")


def steps_saved(run: Path) -> list[int]:
    return sorted(int(path.name[5:]) for path in (run / "checkpoints").glob("step-*"))


def tensor_hashes(run: Path, step: int) -> dict[str, str]:
    """SHA-256 of weights, averaged weights and optimizer state of one checkpoint."""
    hashes = {name: value for name, value in tree(step_folder(run, step)).items() if name.endswith(".safetensors")}
    assert {name.split("/")[0] for name in hashes} >= {"ema", "optim"}, hashes
    return hashes


def tree(folder: Path) -> dict[str, str]:
    """Every file below a folder with its hash."""
    return {
        path.relative_to(folder).as_posix(): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }


def copied(folder: Path, target: Path) -> Path:
    shutil.copytree(folder, target)
    return target


def flip_bit(path: Path) -> None:
    """Damage one bit in the middle of a file."""
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


def renew_sums(folder: Path) -> None:
    """Update the checksums of a changed checkpoint."""
    lines = "".join(f"{value}  {name}\n" for name, value in tree(folder).items() if name != "SHA256SUMS")
    own = hashlib.sha256(lines.encode()).hexdigest()
    (folder / "SHA256SUMS").write_text(f"{lines}# sha256 of the lines above: {own}\n", encoding="utf-8")


# --- shared by all workers of a test session ------------------------------------------------------------------


def made_once(root: Path, name: str, make: Callable[[Path], object]) -> Path:
    """`root/name`, created by the first of the parallel test workers that requests it; the others wait."""
    target, done = root / name, root / f"{name}.done"
    with (root / f"{name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not done.exists():
            shutil.rmtree(target, ignore_errors=True)
            make(target)
            done.touch()
    return target
