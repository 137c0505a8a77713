"""Owns who may ask the server what: the token, the names it answers to, headers for the browser, and limits."""

from __future__ import annotations

import hmac
import time
from collections import deque
from collections.abc import Awaitable, Callable, MutableMapping
from http.cookies import CookieError, SimpleCookie
from typing import Any
from urllib.parse import parse_qs, urlsplit

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]

OWN_NAMES = frozenset({"127.0.0.1", "localhost", "::1"})
LONGEST_ADDRESS = 8_000
"""Bytes of a path and its query."""

HEADERS = (
    # Nothing is loaded from elsewhere, and no text that slips into the page can run.
    (
        b"content-security-policy",
        b"default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' blob: data:; media-src 'self' blob:; "
        b"connect-src 'self'; form-action 'none'; base-uri 'none'; frame-ancestors 'none'",
    ),
    (b"x-content-type-options", b"nosniff"),
    (b"referrer-policy", b"no-referrer"),
    (b"cross-origin-resource-policy", b"same-origin"),
    (b"cross-origin-opener-policy", b"same-origin"),
)


class Guard:
    """In front of everything. Without a token it answers only to the machine's own names, so that no page on the
    internet can reach it by a name of its own that it points at 127.0.0.1."""

    def __init__(self, app: App, token: str | None) -> None:
        self._app = app
        self._token = token

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in scope["headers"]}
        query = scope["query_string"].decode("latin-1")
        if len(scope["path"]) + len(query) > LONGEST_ADDRESS:
            await _refuse(send, 414, "the address is too long")
        elif self._token is None and _name(headers.get("host", "")) not in OWN_NAMES:
            await _refuse(send, 403, "this server answers to 127.0.0.1 and localhost alone")
        elif scope["method"] == "POST" and not _same_page(headers):
            await _refuse(send, 403, "this page does not take requests of others")
        elif self._token is not None and _fits(self._token, parse_qs(query).get("token", [""])[0]):
            await _welcome(send, _cookie(headers), self._token)
        elif self._token is not None and not self._knows(headers):
            await _refuse(send, 401, "this page needs its token: open the address that `quintet view` printed")
        else:
            await self._app(scope, receive, _with_headers(send))

    def _knows(self, headers: MutableMapping[str, str]) -> bool:
        assert self._token is not None
        try:
            cookie = SimpleCookie(headers.get("cookie", "")).get(_cookie(headers))
        except CookieError:
            cookie = None
        given = headers.get("authorization", "").removeprefix("Bearer ")
        return _fits(self._token, cookie.value if cookie else "") or _fits(self._token, given)


class RateLimit:
    """So many in so many seconds for each address."""

    def __init__(self, most: int, seconds: float) -> None:
        self._most = most
        self._seconds = seconds
        self._times: dict[str, deque[float]] = {}

    def allows(self, address: str) -> bool:
        now = time.monotonic()
        self._times = {who: times for who, times in self._times.items() if times and now - times[-1] < self._seconds}
        times = self._times.setdefault(address, deque())
        while times and now - times[0] >= self._seconds:
            times.popleft()
        if len(times) >= self._most:
            return False
        times.append(now)
        return True


def _fits(token: str, given: str) -> bool:
    return hmac.compare_digest(token.encode(), given.encode())


def _name(host: str) -> str:
    """The name of a Host header, without the port."""
    try:
        return urlsplit(f"//{host}").hostname or ""
    except ValueError:
        return ""


def _cookie(headers: MutableMapping[str, str]) -> str:
    """Its name. Browsers keep the cookies of all ports of a machine together: without the port in its name, that of a
    second page would take the place of the first one's."""
    port = headers.get("host", "").rpartition(":")[2]
    return f"quintet_token_{port}" if port.isascii() and port.isdecimal() else "quintet_token"


def _same_page(headers: MutableMapping[str, str]) -> bool:
    origin = headers.get("origin")
    own = origin is None or origin.partition("://")[2] == headers.get("host")
    return own and headers.get("content-type", "").split(";")[0].strip() == "application/json"


def _with_headers(send: Send) -> Send:
    async def wrapped(message: Message) -> None:
        if message["type"] == "http.response.start":
            message["headers"] = [*message.get("headers", []), *HEADERS]
        await send(message)

    return wrapped


async def _refuse(send: Send, status: int, reason: str) -> None:
    headers = [(b"content-type", b"text/plain; charset=utf-8"), (b"cache-control", b"no-store"), *HEADERS]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": f"{reason}\n".encode()})


async def _welcome(send: Send, name: str, token: str) -> None:
    """Keep the token in a cookie and out of the address, which people copy and browsers remember."""
    cookie = f"{name}={token}; HttpOnly; SameSite=Strict; Path=/".encode("latin-1")
    headers = [(b"location", b"/"), (b"set-cookie", cookie), (b"cache-control", b"no-store"), *HEADERS]
    await send({"type": "http.response.start", "status": 303, "headers": headers})
    await send({"type": "http.response.body", "body": b""})
