"""Owns the server process of the page: uvicorn, with an end that does not wait for viewers who wait for news."""

from __future__ import annotations

import socket

import uvicorn

from quintet.web.app import Site
from quintet.web.folders import Folders


class PageServer(uvicorn.Server):
    def __init__(self, site: Site, token: str | None) -> None:
        super().__init__(uvicorn.Config(site.app(token), log_level="warning", access_log=False))
        self._site = site

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Viewers who wait are let go first: their connections would never end by themselves."""
        self._site.live.close()
        await super().shutdown(sockets)


def make_server(folders: Folders, token: str | None = None, read_only: bool = False) -> PageServer:
    return PageServer(Site(folders, read_only), token)
