"""Connections of the server: how many there may be, and how long one may stay idle.

A connection without a request is closed after a few seconds, or earlier if a new one needs its place, so that idle
connections lock nobody out. A client that does not read its response is disconnected.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import resource
import time
from contextlib import suppress
from typing import Any

from uvicorn.protocols.http.h11_impl import H11Protocol

MAX_CONNECTIONS = 1_500
MAX_OPEN_FILES = 4_096
BACKLOG = 100
"""Connections that are accepted at once, before the first of them can be closed again."""
RESERVED_FILES = 100
"""Descriptors for everything but connections: run folders, the worker process, the event loop."""
REQUEST_SECONDS = 10.0
"""Time for a complete request header, from the start of a connection or the end of the previous response."""
STALLED_SECONDS = 120.0
"""Time after which a client that does not read its response is disconnected."""
OUT_OF_RESOURCES = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM})

LOG = logging.getLogger(__name__)


def raise_file_limit() -> None:
    """Allow this process as many open files as the server needs, if the system permits it."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = MAX_OPEN_FILES if hard == resource.RLIM_INFINITY else min(hard, MAX_OPEN_FILES)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        with suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


def connection_limit() -> int:
    """Maximum number of connections; below the limit of open files, so that `accept` does not fail."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY:
        return MAX_CONNECTIONS
    return max(10, min(MAX_CONNECTIONS, soft - BACKLOG - RESERVED_FILES))


class PageProtocol(H11Protocol):
    """One connection, with limits on its number and on its idle time."""

    def __init__(self, *args: Any, **keywords: Any) -> None:
        super().__init__(*args, **keywords)
        self._since = 0.0
        self._request_timer: asyncio.TimerHandle | None = None
        self._stall_timer: asyncio.TimerHandle | None = None

    @property
    def is_idle(self) -> bool:
        """Whether no request is being answered."""
        return self.cycle is None or self.cycle.response_complete

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._expect_request()
        if len(self.connections) > connection_limit():
            idle = (each for each in self.connections if isinstance(each, PageProtocol) and each.is_idle)
            min(idle, key=lambda each: each._since).disconnect()

    def connection_lost(self, exc: Exception | None) -> None:
        self._cancel_timers()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        if not self.is_idle and self._request_timer is not None:
            self._request_timer.cancel()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        if self.is_idle:  # not if the next request was already received
            self._expect_request()

    def pause_writing(self) -> None:
        super().pause_writing()
        self._stall_timer = self.loop.call_later(STALLED_SECONDS, self.disconnect)

    def resume_writing(self) -> None:
        super().resume_writing()
        if self._stall_timer is not None:
            self._stall_timer.cancel()

    def disconnect(self) -> None:
        """Close at once, without waiting for data that the client does not read."""
        self._cancel_timers()
        self.connections.discard(self)
        self.transport.abort()

    def _expect_request(self) -> None:
        if self._request_timer is not None:
            self._request_timer.cancel()
        self._since = time.monotonic()
        self._request_timer = self.loop.call_later(REQUEST_SECONDS, self.disconnect)

    def _cancel_timers(self) -> None:
        for timer in (self._request_timer, self._stall_timer):
            if timer is not None:
                timer.cancel()


def report_problem(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    """Handler for errors of the event loop. Without descriptors, asyncio pauses for a second and reports each
    connection that waits, with a traceback; that is one line here."""
    error = context.get("exception")
    if isinstance(error, OSError) and error.errno in OUT_OF_RESOURCES:
        LOG.debug("new connections wait: %s", error.strerror)
    else:
        loop.default_exception_handler(context)
