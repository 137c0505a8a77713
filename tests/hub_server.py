"""A server on 127.0.0.1 that speaks the part of the API of the Hugging Face hub that quintet uses."""

from __future__ import annotations

import base64
import hashlib
import json
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import unquote, urlparse

Files = dict[str, bytes]


class Hub:
    """Repositories by name, each with its files by commit; the last commit is `main`."""

    def __init__(self) -> None:
        self.repositories: dict[str, dict[str, Files]] = {}
        self.requests: list[str] = []
        self.is_writable = True

    def commit(self, name: str, files: Files) -> str:
        known = self.repositories.setdefault(name, {})
        commit = hashlib.sha1(f"{name} {len(known)}".encode()).hexdigest()
        known[commit] = dict(files)
        return commit

    def newest(self, name: str) -> str:
        return [*self.repositories[name]][-1]


class _Handler(BaseHTTPRequestHandler):
    hub: Hub
    protocol_version = "HTTP/1.1"

    def log_message(self, *arguments: Any) -> None:
        pass

    def do_GET(self) -> None:
        self._answer()

    def do_HEAD(self) -> None:
        self._answer()

    def do_POST(self) -> None:
        self._answer()

    def _answer(self) -> None:
        path = unquote(urlparse(self.path).path)
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        self.hub.requests.append(f"{self.command} {path}")
        if self.command == "POST":
            self._write(path, body)
        elif found := re.fullmatch(r"/api/models/([^/]+/[^/]+)(?:/(revision|tree)/([^/]+))?", path):
            self._describe(*found.groups())
        elif found := re.fullmatch(r"/([^/]+/[^/]+)/resolve/([^/]+)/(.+)", path):
            self._file(*found.groups())
        else:
            self._missing("EntryNotFound")

    def _describe(self, name: str, kind: str | None, revision: str | None) -> None:
        files = self._files(name, revision)
        if files is None:
            return
        if kind == "tree":
            entries = [
                {"type": "file", "oid": hashlib.sha1(content).hexdigest(), "size": len(content), "path": path}
                for path, content in files.items()
            ]
            self._json(entries)
            return
        commit = revision if revision in self.hub.repositories[name] else self.hub.newest(name)
        siblings = [{"rfilename": path} for path in files]
        self._json({"id": name, "modelId": name, "sha": commit, "siblings": siblings, "private": False, "tags": []})

    def _file(self, name: str, revision: str, path: str) -> None:
        files = self._files(name, revision)
        if files is None:
            return
        if path not in files:
            self._missing("EntryNotFound")
            return
        content = files[path]
        headers = {"ETag": f'"{hashlib.sha256(content).hexdigest()}"', "X-Repo-Commit": revision}
        self._send(200, content, {**headers, "Content-Type": "application/octet-stream"})

    def _files(self, name: str, revision: str | None) -> Files | None:
        known = self.hub.repositories.get(name)
        if known is None:
            self._missing("RepoNotFound")
            return None
        if revision not in (None, "main") and revision not in known:
            self._missing("RevisionNotFound")
            return None
        return known[revision if revision in known else self.hub.newest(name)]

    def _write(self, path: str, body: bytes) -> None:
        if not self.hub.is_writable:
            self._send(403, b'{"error": "forbidden"}', {})
        elif path == "/api/repos/create":
            wanted = json.loads(body)
            name = f"{wanted['organization']}/{wanted['name']}" if wanted.get("organization") else wanted["name"]
            self.hub.repositories.setdefault(name, {})
            self._json({"url": f"http://127.0.0.1/{name}", "id": name, "private": wanted.get("private")})
        elif path == "/api/validate-yaml":
            self._json({"errors": [], "warnings": []})
        elif found := re.fullmatch(r"/api/models/([^/]+/[^/]+)/preupload/main", path):
            entries = [{"path": file["path"], "uploadMode": "regular"} for file in json.loads(body)["files"]]
            self._json({"files": [{**entry, "shouldIgnore": False, "oid": None} for entry in entries]})
        elif found := re.fullmatch(r"/api/models/([^/]+/[^/]+)/commit/main", path):
            lines = [json.loads(line) for line in body.decode().splitlines()]
            files = {
                line["value"]["path"]: base64.b64decode(line["value"]["content"])
                for line in lines
                if line["key"] == "file"
            }
            commit = self.hub.commit(found.group(1), files)
            url = f"http://127.0.0.1/{found.group(1)}/commit/{commit}"
            self._json({"commitUrl": url, "commitOid": commit, "pullRequestUrl": None})
        else:
            self._missing("EntryNotFound")

    def _json(self, value: Any) -> None:
        self._send(200, json.dumps(value).encode(), {"Content-Type": "application/json"})

    def _missing(self, code: str) -> None:
        self._send(404, b"{}", {"X-Error-Code": code})

    def _send(self, status: int, content: bytes, headers: dict[str, str]) -> None:
        self.send_response(status)
        for name, value in {**headers, "Content-Length": str(len(content))}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(content)


@contextmanager
def serving() -> Iterator[tuple[Hub, str]]:
    """A hub and its address, for the length of the block."""
    hub = Hub()
    server = ThreadingHTTPServer(("127.0.0.1", 0), type("Handler", (_Handler,), {"hub": hub}))
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    try:
        yield hub, f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
