"""Owns what viewers are told while a run goes on, by server-sent events: one reader a run, however many look on.

Files are asked for their stamps once a second. That works as well on a shared folder that another machine writes to,
where no notice of a change would arrive.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from typing import Any

from quintet.web.common import speakable, to_json
from quintet.web.folders import Missing
from quintet.web.library import Changes, Library

RUN_SECONDS = 1.0
LIST_SECONDS = 2.0
QUIET_SECONDS = 15.0
"""After so long something is sent in any case, so that a connection that is gone is noticed."""
LONGEST_QUEUE = 100
"""Messages a viewer may be behind; who is further is let go, and comes back with a fresh page."""
MOST_VIEWERS = 1_000

LOG = logging.getLogger(__name__)

Look = Callable[[], dict[str, Any]]
"""What has changed since the last call, as an event's name to its content."""


def event(name: str, content: Any) -> bytes:
    return b"event: %s\ndata: %s\n\n" % (name.encode(), to_json(speakable(content)))


class Channel:
    """The viewers of one thing, and the task that looks at it for all of them, from the first moment to the last."""

    def __init__(self, look: Look, seconds: float) -> None:
        self._look = look
        self._seconds = seconds
        self._task = asyncio.create_task(self._run())
        self.looked = asyncio.Event()
        """Set after the first look: changes are told from there on."""
        self.viewers: set[asyncio.Queue[bytes | None]] = set()

    def close(self) -> None:
        self._task.cancel()
        self.looked.set()
        for viewer in self.viewers:
            with suppress(asyncio.QueueFull):
                viewer.put_nowait(None)

    async def _run(self) -> None:
        trouble, quiet = "", 0.0
        while True:
            before = trouble
            try:
                news = await asyncio.to_thread(self._look)
                message = b"".join(event(name, content) for name, content in news.items())
                trouble = ""
            # Deleted, on a disk that comes and goes, or a fault of ours: said once, and looking goes on.
            except Exception as error:
                message, trouble = b"", str(error) or type(error).__name__
                if trouble != before and not isinstance(error, (Missing, OSError)):
                    LOG.exception("looking for news failed")
            if not self.looked.is_set():
                message = b""  # no news: who has something older asks again, after `hello`
            if trouble != before:
                message += event("gone", trouble) if trouble else event("back", {})
            self.looked.set()
            quiet += self._seconds
            if message or quiet >= QUIET_SECONDS:
                self._send(message or b": still here\n\n")
                quiet = 0.0
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
    """All channels that somebody listens to. The channel of the list of runs is called by no name."""

    def __init__(self, library: Library) -> None:
        self._library = library
        self._channels: dict[str, Channel] = {}
        self._closed = False

    def close(self) -> None:
        """Let all viewers go, and take no more."""
        self._closed = True
        for channel in self._channels.values():
            channel.close()

    @property
    def full(self) -> bool:
        return sum(len(channel.viewers) for channel in self._channels.values()) >= MOST_VIEWERS

    async def listen(self, label: str) -> AsyncIterator[bytes]:
        """Messages until the viewer goes away."""
        channel = self._channels.get(label)
        if channel is None:
            look, seconds = (self._run(label), RUN_SECONDS) if label else (self._list(), LIST_SECONDS)
            channel = self._channels[label] = Channel(look, seconds)
        # No `await` up to here: a channel without a viewer would have nobody to end it.
        viewer: asyncio.Queue[bytes | None] = asyncio.Queue(LONGEST_QUEUE)
        channel.viewers.add(viewer)
        try:
            await channel.looked.wait()
            if self._closed:
                return
            # Who was given something older than this asks again.
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
    news = {
        "anew": {} if changes.anew else None,
        "rows": changes.rows if changes.rows and not changes.anew else None,
        "summary": changes.summary,
        "samples": changes.steps,
        "console": None if changes.console is None else changes.console[-8_000:],
    }
    return {name: content for name, content in news.items() if content is not None}
