"""Owns what viewers are told while a run goes on, by server-sent events: one reader a run, however many look on.

Files are asked for their stamps once a second. That works as well on a shared folder that another machine writes to,
where no notice of a change would arrive.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from typing import Any

from quintet.web.folders import Missing
from quintet.web.library import Changes, Library

RUN_SECONDS = 1.0
LIST_SECONDS = 2.0
QUIET_SECONDS = 15.0
"""After so long something is sent in any case, so that a connection that is gone is noticed."""
LONGEST_QUEUE = 100
"""Messages a viewer may be behind; who is further is let go, and comes back with a fresh page."""
MOST_VIEWERS = 1_000

Look = Callable[[], dict[str, Any]]
"""What has changed since the last call, as an event's name to its content."""


def event(name: str, content: Any) -> bytes:
    return f"event: {name}\ndata: {json.dumps(content, ensure_ascii=False)}\n\n".encode()


class Channel:
    """The viewers of one thing, and the task that looks at it for all of them."""

    def __init__(self, look: Look, seconds: float) -> None:
        self._look = look
        self._seconds = seconds
        self.viewers: set[asyncio.Queue[bytes | None]] = set()
        self.task: asyncio.Task[None] | None = None

    async def run(self) -> None:
        trouble, quiet = "", 0.0
        while True:
            await asyncio.sleep(self._seconds)
            try:
                news, before, trouble = await asyncio.to_thread(self._look), trouble, ""
                if before:
                    news = {**news, "back": {}}
            except (Missing, OSError) as error:  # deleted, or on a disk that comes and goes; said once
                before, trouble = trouble, str(error)
                news = {"gone": trouble} if trouble != before else {}
            quiet += self._seconds
            if news or quiet >= QUIET_SECONDS:
                self._send(b"".join(event(name, content) for name, content in news.items()) or b": still here\n\n")
                quiet = 0.0

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
    """All channels that somebody listens to. The channel of the list of runs is called by no name."""

    def __init__(self, library: Library) -> None:
        self._library = library
        self._channels: dict[str, Channel] = {}
        self._closed = False

    def close(self) -> None:
        """Let all viewers go, and take no more."""
        self._closed = True
        for channel in self._channels.values():
            if channel.task is not None:
                channel.task.cancel()
            for viewer in channel.viewers:
                with suppress(asyncio.QueueFull):
                    viewer.put_nowait(None)

    @property
    def full(self) -> bool:
        return sum(len(channel.viewers) for channel in self._channels.values()) >= MOST_VIEWERS

    async def listen(self, label: str) -> AsyncIterator[bytes]:
        """Messages until the viewer goes away."""
        channel = self._channels.get(label)
        if channel is None:
            look, seconds = (self._run(label), RUN_SECONDS) if label else (self._list(), LIST_SECONDS)
            channel = self._channels[label] = Channel(look, seconds)
            if not label:
                await asyncio.to_thread(look)  # from here on changes are told
            channel.task = asyncio.create_task(channel.run())
        viewer: asyncio.Queue[bytes | None] = asyncio.Queue(LONGEST_QUEUE)
        channel.viewers.add(viewer)
        try:
            if self._closed:
                return
            # Who was given something older than this asks again.
            yield event("hello", {"version": self._library.find(label).version if label else -1})
            while True:
                message = await viewer.get()
                if message is None:
                    return
                yield message
        finally:
            channel.viewers.discard(viewer)
            if not channel.viewers and self._channels.get(label) is channel:
                del self._channels[label]
                if channel.task is not None:
                    channel.task.cancel()

    def _run(self, label: str) -> Look:
        def look() -> dict[str, Any]:
            watched = self._library.find(label)
            watched.refresh()
            return _news(watched.news())

        return look

    def _list(self) -> Look:
        known: dict[str, dict[str, Any]] = {}

        def look() -> dict[str, Any]:
            lines = {line["id"]: line for line in self._library.list()}
            changed = [line for label, line in lines.items() if known.get(label) != line]
            gone = [label for label in known if label not in lines]
            known.clear()
            known.update(lines)
            return {"runs": {"changed": changed, "gone": gone}} if changed or gone else {}

        return look


def _news(changes: Changes) -> dict[str, Any]:
    news: dict[str, Any] = {}
    if changes.anew:
        news["anew"] = {}
    elif changes.rows:
        news["rows"] = changes.rows
    if changes.summary is not None:
        news["summary"] = changes.summary
    if changes.steps is not None:
        news["samples"] = changes.steps
    if changes.console is not None:
        news["console"] = changes.console[-8_000:]
    return news
