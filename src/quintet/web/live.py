"""Live updates by server-sent events: one reader per run, for any number of viewers.

Files are polled once a second. Unlike change notifications, polling also works on a shared folder that another machine
writes to.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from typing import Any

from quintet.web.common import json_safe, to_json
from quintet.web.connections import connection_limit
from quintet.web.folders import Missing
from quintet.web.library import Changes, Library

RUN_SECONDS = 1.0
LIST_SECONDS = 2.0
KEEPALIVE_SECONDS = 15.0
"""Interval of keep-alive messages, which detect closed connections."""
MAX_QUEUE = 100
"""Messages a viewer may lag behind; a slower viewer is disconnected and reconnects."""
MAX_VIEWERS = 1_000

LOG = logging.getLogger(__name__)

Poll = Callable[[], dict[str, Any]]
"""Returns the changes since the last call: event name to content."""


def event(name: str, content: Any) -> bytes:
    return b"event: %s\ndata: %s\n\n" % (name.encode(), to_json(json_safe(content)))


class Channel:
    """The viewers of one run or of the list, and the task that polls it for all of them."""

    def __init__(self, poll: Poll, seconds: float) -> None:
        self._poll = poll
        self._seconds = seconds
        self._task = asyncio.create_task(self._run())
        self.polled = asyncio.Event()
        """Set after the first poll: changes are sent from then on."""
        self.viewers: set[asyncio.Queue[bytes | None]] = set()

    def close(self) -> None:
        self._task.cancel()
        self.polled.set()
        for viewer in self.viewers:
            with suppress(asyncio.QueueFull):
                viewer.put_nowait(None)

    async def _run(self) -> None:
        problem, idle = "", 0.0
        while True:
            before = problem
            try:
                news = await asyncio.to_thread(self._poll)
                message = b"".join(event(name, content) for name, content in news.items())
                problem = ""
            # Deleted files, an unavailable disk or a bug: reported once, and polling continues.
            except Exception as error:
                message, problem = b"", str(error) or type(error).__name__
                if problem != before and not isinstance(error, (Missing, OSError)):
                    LOG.exception("polling for changes failed")
            if not self.polled.is_set():
                message = b""  # not sent: viewers with an older version reload after `hello`
            if problem != before:
                message += event("gone", problem) if problem else event("back", {})
            self.polled.set()
            idle += self._seconds
            if message or idle >= KEEPALIVE_SECONDS:
                self._send(message or b": keep-alive\n\n")
                idle = 0.0
            await asyncio.sleep(self._seconds)

    def _send(self, message: bytes) -> None:
        for viewer in list(self.viewers):
            try:
                viewer.put_nowait(message)
            except asyncio.QueueFull:
                self.viewers.discard(viewer)
                with suppress(asyncio.QueueEmpty):
                    viewer.get_nowait()
                viewer.put_nowait(None)


class Live:
    """All channels with viewers, by the id of the run; the channel of the list of runs has the empty id."""

    def __init__(self, library: Library) -> None:
        self._library = library
        self._channels: dict[str, Channel] = {}
        self._closed = False

    def close(self) -> None:
        """Disconnect all viewers and accept no more."""
        self._closed = True
        for channel in self._channels.values():
            channel.close()

    @property
    def full(self) -> bool:
        # Connections for everything else must remain.
        limit = min(MAX_VIEWERS, connection_limit() * 2 // 3)
        return sum(len(channel.viewers) for channel in self._channels.values()) >= limit

    async def listen(self, label: str) -> AsyncIterator[bytes]:
        """Messages for one viewer, until it disconnects."""
        channel = self._channels.get(label)
        if channel is None:
            poll, seconds = (self._run(label), RUN_SECONDS) if label else (self._list(), LIST_SECONDS)
            channel = self._channels[label] = Channel(poll, seconds)
        # No `await` up to here: nobody would close a channel without a viewer.
        viewer: asyncio.Queue[bytes | None] = asyncio.Queue(MAX_QUEUE)
        channel.viewers.add(viewer)
        try:
            await channel.polled.wait()
            if self._closed:
                return
            # A viewer with an older version reloads.
            version = (await asyncio.to_thread(self._library.find, label)).version if label else -1
            yield event("hello", {"version": version})
            while True:
                message = await viewer.get()
                if message is None:
                    return
                yield message
        finally:
            channel.viewers.discard(viewer)
            if not channel.viewers and self._channels.get(label) is channel:
                del self._channels[label]
                channel.close()

    def _run(self, label: str) -> Poll:
        def poll() -> dict[str, Any]:
            watched = self._library.find(label)
            watched.refresh()
            return _news(watched.news())

        return poll

    def _list(self) -> Poll:
        known: dict[str, dict[str, Any]] = {}

        def poll() -> dict[str, Any]:
            lines = {line["id"]: line for line in self._library.list()}
            changed = [line for label, line in lines.items() if known.get(label) != line]
            gone = [label for label in known if label not in lines]
            known.clear()
            known.update(lines)
            return {"runs": {"changed": changed, "gone": gone}} if changed or gone else {}

        return poll


def _news(changes: Changes) -> dict[str, Any]:
    news = {
        "reset": {} if changes.reset else None,
        "rows": changes.rows if changes.rows and not changes.reset else None,
        "summary": changes.summary,
        "samples": changes.steps,
        "console": None if changes.console is None else changes.console[-8_000:],
    }
    return {name: content for name, content in news.items() if content is not None}
