"""Owns the runs that the server knows: found on disk, read as they grow, and kept in memory as long as looked at.

Everything here but waiting blocks on files and is called from threads; a run has one reader at a time.
"""

from __future__ import annotations

import asyncio
import math
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, TypeVar, cast

from quintet.web import detail, samples
from quintet.web.figures import SKETCHED_BYTES, Figures, Row, sketch
from quintet.web.folders import Folders, Missing, Place
from quintet.web.summary import summarise

T = TypeVar("T")

MOST_VALUES = 60_000_000
"""Figures held in memory over all runs; the run that was looked at longest ago is forgotten first."""
MOST_NEWS = 1_000
"""Rows that are told one by one; who missed more asks for the curves anew."""
FILES = ("metrics.jsonl", "state.json", "samples", "log.txt", "config.yaml", "data.json", "checkpoints", "eval.json")
FRESH_SECONDS = 0.25
"""What was read so lately is not read again for the next of many viewers."""
SKETCH_SECONDS = 5.0
"""Then all rows of a sketched run are read, if nobody has asked for its curves before: the page comes first."""
LONGEST_READING = 60.0
"""Seconds that somebody waits for all rows of a run."""
WAIT_SECONDS = 0.05
"""Between two looks whether they are there."""
SCAN_SECONDS = 1.0
"""How old a list of runs may be."""


@dataclass
class Changes:
    """What has happened to a run since it was looked at last."""

    anew: bool = False
    rows: list[Row] = field(default_factory=list)
    summary: dict[str, Any] | None = None
    steps: list[int] | None = None
    console: str | None = None


class Watched:
    """One run that is looked at."""

    def __init__(self, label: str, place: Place) -> None:
        self.label = label
        self.place = place
        self.figures = Figures(place)
        self.version = 0
        """Grows with every change, so that answers can be kept until then."""
        self.lock = threading.Lock()
        self.used = time.monotonic()
        self._stamps: dict[str, tuple[int, int, int]] = {}
        self._read: dict[str, tuple[Any, Any]] = {}
        self._news = Changes()
        self._summary: dict[str, Any] = {}
        self._read_at = -math.inf
        self._whole = threading.Event()
        self._whole.set()
        self._shown = threading.Event()

    def refresh(self, whole: bool = False) -> None:
        """Read what is new, if the stamps of a few files say that there is anything; keep it as news.

        Of a long run, a sketch of its rows, unless `whole` is asked for; they are then read by a thread of its own."""
        with self.lock:
            self.used = time.monotonic()
            if not self.place.exists():
                raise Missing(f"the run {self.label[:200]} is gone from the disk")
            changed = [name for name in FILES if self._changed(name)]
            if "metrics.jsonl" in changed and not self.sketched:
                self._read_rows(whole)
            summary = summarise(self.place, self.label)  # each time: a process that is killed changes no file
            if summary != self._summary:
                self._news.summary = self._summary = summary
                changed.append("summary")
            if "samples" in changed or self._newest_changed():
                self._news.steps = samples.steps(self.place)
                changed.append("samples")
            if "log.txt" in changed:
                self._news.console = detail.console(self.place)
            if changed:
                self.version += 1
            self._read_at = time.monotonic()

    def _read_rows(self, whole: bool) -> None:
        if not whole and not self.figures.rows and self._stamps["metrics.jsonl"][1] > SKETCHED_BYTES:
            with suppress(Missing):
                self.figures = sketch(self.place)
            self._whole.clear()
            threading.Thread(target=self._read_all, daemon=True).start()
            return
        anew, rows = self.figures.advance()
        self._news.anew |= anew
        if self._read_at > -math.inf:  # what was there before is no news
            self._news.rows = [*self._news.rows, *rows][-MOST_NEWS:]

    def _read_all(self) -> None:
        """Every row, in the place of a sketch; what was shown of that is to be asked for anew."""
        self._shown.wait(SKETCH_SECONDS)
        figures = Figures(self.place)
        with suppress(OSError):
            figures.advance()
        with self.lock:
            self.figures = figures
            self._news.anew = True
            self._stamps.pop("metrics.jsonl", None)  # it may have grown since
            self.version += 1
            self._whole.set()

    @property
    def sketched(self) -> bool:
        """Whether the figures are a sketch."""
        return not self._whole.is_set()

    async def wait_for_whole(self) -> None:
        """For a coroutine: the few threads that answer everybody must not be spent on waiting."""
        self._shown.set()
        deadline = time.monotonic() + LONGEST_READING
        while self.sketched and time.monotonic() < deadline:
            await asyncio.sleep(WAIT_SECONDS)

    @property
    def is_fresh(self) -> bool:
        return time.monotonic() - self._read_at < FRESH_SECONDS

    def news(self) -> Changes:
        """What was read since this was asked last."""
        with self.lock:
            news, self._news = self._news, Changes()
            return news

    def _changed(self, *parts: str) -> bool:
        name, stamp = "/".join(parts), self.place.stamp(*parts)
        changed = self._stamps.get(name) != stamp
        self._stamps[name] = stamp
        return changed

    def _newest_changed(self) -> bool:
        """Whether the newest samples are still growing: files within them do not touch the folder above."""
        newest = next(iter(reversed(self.place.names("samples"))), None)
        if newest is None:
            return False
        return self._changed("samples", newest) | self._changed("samples", newest, "samples.jsonl")

    def _once(self, read: Callable[[Place], T], *parts: str) -> T:
        """What is read from a file or folder, again only when that has changed."""
        stamp = self.place.stamp(*parts)
        known = self._read.get(read.__name__)
        if known is None or known[0] != stamp:
            self._read[read.__name__] = known = (stamp, read(self.place))
        return cast(T, known[1])

    def describe(self, read_only: bool) -> dict[str, Any]:
        """All of the run but its curves and samples."""
        # The version first: what is read after it may be newer than it says, but never older.
        with self.lock:  # figures must not grow while they are counted
            figures = {
                "version": self.version,
                "metrics": {name: len(column.values) for name, column in self.figures.columns.items()},
                "last": dict(self.figures.last),
                "rows": self.figures.rows,
                "sketched": self.sketched,
            }
        summary = summarise(self.place, self.label)
        config = self._once(detail.configuration, "config.yaml")
        saved = self._once(detail.checkpoints, "checkpoints")
        return {
            **figures,
            "summary": summary,
            "config": config,
            "data": self._once(detail.data, "data.json"),
            "checkpoints": saved,
            "console": detail.console(self.place),
            "evaluated": detail.evaluated(self.place),
            "codes": self._once(detail.codes, "checkpoints"),
            "sample_steps": samples.steps(self.place),
            "trying": None if read_only else detail.trying(config["keys"], summary, bool(saved)),
        }

    def curves(self, names: list[str], start: float, end: float, most: int) -> dict[str, Any]:
        with self.lock:
            columns = self.figures.columns
            found = {name: columns[name].points(start, end, most) for name in names if name in columns}
        self._shown.set()
        return found


class Library:
    """All runs below the given folders."""

    def __init__(self, folders: Folders) -> None:
        self._folders = folders
        self._lock = threading.Lock()
        self._places: dict[str, Place] = {}
        self._scanned = -SCAN_SECONDS
        self._watched: dict[str, Watched] = {}
        self._lines: dict[str, tuple[Any, dict[str, Any]]] = {}

    def places(self) -> Mapping[str, Place]:
        with self._lock:
            if time.monotonic() - self._scanned >= SCAN_SECONDS:
                self._places = self._folders.scan()
                self._scanned = time.monotonic()
            return self._places

    def list(self) -> list[dict[str, Any]]:
        """A line for every run; those that did not change are not read again."""
        places = self.places()
        with self._lock:
            lines = {}
            for label, place in places.items():
                stamps = (place.stamp("state.json"), place.stamp("metrics.jsonl"))
                known = self._lines.get(label)
                # A running one may have died, which changes no file.
                if known is None or known[0] != stamps or known[1]["state"] == "running":
                    known = (stamps, summarise(place, label))
                lines[label] = known
            self._lines = lines
            return [line for _, line in lines.values()]

    def find(self, label: str) -> Watched:
        place = self.places().get(label)
        with self._lock:
            known = self._watched.get(label)
            if known is not None and (place is None or place.folder == known.place.folder):
                if place is None and not known.place.exists():
                    raise Missing(f"the run {label[:200]} is gone")
                return known
            if place is None:
                raise Missing(f"there is no run {label[:200]}")
            self._watched[label] = Watched(label, place)
            self._forget(label)
            return self._watched[label]

    def _forget(self, newest: str) -> None:
        while len(self._watched) > 1 and sum(run.figures.weight for run in self._watched.values()) > MOST_VALUES:
            oldest = min(self._watched.values(), key=lambda run: (run.label == newest, run.used))
            del self._watched[oldest.label]
