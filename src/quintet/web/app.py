"""Routes of the server: the page, the JSON API, media files and live events."""

from __future__ import annotations

import asyncio
import json
import logging
import math
from collections.abc import AsyncIterator, Awaitable, Callable, Hashable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from starlette.applications import Starlette
from starlette.requests import ClientDisconnect, Request
from starlette.responses import FileResponse, Response, StreamingResponse
from starlette.routing import Route

from quintet.errors import UsageError
from quintet.web import samples
from quintet.web.common import PAGE
from quintet.web.folders import Folders, Missing, RunDir
from quintet.web.library import Library, WatchedRun
from quintet.web.live import Live
from quintet.web.playground import GenerationJob, JobQueue
from quintet.web.responses import CachedResponse, ResponseCache
from quintet.web.safety import App, Guard, RateLimit

CONTENT_TYPES = {".html": "text/html", ".js": "text/javascript", ".css": "text/css", ".txt": "text/plain"}
MAX_POINTS = 4_000
MAX_NAMES = 200
MAX_TOTAL_POINTS = 60 * MAX_POINTS
"""Points of all curves of one response; with more curves, each has fewer points."""
MAX_REQUEST_BYTES = 16_384
"""A text of the maximum length with every character escaped fits."""
REQUEST_SECONDS = 10.0
"""Time for the body of a request."""
JOBS_PER_MINUTE = 20

LOG = logging.getLogger(__name__)

Handler = Callable[[Request], Awaitable[Response]]


class Site:
    """State that the routes share."""

    def __init__(self, folders: Folders, read_only: bool) -> None:
        self.library = Library(folders)
        self.live = Live(self.library)
        self.queue = JobQueue()
        self.read_only = read_only
        self.title = ", ".join(folders.roots)
        self.job_limit = RateLimit(JOBS_PER_MINUTE, 60.0)
        self._cache = ResponseCache()
        self._files = {path.relative_to(PAGE).as_posix(): path.read_bytes() for path in PAGE.rglob("*.*")}
        self._static = {
            name: CachedResponse(content, CONTENT_TYPES[Path(name).suffix]) for name, content in self._files.items()
        }

    # --- the page -------------------------------------------------------------------------------------------

    async def index(self, request: Request) -> Response:
        return self._static["index.html"].response(request)

    async def static(self, request: Request) -> Response:
        found = self._static.get(request.path_params["name"])
        return found.response(request) if found else _problem(404, "file not found")

    # --- runs -----------------------------------------------------------------------------------------------

    async def runs(self, request: Request) -> Response:
        lines = await asyncio.to_thread(self.library.list)
        content = {"title": self.title, "read_only": self.read_only, "runs": lines}
        return CachedResponse.json(content).response(request)

    async def run(self, request: Request) -> Response:
        watched = await self._watched(request)
        return await self._answer(request, watched, ("run",), lambda: watched.describe(self.read_only))

    async def curves(self, request: Request) -> Response:
        watched = await self._watched(request)
        start, end = _bound(request, "from", -math.inf), _bound(request, "to", math.inf)
        if "complete" in request.query_params:
            await watched.wait_until_complete()
        names = watched.known(request.query_params.getlist("name")[:MAX_NAMES])
        limit = min(MAX_POINTS, MAX_TOTAL_POINTS // max(len(names), 1))
        max_points = int(min(max(_bound(request, "points", 400), 10), limit))
        key = ("curves", names, start, end, max_points)
        return await self._answer(
            request, watched, key, lambda: watched.curves(names, start, end, max_points), is_json_safe=True
        )

    async def samples(self, request: Request) -> Response:
        watched = await self._watched(request)
        folder = samples.folder_of(_step(request))
        key = ("samples", folder)
        return await self._answer(request, watched, key, lambda: samples.entries(watched.run_dir, "samples", folder))

    async def media(self, request: Request) -> Response:
        watched = await asyncio.to_thread(self.library.find, request.query_params.get("run", ""))
        folder = samples.folder_of(_step(request))
        return await _file(watched.run_dir, "samples", folder, request.query_params.get("file", ""))

    async def events(self, request: Request) -> Response:
        label = request.query_params.get("run", "")
        if label:
            await asyncio.to_thread(self.library.find, label)
        if self.live.full:
            return _problem(503, "too many viewers; the page works without live updates")
        return StreamingResponse(
            self.live.listen(label), media_type="text/event-stream", headers={"cache-control": "no-store"}
        )

    async def _watched(self, request: Request) -> WatchedRun:
        watched = await asyncio.to_thread(self.library.find, request.query_params.get("run", ""))
        if not watched.is_fresh:
            await asyncio.to_thread(watched.refresh)
        return watched

    async def _answer(
        self,
        request: Request,
        watched: WatchedRun,
        key: tuple[Hashable, ...],
        compute: Callable[[], Any],
        is_json_safe: bool = False,
    ) -> Response:
        """The response for this version of the run, from the cache if possible. `key` says what is asked for, without
        other words of the request. `is_json_safe`: skip the conversion."""
        version = (watched.run_dir.folder, watched.version, *key)
        cached = await self._cache.get(version, lambda: CachedResponse.json(compute(), is_json_safe))
        return cached.response(request)

    # --- playground -----------------------------------------------------------------------------------------

    async def generate(self, request: Request) -> Response:
        if self.read_only:
            return _problem(403, "this page is read-only")
        content = await _body(request)
        if content is None:
            return _problem(413, "the request is too long or too slow")
        try:
            values = json.loads(content)
            settings = GenerationJob.read(values)
        except (ValueError, RecursionError):
            return _problem(400, "the request is not valid JSON")
        watched = await asyncio.to_thread(self.library.find, str(values.get("run", "")))
        about = await asyncio.to_thread(watched.describe, False)
        if about["playground"] is None:
            return _problem(409, "this run is not a finished generator")
        if not self.job_limit.allows(request.client.host if request.client else ""):
            return _problem(429, f"at most {JOBS_PER_MINUTE} jobs per minute")
        return CachedResponse.json(_job_status(self.queue.start(watched.label, watched.run_dir, settings))).response(
            request
        )

    async def job(self, request: Request) -> Response:
        job = self.queue.jobs.get(request.query_params.get("job", ""))
        return CachedResponse.json(_job_status(job)).response(request) if job else _problem(404, "result not found")

    async def generated(self, request: Request) -> Response:
        job = self.queue.jobs.get(request.query_params.get("job", ""))
        if job is None:
            return _problem(404, "result not found")
        return await _file(self.queue.results_dir(), job.name, request.query_params.get("file", ""))

    # --- application ----------------------------------------------------------------------------------------

    def routes(self) -> list[Route]:
        handlers: dict[str, Handler] = {
            "/": self.index,
            "/static/{name:path}": self.static,
            "/api/runs": self.runs,
            "/api/run": self.run,
            "/api/curves": self.curves,
            "/api/samples": self.samples,
            "/api/events": self.events,
            "/api/generate": self.job,
            "/media": self.media,
            "/generated": self.generated,
        }
        routes = [Route(path, _guarded(handler), methods=["GET"]) for path, handler in handlers.items()]
        return [*routes, Route("/api/generate", _guarded(self.generate), methods=["POST"])]

    @asynccontextmanager
    async def lifespan(self, app: Starlette) -> AsyncIterator[None]:
        yield
        await self.queue.close()

    def app(self, token: str | None) -> App:
        return Guard(Starlette(routes=self.routes(), lifespan=self.lifespan), token)


def _guarded(handler: Handler) -> Handler:
    """The handler with errors of requests, disks and contents of runs turned into messages for the page."""
    seen: set[str] = set()

    async def guarded(request: Request) -> Response:
        try:
            return await handler(request)
        except Missing as gone:
            return _problem(404, str(gone))
        except UsageError as error:
            return _problem(400, str(error))
        except OSError as error:
            return _problem(503, f"the files cannot be read: {error.strerror}")
        except Exception as error:  # a bug, or a run with content that nobody expected; the others must stay visible
            kind = type(error).__name__
            if kind not in seen:  # once: a page asks again and again
                seen.add(kind)
                LOG.exception("a request failed")
            return _problem(500, f"the request failed ({kind}); the console of `quintet view` shows why")

    return guarded


def _problem(status: int, reason: str) -> Response:
    return Response(json.dumps({"problem": reason}), status, media_type="application/json")


def _job_status(job: Any) -> dict[str, Any]:
    return {
        "job": job.name,
        "state": job.state,
        "message": job.message,
        "entries": job.entries,
        "text": job.settings.text,
    }


async def _file(run_dir: RunDir, *parts: str) -> Response:
    path, content_type = await asyncio.to_thread(samples.media, run_dir, *parts)
    return FileResponse(path, media_type=content_type, headers={"cache-control": "private, max-age=60"})


async def _body(request: Request) -> bytes | None:
    """Body of a request; None if it is too long or too slow, in which case it is not read completely."""
    content = b""
    try:
        async with asyncio.timeout(REQUEST_SECONDS):
            async for piece in request.stream():
                content += piece
                if len(content) > MAX_REQUEST_BYTES:
                    return None
    except (ClientDisconnect, TimeoutError):
        return None
    return content


def _bound(request: Request, name: str, default: float) -> float:
    try:
        value = float(request.query_params.get(name, default))
    except ValueError:
        raise UsageError(f"{name} must be a number") from None
    return default if math.isnan(value) else value


def _step(request: Request) -> int:
    text = request.query_params.get("step", "")
    if not (text.isascii() and text.isdecimal() and len(text) <= 15):
        raise UsageError("step must be a non-negative integer")
    return int(text)
