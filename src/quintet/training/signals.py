"""`StopRequest`: stops a run at the next step, after a signal or at the time limit."""

from __future__ import annotations

import signal
import time
from types import FrameType, TracebackType
from typing import Any

from quintet.common.workers import SIGNALS


class StopRequest:
    """Context manager: the first signal is recorded, a second one ends the process immediately."""

    def __init__(self, minutes: float | None = None) -> None:
        self.received: signal.Signals | None = None
        self.minutes = minutes
        self._by_signal = self._by_time = False
        self._deadline = None if minutes is None else time.monotonic() + 60 * minutes
        self._previous: dict[signal.Signals, Any] = {}

    @property
    def out_of_time(self) -> bool:
        return self._deadline is not None and time.monotonic() >= self._deadline

    def agree(self, any_signal: bool, any_out_of_time: bool) -> None:
        """Record what all ranks agreed on at the end of a step: whether any of them has a reason to stop."""
        self._by_signal, self._by_time = any_signal, any_out_of_time

    @property
    def agreed(self) -> bool:
        return self._by_signal or self._by_time

    @property
    def leaves_time(self) -> bool:
        """Whether the run stops at its time limit, and may validate and sample; after a signal it must exit soon."""
        return self._by_time and not self._by_signal

    @property
    def cause(self) -> str:
        """Why the run stops."""
        if self.received is not None:
            return self.received.name
        return f"train.minutes={self.minutes:g}" if self.leaves_time and self.minutes else "a signal to another process"

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
