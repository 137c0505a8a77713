"""Responses that are compressed once, and a cache of them with a limit on their size."""

from __future__ import annotations

import asyncio
import gzip
import hashlib
from collections import OrderedDict
from collections.abc import Callable, Hashable
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from quintet.web.common import json_safe, to_json

MAX_CACHE_BYTES = 64 * 2**20


class CachedResponse:
    """Content of a response, compressed once for all requests."""

    def __init__(self, content: bytes, content_type: str) -> None:
        self._plain = content
        self._compressed = gzip.compress(content, 1) if len(content) > 1_000 else None
        self._sent_as = content_type
        self._tag = f'"{hashlib.sha256(content).hexdigest()[:20]}"'

    @classmethod
    def json(cls, value: Any, is_json_safe: bool = False) -> CachedResponse:
        return cls(to_json(value if is_json_safe else json_safe(value)), "application/json")

    @property
    def num_bytes(self) -> int:
        return len(self._plain) + len(self._compressed or b"")

    def response(self, request: Request) -> Response:
        headers = {"etag": self._tag, "cache-control": "no-cache", "vary": "accept-encoding"}
        if request.headers.get("if-none-match") == self._tag:
            return Response(status_code=304, headers=headers)
        if self._compressed is not None and "gzip" in request.headers.get("accept-encoding", ""):
            return Response(self._compressed, media_type=self._sent_as, headers={**headers, "content-encoding": "gzip"})
        return Response(self._plain, media_type=self._sent_as, headers=headers)


class ResponseCache:
    """The most recently used responses. Requests for a response that is being computed wait for it."""

    def __init__(self) -> None:
        self.num_bytes = 0
        self._entries: OrderedDict[Hashable, CachedResponse] = OrderedDict()
        self._pending: dict[Hashable, asyncio.Task[CachedResponse]] = {}

    async def get(self, key: Hashable, compute: Callable[[], CachedResponse]) -> CachedResponse:
        """The response of this key; `compute` runs in a thread."""
        if key in self._entries:
            self._entries.move_to_end(key)
            return self._entries[key]
        task = self._pending.get(key)
        if task is None:
            task = self._pending[key] = asyncio.create_task(asyncio.to_thread(compute))
            task.add_done_callback(lambda finished: self._store(key, finished))
        return await asyncio.shield(task)  # one that leaves must not cancel it for the others

    def _store(self, key: Hashable, task: asyncio.Task[CachedResponse]) -> None:
        del self._pending[key]
        if task.cancelled() or task.exception() is not None:
            return
        self._entries[key] = task.result()
        self.num_bytes += task.result().num_bytes
        while self.num_bytes > MAX_CACHE_BYTES:
            _, oldest = self._entries.popitem(last=False)
            self.num_bytes -= oldest.num_bytes
