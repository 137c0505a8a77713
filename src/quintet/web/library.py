"""The runs that the server knows: found on disk, read as they grow, and held in memory while somebody views them.

All functions except `wait_until_complete` block on files and are called from threads; a run has one reader at a time.
"""

from __future__ import annotations

import asyncio
import math
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, TypeVar, cast

from quintet.common.files import one_line
from quintet.web import detail, samples
from quintet.web.curves import SKETCHED_BYTES, MetricsLog, Row, sketch
from quintet.web.folders import Folders, Missing, RunDir
from quintet.web.summary import summarise

T = TypeVar("T")

MAX_VALUES = 60_000_000
"""Metric values held in memory over all runs; the least recently used run is dropped first."""
MAX_NEWS_ROWS = 1_000
"""Rows that are sent one by one; a viewer that missed more requests the curves again."""
MAX_NEWS_VALUES = 50_000
"""Values in rows that are sent one by one; after more, viewers request the curves again."""
MAX_WATCHED = 100
"""Runs held in memory; the least recently used one is dropped first."""
FILES = ("metrics.jsonl", "state.json", "samples", "log.txt", "config.yaml", "data.json", "checkpoints", "eval.json")
FRESH_SECONDS = 0.25
"""A run that was read this recently is not read again for another viewer."""
SKETCH_SECONDS = 5.0
"""Delay before all rows of a sketched run are read, unless its curves are requested earlier: the page comes first."""
MAX_READING_SECONDS = 60.0
"""Maximum time that a request waits for all rows of a run."""
WAIT_SECONDS = 0.05
"""Interval between two checks whether all rows are read."""
SCAN_SECONDS = 1.0
"""Maximum age of the list of runs."""


@dataclass
class Changes:
    """Changes of a run since they were last requested."""

    reset: bool = False
    rows: list[Row] = field(default_factory=list)
    summary: dict[str, Any] | None = None
    steps: list[int] | None = None
    console: str | None = None


class WatchedRun:
    """One run that is being viewed."""

    def __init__(self, label: str, run_dir: RunDir) -> None:
        self.label = label
        self.run_dir = run_dir
        self.metrics = MetricsLog(run_dir)
        self.version = 0
        """Grows with every change; responses are cached per version."""
        self.lock = threading.Lock()
        self.used = time.monotonic()
        self._stamps: dict[str, tuple[int, int, int]] = {}
        self._cache: dict[str, tuple[Any, Any]] = {}
        self._news = Changes()
        self._summary: dict[str, Any] = {}
        self._read_at = -math.inf
        self._complete = threading.Event()
        self._complete.set()
        self._requested = threading.Event()

    def refresh(self, complete: bool = False) -> None:
        """Read new content, if the stamps of the run's files have changed, and record it as news.

        Of a long run, read a sketch of its rows first, unless `complete`; a separate thread then reads all rows.
        """
        with self.lock:
            self.used = time.monotonic()
            if not self.run_dir.exists():
                raise Missing(f"the run {self.label[:200]} no longer exists on disk")
            changed = [name for name in FILES if self._changed(name)]
            if "metrics.jsonl" in changed and not self.sketched:
                self._read_rows(complete)
            summary = summarise(self.run_dir, self.label)  # every time: a process that is killed changes no file
            if summary != self._summary:
                self._news.summary = self._summary = summary
                changed.append("summary")
            if "samples" in changed or self._newest_changed():
                self._news.steps = samples.steps(self.run_dir)
                changed.append("samples")
            if "log.txt" in changed:
                self._news.console = detail.console(self.run_dir)
            if changed:
                self.version += 1
            self._read_at = time.monotonic()

    def _read_rows(self, complete: bool) -> None:
        if not complete and not self.metrics.rows and self._stamps["metrics.jsonl"][1] > SKETCHED_BYTES:
            with suppress(Missing):
                self.metrics = sketch(self.run_dir)
            self._complete.clear()
            threading.Thread(target=self._read_all, daemon=True).start()
            return
        reset, rows = self.metrics.advance()
        self._news.reset |= reset
        if self._read_at > -math.inf:  # existing rows are not news
            self._news.rows = [*self._news.rows, *rows][-MAX_NEWS_ROWS:]
            self._news.reset |= sum(map(len, self._news.rows)) > MAX_NEWS_VALUES

    def _read_all(self) -> None:
        """Replace the sketch by all rows; viewers then request the curves again."""
        self._requested.wait(SKETCH_SECONDS)
        metrics = MetricsLog(self.run_dir)
        with suppress(OSError):
            metrics.advance()
        with self.lock:
            self.metrics = metrics
            self._news.reset = True
            self._stamps.pop("metrics.jsonl", None)  # it may have grown since
            self.version += 1
            self._complete.set()

    @property
    def sketched(self) -> bool:
        """Whether the metrics are only a sketch."""
        return not self._complete.is_set()

    async def wait_until_complete(self) -> None:
        """Wait as a coroutine, because waiting must not occupy the threads that answer other requests."""
        self._requested.set()
        deadline = time.monotonic() + MAX_READING_SECONDS
        while self.sketched and time.monotonic() < deadline:
            await asyncio.sleep(WAIT_SECONDS)

    @property
    def is_fresh(self) -> bool:
        return time.monotonic() - self._read_at < FRESH_SECONDS

    def news(self) -> Changes:
        """Changes since the last call."""
        with self.lock:
            news, self._news = self._news, Changes()
            return news

    def _changed(self, *parts: str) -> bool:
        name, stamp = "/".join(parts), self.run_dir.stamp(*parts)
        changed = self._stamps.get(name) != stamp
        self._stamps[name] = stamp
        return changed

    def _newest_changed(self) -> bool:
        """Whether the newest samples have changed; new files in them do not change the parent folder."""
        newest = next(iter(reversed(self.run_dir.names("samples"))), None)
        if newest is None:
            return False
        return self._changed("samples", newest) | self._changed("samples", newest, "samples.jsonl")

    def known(self, names: Iterable[str]) -> tuple[str, ...]:
        """Those of the names that are metrics of this run, each once."""
        return tuple(name for name in dict.fromkeys(names) if name in self.metrics.columns)

    def _cached(self, read: Callable[[RunDir], T], *parts: str) -> T:
        """Result of `read`, computed again only when the file or folder has changed."""
        stamp = self.run_dir.stamp(*parts)
        known = self._cache.get(read.__name__)
        if known is None or known[0] != stamp:
            self._cache[read.__name__] = known = (stamp, read(self.run_dir))
        return cast(T, known[1])

    def describe(self, read_only: bool) -> dict[str, Any]:
        """Everything about the run except its curves and samples."""
        # The version first: content read after it may be newer, but never older.
        with self.lock:  # metrics must not grow while they are counted
            state = {
                "version": self.version,
                "metrics": {name: len(column.values) for name, column in self.metrics.columns.items()},
                "last": dict(self.metrics.last),
                "rows": self.metrics.rows,
                "sketched": self.sketched,
            }
        summary = summarise(self.run_dir, self.label)
        problems: list[str] = []

        def part(read: Callable[[RunDir], Any], otherwise: Any, *parts: str) -> Any:
            """One part of the description; content that it cannot read must not hide the others."""
            try:
                return self._cached(read, *parts) if parts else read(self.run_dir)
            except Exception as error:
                problems.append(f"{read.__name__} ({type(error).__name__}: {one_line(error)})")
                return otherwise

        config = part(detail.configuration, detail.NO_CONFIGURATION, "config.yaml")
        saved = part(detail.checkpoints, [], "checkpoints")
        described = {
            **state,
            "summary": summary,
            "config": config,
            "data": part(detail.data, detail.NO_DATA, "data.json"),
            "checkpoints": saved,
            "console": detail.console(self.run_dir),
            "evaluated": part(detail.evaluated, {}),
            "codes": part(detail.codes, None, "checkpoints"),
            "sample_steps": part(samples.steps, []),
            "playground": None if read_only else detail.playground(config["keys"], summary, bool(saved)),
        }
        if problems:
            summary["note"] = "; ".join([*filter(None, [summary["note"]]), f"cannot be read: {', '.join(problems)}"])
        return described

    def curves(self, names: Iterable[str], start: float, end: float, max_points: int) -> dict[str, Any]:
        with self.lock:
            columns = self.metrics.columns
            found = {name: columns[name].points(start, end, max_points) for name in names if name in columns}
        self._requested.set()
        return found


class Library:
    """All runs in the served folders."""

    def __init__(self, folders: Folders) -> None:
        self._folders = folders
        self._lock = threading.Lock()
        self._run_dirs: dict[str, RunDir] = {}
        self._scanned = -SCAN_SECONDS
        self._watched: dict[str, WatchedRun] = {}
        self._lines: dict[str, tuple[Any, dict[str, Any]]] = {}

    def run_dirs(self) -> Mapping[str, RunDir]:
        with self._lock:
            if time.monotonic() - self._scanned >= SCAN_SECONDS:
                self._run_dirs = self._folders.scan()
                self._scanned = time.monotonic()
            return self._run_dirs

    def list(self) -> list[dict[str, Any]]:
        """One summary per run; unchanged runs are not read again."""
        run_dirs = self.run_dirs()
        with self._lock:
            lines = {}
            for label, run_dir in run_dirs.items():
                stamps = (run_dir.stamp("state.json"), run_dir.stamp("metrics.jsonl"))
                known = self._lines.get(label)
                # The process of a running run may have died, which changes no file.
                if known is None or known[0] != stamps or known[1]["state"] == "running":
                    known = (stamps, summarise(run_dir, label))
                lines[label] = known
            self._lines = lines
            return [line for _, line in lines.values()]

    def find(self, label: str) -> WatchedRun:
        run_dir = self.run_dirs().get(label)
        with self._lock:
            known = self._watched.get(label)
            if known is not None and (run_dir is None or run_dir.folder == known.run_dir.folder):
                if run_dir is None and not known.run_dir.exists():
                    raise Missing(f"the run {label[:200]} no longer exists")
                return known
            if run_dir is None:
                raise Missing(f"there is no run {label[:200]}")
            self._watched[label] = WatchedRun(label, run_dir)
            self._forget(label)
            return self._watched[label]

    def _forget(self, newest: str) -> None:
        while len(self._watched) > 1 and (
            len(self._watched) > MAX_WATCHED
            or sum(run.metrics.num_values for run in self._watched.values()) > MAX_VALUES
        ):
            oldest = min(self._watched.values(), key=lambda run: (run.label == newest, run.used))
            del self._watched[oldest.label]
