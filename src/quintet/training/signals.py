"""Owns how a run is asked to stop: signals and the time limit, noticed at the next step boundary."""

from __future__ import annotations

import signal
import time
from types import FrameType, TracebackType
from typing import Any

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1)


class StopRequest:
    """While entered, the first signal is remembered and the second one ends the process at once."""

    def __init__(self, minutes: float | None = None) -> None:
        self.received: signal.Signals | None = None
        self._deadline = None if minutes is None else time.monotonic() + 60 * minutes
        self._previous: dict[signal.Signals, Any] = {}

    @property
    def requested(self) -> bool:
        return self.received is not None or self.out_of_time

    @property
    def out_of_time(self) -> bool:
        return self._deadline is not None and time.monotonic() >= self._deadline

    def __enter__(self) -> StopRequest:
        try:
            self._previous = {number: signal.signal(number, self._receive) for number in SIGNALS}
        except ValueError:
            # Only the main thread may install handlers; in a notebook's worker thread the time limit still holds.
            self._previous = {}
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for number, handler in self._previous.items():
            # Python does not know a handler that was installed by other code, and cannot put it back.
            signal.signal(number, signal.SIG_DFL if handler is None else handler)

    def _receive(self, number: int, frame: FrameType | None) -> None:
        self.received = signal.Signals(number)
        for each in SIGNALS:
            signal.signal(each, signal.SIG_DFL)
