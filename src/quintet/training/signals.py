"""`StopRequest`: stops a run at the next step, after a signal or at the time limit."""

from __future__ import annotations

import signal
import time
from types import FrameType, TracebackType
from typing import Any

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1)


class StopRequest:
    """Context manager: the first signal is recorded, a second one ends the process immediately."""

    def __init__(self, minutes: float | None = None) -> None:
        self.received: signal.Signals | None = None
        self._deadline = None if minutes is None else time.monotonic() + 60 * minutes
        self._previous: dict[signal.Signals, Any] = {}

    @property
    def requested(self) -> bool:
        """Whether a signal was received or the time limit is reached."""
        return self.received is not None or self.out_of_time

    @property
    def out_of_time(self) -> bool:
        return self._deadline is not None and time.monotonic() >= self._deadline

    def __enter__(self) -> StopRequest:
        try:
            self._previous = {number: signal.signal(number, self._receive) for number in SIGNALS}
        except ValueError:
            # Only the main thread may install handlers; in other threads the time limit still works.
            self._previous = {}
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for number, handler in self._previous.items():
            # None means a handler that was not installed from Python, which cannot be restored.
            signal.signal(number, signal.SIG_DFL if handler is None else handler)

    def _receive(self, number: int, frame: FrameType | None) -> None:
        self.received = signal.Signals(number)
        for each in SIGNALS:
            signal.signal(each, signal.SIG_DFL)
