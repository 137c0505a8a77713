"""Training metrics and trackers (TensorBoard, W&B, trackio). Values stay on the device until a logging step."""

from __future__ import annotations

import socket
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import Tensor

from quintet.common import collectives
from quintet.config import RunConfig
from quintet.errors import UsageError


class Meter:
    """Running means of named values."""

    def __init__(self) -> None:
        self._sums: dict[str, Tensor] = {}
        self._counts: dict[str, int] = {}

    def add(self, values: Mapping[str, Tensor]) -> None:
        for name, value in values.items():
            self._sums[name] = self._sums[name] + value if name in self._sums else value
            self._counts[name] = self._counts.get(name, 0) + 1

    def read(self) -> dict[str, float]:
        """The means over steps and ranks, with one all-reduce; resets the meter. All ranks must have the same names."""
        if not self._sums:
            return {}
        names = sorted(self._sums)
        means = torch.stack([self._sums[name].float() / self._counts[name] for name in names])
        totals = collectives.sum_over_ranks(means) / collectives.world_size()
        self.__init__()  # type: ignore[misc]
        return dict(zip(names, totals.tolist(), strict=True))


class Stopwatch:
    """Wall time between two logging steps, without validation, samples and saves."""

    def __init__(self) -> None:
        self._began = time.perf_counter()
        self._waiting = self._computing = 0.0
        self._steps = 0

    def step(self, waiting: float, computing: float) -> None:
        self._waiting += waiting
        self._computing += computing
        self._steps += 1

    @contextmanager
    def paused(self) -> Iterator[None]:
        began = time.perf_counter()
        yield
        self._began += time.perf_counter() - began

    def read(self, batch_size: int, totals: Mapping[str, float] | None = None) -> dict[str, float]:
        """Items per second, each of `totals` per second, and the fractions of time spent waiting for data and on
        overhead; resets the stopwatch."""
        elapsed = max(time.perf_counter() - self._began, 1e-9)
        values = {
            "rate/items_per_second": self._steps * batch_size / elapsed,
            **{f"rate/{name}_per_second": total / elapsed for name, total in (totals or {}).items()},
            "time/waiting_for_data": self._waiting / elapsed,
            "time/overhead": 1 - self._computing / elapsed,
        }
        self.__init__()  # type: ignore[misc]
        return values


class Tracker(Protocol):
    """A destination for metrics besides metrics.jsonl."""

    def log(self, values: Mapping[str, float], step: int) -> None: ...

    def close(self) -> None: ...


class TensorBoard:
    """TensorBoard event files, written synchronously: a background thread could fail unnoticed on a full disk."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder / "tensorboard"
        self._writer: Any = None

    def _open(self) -> None:
        """Open a new event file. Its timestamp is made unique, in case the clock was set back."""
        from tensorboardX.record_writer import RecordWriter

        self._folder.mkdir(parents=True, exist_ok=True)
        stamp = time.time_ns() // 1000
        while list(self._folder.glob(f"*.{stamp}.*")):
            stamp += 1
        self._writer = RecordWriter(str(self._folder / f"events.out.tfevents.{stamp}.{socket.gethostname()}"))
        self._write(file_version="brain.Event:2")

    def log(self, values: Mapping[str, float], step: int) -> None:
        from tensorboardX.proto.summary_pb2 import Summary

        rows = [Summary.Value(tag=name, simple_value=value) for name, value in values.items()]
        try:
            if self._writer is None:
                self._open()
            self._write(step=step, summary=Summary(value=rows))
        except OSError:
            # Readers stop at a partial record, which a full disk may have left: continue in a new file.
            with suppress(OSError):
                self.close()
            self._writer = None
            raise

    def _write(self, **content: Any) -> None:
        from tensorboardX.proto.event_pb2 import Event

        self._writer.write(Event(wall_time=time.time(), **content).SerializeToString())
        self._writer.flush()

    def close(self) -> None:
        if self._writer is not None:
            self._writer.close()


class HostedTracker:
    """W&B and trackio, which share one interface; both work offline."""

    def __init__(self, kind: str, folder: Path, config: RunConfig) -> None:
        try:
            module: Any = __import__(kind)
        except ImportError:
            raise _missing(kind) from None
        settings: dict[str, Any] = {"dir": str(folder)} if kind == "wandb" else {}
        self._run = module.init(
            project=config.log.project,
            name=config.log.name or folder.name,
            config=config.model_dump(mode="json"),
            resume="allow",
            **settings,
        )

    def log(self, values: Mapping[str, float], step: int) -> None:
        self._run.log(dict(values), step=step)

    def close(self) -> None:
        self._run.finish()


def check_trackers(kinds: Iterable[str]) -> None:
    """Raise UsageError if the package of a tracker is not installed."""
    for kind in kinds:
        if kind != "tensorboard" and find_spec(kind) is None:
            raise _missing(kind)


def _missing(kind: str) -> UsageError:
    return UsageError(f"log.trackers contains {kind}, which is not installed: pip install 'quintet[{kind}]'")


def make_trackers(config: RunConfig, folder: Path) -> list[Tracker]:
    return [
        TensorBoard(folder) if kind == "tensorboard" else HostedTracker(kind, folder, config)
        for kind in config.log.trackers
    ]
