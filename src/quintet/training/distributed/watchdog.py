"""`HangWatchdog`: ends all processes of a run when one of them fails or hangs, and logs the stack of each.

A process that hangs cannot notice that the others have stopped waiting for it, and a process that waits inside NCCL
cannot raise an error. So a thread in each process polls the rendezvous store once a second. It publishes how far the
training loop of its process is. While its own process waits for long, it compares the others: a process that is behind
and does not move, or whose thread is silent, is named. The first process that times out announces the failure.
"""

from __future__ import annotations

import os
import sys
import threading
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple, NoReturn

from quintet.common.streams import write_error
from quintet.training.distributed.rendezvous import Store

INTERVAL = 1.0
"""Seconds between two polls of the store."""
GRACE = 5.0
"""Seconds that a failed process waits for the others to log their stacks: launchers kill them when it exits."""
PATIENCE = 1 / 4
"""Fraction of the timeout after which a process that waits starts to look at the others."""
SILENT_POLLS = 3
"""Number of polls in which a thread has to publish something, so as not to be silent."""


class Progress(NamedTuple):
    """What a process publishes."""

    points: int
    """Number of points of the training loop that it has passed; all processes pass the same points."""
    polls: int
    """Number of polls of its thread: it stands still if the process is stopped."""


class HangWatchdog:
    """The watchdog of one process, with its own connection to the store; `alive` checks that connection.

    It ends the run if this process has waited `timeout` seconds for a process that does not move."""

    def __init__(
        self,
        store: Store,
        alive: Callable[[], bool],
        attempt: str,
        rank: int,
        world_size: int,
        timeout: float = float("inf"),
    ) -> None:
        self.rank = rank
        self.world_size = world_size
        self.timeout = timeout
        self.log: Callable[[str], object] = lambda text: None
        """Receives the stack of this process when the watchdog ends it; the stack is also printed to stderr."""
        self.record: Callable[[str], object] = lambda reason: None
        """Receives the reason when the watchdog of this process finds that another one hangs."""
        self.suspects: tuple[int, ...] = ()
        """Ranks that this process seems to wait for, while it waits for long."""
        self._points, self._passed = 0, time.monotonic()
        self._observed: list[Mapping[int, Progress]] = []
        """What the others published, at each poll since this process looks at them."""
        self._ending = False
        self._keys = f"quintet/{attempt}"
        self._failed, self._exited = f"{self._keys}/failed", f"{self._keys}/exited"
        self._store = store
        self._alive = alive
        self._stopped = threading.Event()
        self._main_thread = threading.main_thread()
        self._thread = threading.Thread(target=self._poll, name="quintet-watchdog", daemon=True)
        self._thread.start()

    def pass_point(self) -> None:
        """Called at points of the training loop that every process passes, in the same order."""
        self._points += 1
        self._passed = time.monotonic()

    def stop(self) -> None:
        """Stop polling, before the process exits normally and the store closes.

        Does not wait for a store that never answers, such as one on a machine that lost its power."""
        self._stopped.set()
        self._thread.join(GRACE)
        if self._ending:
            self._thread.join()  # it ends the process

    def fail(self, reason: str) -> None:
        """Announce a failure to the other processes, and wait up to `GRACE` seconds until they log their stacks."""
        self.stop()
        if self._thread.is_alive() or not self._alive():
            return  # the process that hosts the store has exited, which all others notice
        try:
            self._announce(reason)
        except RuntimeError:
            return  # the store has closed meanwhile

    def _announce(self, reason: str) -> None:
        if not self._store.check([self._failed]):
            self._store.set(self._failed, f"process {self.rank}: {reason}")
        self._report_exit()
        deadline = time.monotonic() + GRACE  # another process may be dead
        while not self._store.check([f"{self._exited}/all"]) and time.monotonic() < deadline:
            time.sleep(0.05)

    def _poll(self) -> None:
        polls = 0
        try:
            while not self._stopped.wait(INTERVAL):
                if self._store.check([self._failed]):
                    failure = self._store.get(self._failed).decode()
                    self._exit(f"ended by the watchdog ({failure})", f"ended because of {failure}", self._report_exit)
                polls += 1
                self._store.set(self._progress_key(self.rank), f"{self._points} {polls}")
                waited = time.monotonic() - self._passed
                self.suspects = self._find_suspects(waited)
                if self.suspects and waited >= self.timeout:
                    self._give_up(did_not_answer(self.suspects))
        except RuntimeError:
            return  # the process that hosts the store has exited, which the main thread notices

    def _progress_key(self, rank: int) -> str:
        return f"{self._keys}/progress/{rank}"

    def _find_suspects(self, waited: float) -> tuple[int, ...]:
        """The ranks that have not moved since this process looks at them, which it does only when it waits: many
        processes have one store."""
        if waited < self.timeout * PATIENCE:
            self._observed = []
            return ()
        self._observed.append({rank: self._progress(rank) for rank in range(self.world_size) if rank != self.rank})
        first, last = self._observed[0], self._observed[-1]
        return tuple(rank for rank in last if self._is_stuck(first[rank], last[rank]))

    def _is_stuck(self, first: Progress, last: Progress) -> bool:
        is_behind = len(self._observed) > 1 and last.points == first.points < self._points
        is_silent = len(self._observed) > SILENT_POLLS and last.polls == first.polls
        return is_behind or is_silent

    def _progress(self, rank: int) -> Progress:
        if not self._store.check([self._progress_key(rank)]):
            return Progress(0, 0)
        points, polls = self._store.get(self._progress_key(rank)).decode().split()
        return Progress(int(points), int(polls))

    def _give_up(self, reason: str) -> NoReturn:
        """End this process, whose main thread cannot be told, and all others."""
        self._ending = True
        self.record(reason)
        self._exit(f"ended by the watchdog ({reason})", reason, lambda: self._announce(reason))

    def _exit(self, what: str, error: str, announce: Callable[[], None]) -> NoReturn:
        """Log the stack of the main thread, which may be blocked outside of Python, and exit the process."""
        frame = sys._current_frames().get(self._main_thread.ident or 0)
        stack = "".join(traceback.format_stack(frame)) if frame is not None else "  (no stack)\n"
        text = f"process {self.rank} was {what}; its stack:\n{stack}"
        self.log(text)
        write_error(f"{text}error: {error}\n")
        try:
            announce()
        finally:
            os._exit(1)

    def _report_exit(self) -> None:
        if self._store.add(self._exited, 1) == self.world_size:
            self._store.set(f"{self._exited}/all", "")


def did_not_answer(ranks: Sequence[int]) -> str:
    """The sentence about processes that this one has waited for in vain; without ranks, they are not known."""
    who = f"process{'es' if len(ranks) > 1 else ''} {', '.join(map(str, ranks))}" if ranks else "another process"
    return (
        f"{who} of this run did not answer within engine.timeout_seconds; log.txt of the run has the stack of each "
        "process"
    )
