"""Access control of the server: token, allowed host names, security headers and limits."""

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

LOOPBACK_NAMES = frozenset({"127.0.0.1", "localhost", "::1"})
MAX_URL_LENGTH = 8_000
"""Maximum length of a path with its query."""

HEADERS = (
    # Nothing is loaded from other origins, and injected text cannot run as a script.
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
    """Checks every request. Without a token it accepts only loopback host names, so that no website can reach the
    server through a domain that resolves to 127.0.0.1 (DNS rebinding)."""

    def __init__(self, app: App, token: str | None) -> None:
        self._app = app
        self._token = token

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in scope["headers"]}
        query = scope["query_string"].decode("latin-1")
        if len(scope["path"]) + len(query) > MAX_URL_LENGTH:
            await _refuse(send, 414, "the URL is too long")
        elif self._token is None and _hostname(headers.get("host", "")) not in LOOPBACK_NAMES:
            await _refuse(send, 403, "this server only answers to 127.0.0.1 and localhost")
        elif scope["method"] == "POST" and not _is_same_origin(headers):
            await _refuse(send, 403, "requests from other pages are not accepted")
        elif self._token is not None and _matches(self._token, parse_qs(query).get("token", [""])[0]):
            await _set_cookie(send, _cookie_name(headers), self._token)
        elif self._token is not None and not self._is_authorized(headers):
            await _refuse(send, 401, "this page needs a token: open the address that `quintet view` printed")
        else:
            await self._app(scope, receive, _with_headers(send))

    def _is_authorized(self, headers: MutableMapping[str, str]) -> bool:
        assert self._token is not None
        try:
            cookie = SimpleCookie(headers.get("cookie", "")).get(_cookie_name(headers))
        except CookieError:
            cookie = None
        bearer = headers.get("authorization", "").removeprefix("Bearer ")
        return _matches(self._token, cookie.value if cookie else "") or _matches(self._token, bearer)


class RateLimit:
    """At most `limit` requests in `seconds` seconds for each client address."""

    def __init__(self, limit: int, seconds: float) -> None:
        self._limit = limit
        self._seconds = seconds
        self._times: dict[str, deque[float]] = {}

    def allows(self, address: str) -> bool:
        now = time.monotonic()
        self._times = {
            client: times for client, times in self._times.items() if times and now - times[-1] < self._seconds
        }
        times = self._times.setdefault(address, deque())
        while times and now - times[0] >= self._seconds:
            times.popleft()
        if len(times) >= self._limit:
            return False
        times.append(now)
        return True


def _matches(token: str, candidate: str) -> bool:
    return hmac.compare_digest(token.encode(), candidate.encode())


def _hostname(host: str) -> str:
    """Host name of a Host header, without the port."""
    try:
        return urlsplit(f"//{host}").hostname or ""
    except ValueError:
        return ""


def _cookie_name(headers: MutableMapping[str, str]) -> str:
    """Name of the token cookie. Browsers share cookies between all ports of a host: without the port in the name, a
    second server would overwrite the cookie of the first."""
    port = headers.get("host", "").rpartition(":")[2]
    return f"quintet_token_{port}" if port.isascii() and port.isdecimal() else "quintet_token"


def _is_same_origin(headers: MutableMapping[str, str]) -> bool:
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


async def _set_cookie(send: Send, name: str, token: str) -> None:
    """Move the token to a cookie and out of the URL, which users copy and browsers record."""
    cookie = f"{name}={token}; HttpOnly; SameSite=Strict; Path=/".encode("latin-1")
    headers = [(b"location", b"/"), (b"set-cookie", cookie), (b"cache-control", b"no-store"), *HEADERS]
    await send({"type": "http.response.start", "status": 303, "headers": headers})
    await send({"type": "http.response.body", "body": b""})
