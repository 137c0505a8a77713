"""Owns the news that a process of a run has failed: told to the others, each of which leaves its stack and ends.

A process that hangs cannot notice by itself that nobody waits for it any more. So a thread of each looks, once a
second, into the store through which they met; the first that gives up waiting says so there.
"""

from __future__ import annotations

import os
import sys
import threading
import time
import traceback
from collections.abc import Callable
from typing import NoReturn

from quintet.training.distributed.rendezvous import Store

INTERVAL = 1.0
"""Seconds between two looks."""
GRACE = 5.0
"""How many seconds a process that gave up waits for the others to have left their stacks: its end may end them."""


class HangWatchdog:
    """One process's part in it, by a connection of its own to the store; `alive` says whether that still stands."""

    def __init__(self, store: Store, alive: Callable[[], bool], meeting: str, rank: int, world_size: int) -> None:
        self.rank = rank
        self.world_size = world_size
        self.log: Callable[[str], object] = lambda text: None
        """Where the stack of a process that was told to end is left, beside its standard error."""
        self._failed, self._gone = f"quintet/{meeting}/failed", f"quintet/{meeting}/gone"
        self._store = store
        self._alive = alive
        self._over = threading.Event()
        self._watched = threading.main_thread()
        self._thread = threading.Thread(target=self._look, name="quintet-watch", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """The process is about to end by itself; the store may end before it. One on a machine that lost its power
        answers nothing, not even that it has ended: it is not waited for."""
        self._over.set()
        self._thread.join(GRACE)

    def fail(self, reason: str) -> None:
        """Tell the others, and wait until they have left their stacks, but not for long."""
        self.stop()
        if self._thread.is_alive() or not self._alive():
            return  # the store ended with the process that kept it, which all others have noticed
        try:
            if not self._store.check([self._failed]):
                self._store.set(self._failed, f"process {self.rank}: {reason}")
            self._leave()
            deadline = time.monotonic() + GRACE  # one of the others may be dead
            while not self._store.check([f"{self._gone}/all"]) and time.monotonic() < deadline:
                time.sleep(0.05)
        except RuntimeError:
            return  # the store has ended meanwhile

    def _look(self) -> None:
        try:
            while not self._over.wait(INTERVAL):
                if self._store.check([self._failed]):
                    self._end(self._store.get(self._failed).decode())
        except RuntimeError:
            return  # the store ended with the process that kept it, which the main thread notices

    def _end(self, news: str) -> NoReturn:
        """The main thread may never come back to Python, so this one ends the process."""
        frame = sys._current_frames().get(self._watched.ident or 0)
        stack = "".join(traceback.format_stack(frame)) if frame is not None else "  (gone)\n"
        text = f"process {self.rank} was told to end ({news}); it was here:\n{stack}"
        self.log(text)
        sys.stderr.write(f"{text}error: told to end by {news}\n")
        sys.stderr.flush()
        try:
            self._leave()
        finally:
            os._exit(1)

    def _leave(self) -> None:
        if self._store.add(self._gone, 1) == self.world_size:
            self._store.set(f"{self._gone}/all", "")
