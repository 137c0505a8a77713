"""`HangWatchdog`: ends all processes of a run when one of them fails, and logs the stack of each.

A process that hangs cannot notice that the others have stopped waiting for it. So a thread in each process polls the
rendezvous store once a second; the first process that times out announces the failure there.
"""

from __future__ import annotations

import os
import sys
import threading
import time
import traceback
from collections.abc import Callable
from typing import NoReturn

from quintet.common.streams import write_error
from quintet.training.distributed.rendezvous import Store

INTERVAL = 1.0
"""Seconds between two polls of the store."""
GRACE = 5.0
"""Seconds that a failed process waits for the others to log their stacks: launchers kill them when it exits."""


class HangWatchdog:
    """The watchdog of one process, with its own connection to the store; `alive` checks that connection."""

    def __init__(self, store: Store, alive: Callable[[], bool], attempt: str, rank: int, world_size: int) -> None:
        self.rank = rank
        self.world_size = world_size
        self.log: Callable[[str], object] = lambda text: None
        """Receives the stack of this process when the watchdog ends it; the stack is also printed to stderr."""
        self._failed, self._exited = f"quintet/{attempt}/failed", f"quintet/{attempt}/exited"
        self._store = store
        self._alive = alive
        self._stopped = threading.Event()
        self._main_thread = threading.main_thread()
        self._thread = threading.Thread(target=self._poll, name="quintet-watchdog", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Stop polling, before the process exits normally and the store closes.

        Does not wait for a store that never answers, such as one on a machine that lost its power."""
        self._stopped.set()
        self._thread.join(GRACE)

    def fail(self, reason: str) -> None:
        """Announce a failure to the other processes, and wait up to `GRACE` seconds until they log their stacks."""
        self.stop()
        if self._thread.is_alive() or not self._alive():
            return  # the process that hosts the store has exited, which all others notice
        try:
            if not self._store.check([self._failed]):
                self._store.set(self._failed, f"process {self.rank}: {reason}")
            self._report_exit()
            deadline = time.monotonic() + GRACE  # another process may be dead
            while not self._store.check([f"{self._exited}/all"]) and time.monotonic() < deadline:
                time.sleep(0.05)
        except RuntimeError:
            return  # the store has closed meanwhile

    def _poll(self) -> None:
        try:
            while not self._stopped.wait(INTERVAL):
                if self._store.check([self._failed]):
                    self._exit(self._store.get(self._failed).decode())
        except RuntimeError:
            return  # the process that hosts the store has exited, which the main thread notices

    def _exit(self, failure: str) -> NoReturn:
        """Log the stack of the main thread, which may be blocked outside of Python, and exit the process."""
        frame = sys._current_frames().get(self._main_thread.ident or 0)
        stack = "".join(traceback.format_stack(frame)) if frame is not None else "  (no stack)\n"
        text = f"process {self.rank} was ended by the watchdog ({failure}); its stack:\n{stack}"
        self.log(text)
        write_error(f"{text}error: ended because of {failure}\n")
        try:
            self._report_exit()
        finally:
            os._exit(1)

    def _report_exit(self) -> None:
        if self._store.add(self._exited, 1) == self.world_size:
            self._store.set(f"{self._exited}/all", "")
