"""Server of the page: listens on a socket, prints and opens the address, and shuts down."""

from __future__ import annotations

import asyncio
import errno
import os
import secrets
import socket
import sys
import webbrowser
from collections.abc import Callable, Sequence
from pathlib import Path

import uvicorn

from quintet.errors import UsageError
from quintet.web.app import Site
from quintet.web.connections import BACKLOG, PageProtocol, raise_file_limit, report_problem
from quintet.web.folders import Folders

LOOPBACK = "127.0.0.1"
MIN_TOKEN_LENGTH = 16


class PageServer(uvicorn.Server):
    """uvicorn with a shutdown that does not wait for viewers of live updates."""

    def __init__(self, site: Site, token: str | None) -> None:
        config = uvicorn.Config(
            site.app(token), http=PageProtocol, ws="none", backlog=BACKLOG, log_level="error", access_log=False
        )
        super().__init__(config)
        self._site = site

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        asyncio.get_running_loop().set_exception_handler(report_problem)
        await super().startup(sockets)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Disconnect viewers of live updates first: their connections would never end by themselves."""
        self._site.live.close()
        await super().shutdown(sockets)


def serve(
    paths: Sequence[Path],
    say: Callable[[str], None],
    host: str | None = None,
    port: int = 0,
    token: str | None = None,
    read_only: bool = False,
    browser: bool = True,
) -> None:
    """Serve the runs in the folders until Ctrl-C. Other machines need a token."""
    if token is not None and (len(token) < MIN_TOKEN_LENGTH or not token.isascii() or not token.isalnum()):
        raise UsageError(
            f"--token needs at least {MIN_TOKEN_LENGTH} letters and digits; leave it out to get a random one"
        )
    if host is not None and token is None:
        token = secrets.token_hex(16)
    folders = Folders(paths)
    raise_file_limit()
    listener = listen(host or LOOPBACK, port)
    name = f"[{host}]" if host and ":" in host else (host or LOOPBACK)
    address = f"http://{name}:{listener.getsockname()[1]}/" + (f"?token={token}" if token else "")
    found = len(folders.scan())
    say(f"{found} run{'' if found == 1 else 's'} in {', '.join(map(str, paths))}: {address} (Ctrl-C to stop)")
    if browser and _has_screen():
        webbrowser.open(address)
    with listener:
        PageServer(Site(folders, read_only), token).run(sockets=[listener])


def listen(host: str, port: int) -> socket.socket:
    listener = None
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        listener = socket.socket(family, kind, protocol)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
        listener.listen(512)
    except OSError as error:
        if listener is not None:
            listener.close()
        if error.errno == errno.EADDRINUSE:
            raise UsageError(f"port {port} is in use; choose another with --port, or leave it out") from None
        raise UsageError(f"cannot listen on {host}, port {port}: {error.strerror}") from None
    return listener


def _has_screen() -> bool:
    """Whether a graphical browser can be opened; a text browser would take over the terminal."""
    return sys.platform in ("darwin", "win32") or bool(os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY"))
