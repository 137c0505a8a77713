"""Owns the addresses of the page: what is asked for, from which file of the run it is answered, and in what form."""

from __future__ import annotations

import asyncio
import gzip
import hashlib
import json
import math
from collections import OrderedDict
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from starlette.applications import Starlette
from starlette.requests import ClientDisconnect, Request
from starlette.responses import FileResponse, Response, StreamingResponse
from starlette.routing import Route

from quintet.errors import UsageError
from quintet.web import samples
from quintet.web.common import PAGE, speakable, to_json
from quintet.web.folders import Folders, Missing, Place
from quintet.web.library import Library, Watched
from quintet.web.live import Live
from quintet.web.playground import GenerationJob, JobQueue
from quintet.web.safety import App, Guard, RateLimit

SENT_AS = {".html": "text/html", ".js": "text/javascript", ".css": "text/css", ".txt": "text/plain"}
MOST_POINTS = 4_000
MOST_NAMES = 200
LARGEST_WISH = 16_384
"""Bytes; a text of the longest length with every character escaped fits."""
KEPT_ANSWERS = 500
WISHES_A_MINUTE = 20

Answer = Callable[[Request], Awaitable[Response]]


class Site:
    """Everything that the addresses share."""

    def __init__(self, folders: Folders, read_only: bool) -> None:
        self.library = Library(folders)
        self.live = Live(self.library)
        self.workshop = JobQueue()
        self.read_only = read_only
        self.title = ", ".join(folders.roots)
        self.wishes = RateLimit(WISHES_A_MINUTE, 60.0)
        self._kept: OrderedDict[tuple[Any, ...], Packed] = OrderedDict()
        self._files = {path.relative_to(PAGE).as_posix(): path.read_bytes() for path in PAGE.rglob("*.*")}
        self._static = {name: Packed(content, SENT_AS[Path(name).suffix]) for name, content in self._files.items()}

    # --- the page -------------------------------------------------------------------------------------------

    async def index(self, request: Request) -> Response:
        return self._static["index.html"].response(request)

    async def static(self, request: Request) -> Response:
        found = self._static.get(request.path_params["name"])
        return found.response(request) if found else _problem(404, "there is no such file")

    # --- runs -----------------------------------------------------------------------------------------------

    async def runs(self, request: Request) -> Response:
        lines = await asyncio.to_thread(self.library.list)
        about = {"title": self.title, "read_only": self.read_only, "runs": lines}
        return Packed.json(about).response(request)

    async def run(self, request: Request) -> Response:
        watched = await self._watched(request)
        return await self._answer(request, watched, lambda: watched.describe(self.read_only))

    async def curves(self, request: Request) -> Response:
        watched = await self._watched(request)
        names = request.query_params.getlist("name")[:MOST_NAMES]
        start, end = _bound(request, "from", -math.inf), _bound(request, "to", math.inf)
        most = int(min(max(_bound(request, "points", 400), 10), MOST_POINTS))
        if "whole" in request.query_params:
            await watched.wait_for_whole()
        return await self._answer(request, watched, lambda: watched.curves(names, start, end, most), plain=True)

    async def samples(self, request: Request) -> Response:
        watched = await self._watched(request)
        folder = samples.folder_of(_step(request))
        return await self._answer(request, watched, lambda: samples.entries(watched.place, "samples", folder))

    async def media(self, request: Request) -> Response:
        watched = await asyncio.to_thread(self.library.find, request.query_params.get("run", ""))
        folder = samples.folder_of(_step(request))
        return await _file(watched.place, "samples", folder, request.query_params.get("file", ""))

    async def events(self, request: Request) -> Response:
        label = request.query_params.get("run", "")
        if label:
            await asyncio.to_thread(self.library.find, label)
        if self.live.full:
            return _problem(503, "too many are looking; the page works without news")
        return StreamingResponse(
            self.live.listen(label), media_type="text/event-stream", headers={"cache-control": "no-store"}
        )

    async def _watched(self, request: Request) -> Watched:
        watched = await asyncio.to_thread(self.library.find, request.query_params.get("run", ""))
        if not watched.is_fresh:
            await asyncio.to_thread(watched.refresh)
        return watched

    async def _answer(
        self, request: Request, watched: Watched, make: Callable[[], Any], plain: bool = False
    ) -> Response:
        """What was answered before, if nothing has changed since. `plain`: it is known that JSON can say it."""
        key = (watched.place.folder, watched.version, request.url.path, request.url.query)
        kept = self._kept.get(key)
        if kept is None:
            kept = self._kept[key] = await asyncio.to_thread(lambda: Packed.json(make(), plain))
            while len(self._kept) > KEPT_ANSWERS:
                self._kept.popitem(last=False)
        return kept.response(request)

    # --- trying ---------------------------------------------------------------------------------------------

    async def wish(self, request: Request) -> Response:
        if self.read_only:
            return _problem(403, "this page is for looking only")
        content = await _body(request)
        if content is None:
            return _problem(413, "that is too long")
        try:
            given = json.loads(content)
            wish = GenerationJob.read(given)
        except (ValueError, RecursionError):
            return _problem(400, "that is no JSON")
        watched = await asyncio.to_thread(self.library.find, str(given.get("run", "")))
        about = await asyncio.to_thread(watched.describe, False)
        if about["trying"] is None:
            return _problem(409, "this run is no finished generator")
        if not self.wishes.allows(request.client.host if request.client else ""):
            return _problem(429, f"at most {WISHES_A_MINUTE} a minute")
        return Packed.json(_told(self.workshop.start(watched.label, watched.place, wish))).response(request)

    async def job(self, request: Request) -> Response:
        job = self.workshop.jobs.get(request.query_params.get("job", ""))
        return Packed.json(_told(job)).response(request) if job else _problem(404, "there is no such result")

    async def made(self, request: Request) -> Response:
        job = self.workshop.jobs.get(request.query_params.get("job", ""))
        if job is None:
            return _problem(404, "there is no such result")
        return await _file(self.workshop.place(), job.name, request.query_params.get("file", ""))

    # --- all of it ------------------------------------------------------------------------------------------

    def routes(self) -> list[Route]:
        looks: dict[str, Answer] = {
            "/": self.index,
            "/static/{name:path}": self.static,
            "/api/runs": self.runs,
            "/api/run": self.run,
            "/api/curves": self.curves,
            "/api/samples": self.samples,
            "/api/events": self.events,
            "/api/try": self.job,
            "/media": self.media,
            "/made": self.made,
        }
        routes = [Route(path, _guarded(answer), methods=["GET"]) for path, answer in looks.items()]
        return [*routes, Route("/api/try", _guarded(self.wish), methods=["POST"])]

    @asynccontextmanager
    async def lifespan(self, app: Starlette) -> AsyncIterator[None]:
        yield
        await self.workshop.close()

    def app(self, token: str | None) -> App:
        return Guard(Starlette(routes=self.routes(), lifespan=self.lifespan), token)


class Packed:
    """An answer as it is sent, compressed once for all who ask."""

    def __init__(self, content: bytes, sent_as: str) -> None:
        self._plain = content
        self._small = gzip.compress(content, 1) if len(content) > 1_000 else None
        self._sent_as = sent_as
        self._tag = f'"{hashlib.sha256(content).hexdigest()[:20]}"'

    @classmethod
    def json(cls, value: Any, plain: bool = False) -> Packed:
        return cls(to_json(value if plain else speakable(value)), "application/json")

    def response(self, request: Request) -> Response:
        headers = {"etag": self._tag, "cache-control": "no-cache", "vary": "accept-encoding"}
        if request.headers.get("if-none-match") == self._tag:
            return Response(status_code=304, headers=headers)
        if self._small is not None and "gzip" in request.headers.get("accept-encoding", ""):
            return Response(self._small, media_type=self._sent_as, headers={**headers, "content-encoding": "gzip"})
        return Response(self._plain, media_type=self._sent_as, headers=headers)


def _guarded(answer: Answer) -> Answer:
    """Everything that can be wrong with a request or a disk is a sentence for the page."""

    async def guarded(request: Request) -> Response:
        try:
            return await answer(request)
        except Missing as gone:
            return _problem(404, str(gone))
        except UsageError as error:
            return _problem(400, str(error))
        except OSError as error:
            return _problem(503, f"the disk does not answer: {error.strerror}")

    return guarded


def _problem(status: int, reason: str) -> Response:
    return Response(json.dumps({"problem": reason}), status, media_type="application/json")


def _told(job: Any) -> dict[str, Any]:
    return {"job": job.name, "state": job.state, "message": job.message, "entries": job.entries, "text": job.wish.text}


async def _file(place: Place, *parts: str) -> Response:
    path, sent_as = await asyncio.to_thread(samples.media, place, *parts)
    return FileResponse(path, media_type=sent_as, headers={"cache-control": "private, max-age=60"})


async def _body(request: Request) -> bytes | None:
    """What was sent, or none if it is too much; it is not read further than that."""
    content = b""
    try:
        async for piece in request.stream():
            content += piece
            if len(content) > LARGEST_WISH:
                return None
    except ClientDisconnect:
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
        raise UsageError("step must be a whole number")
    return int(text)
