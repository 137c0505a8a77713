"""What the tests of the run page share: run folders written by hand, a real server on a free port, and requests."""

from __future__ import annotations

import http.client
import json
import math
import re
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from helpers import environment
from quintet import config as configs
from quintet import registry
from quintet.media.audio import write_audio
from quintet.media.mesh import Mesh, write_mesh
from quintet.web.app import Site
from quintet.web.folders import Folders
from quintet.web.server import LOOPBACK, PageServer, listen

DEADLINE = 120
"""Seconds after which something that should be told is said not to be."""


def write_run(folder: Path, recipe: str = "vqgan", status: str = "finished", steps: int = 100, **state: Any) -> Path:
    """A run with a row of figures every ten steps, as a training would have left it."""
    folder.mkdir(parents=True)
    built = configs.build(registry.find(recipe).config_class(), preset="debug", overrides={"train.steps": steps})
    (folder / "config.yaml").write_text(built.to_yaml(), encoding="utf-8")
    write_state(folder, recipe=recipe, status=status, step=steps, steps=steps, **state)
    (folder / "metrics.jsonl").write_text("".join(row(step) for step in range(10, steps + 1, 10)), encoding="utf-8")
    data = {"skipped": {"bad <b>.png": "is cut off"}, "train": ["a", "b", "c"], "validation": ["d"]}
    (folder / "data.json").write_text(json.dumps(data), encoding="utf-8")
    (folder / "log.txt").write_text("2026-01-01 00:00:00 begun\n", encoding="utf-8")
    return folder


def write_state(folder: Path, **state: Any) -> None:
    best = {"metric": "psnr", "value": 21.5, "step": 50}
    content = {"heartbeat": time.time(), "pid": 1, "host": "elsewhere", "device": "cpu", "best": best, **state}
    (folder / "state.json").write_text(json.dumps(content), encoding="utf-8")


def row(step: int, **more: float) -> str:
    values = {"train/generator/loss": math.exp(-step / 50), "train/lr": 1e-3, "validation/codebook_usage": 0.5}
    return json.dumps({"step": step, "time": 1.8e9 + step / 5, **values, "validation/loss": 0.3, **more}) + "\n"


def add_row(run: Path, step: int) -> None:
    with (run / "metrics.jsonl").open("a", encoding="utf-8") as file:
        file.write(row(step))


def add_samples(
    run: Path, step: int, kinds: Sequence[str] = ("png",), count: int = 1, caption: str = "a red heart"
) -> Path:
    """Something to see, hear and turn; with the line about each that a training writes."""
    folder = run / "samples" / f"step-{step:08d}"
    folder.mkdir(parents=True)
    lines = []
    for number in range(count):
        for kind in kinds:
            file = f"{number:03d}-made.{kind}"
            WRITERS[kind](folder / file, step)
            lines.append(json.dumps({"file": file, "text": f"{caption} {number}", "what": "made"}))
    (folder / "samples.jsonl").write_text("\n".join(lines) + "\n", encoding="utf-8")
    return folder


def _write_picture(path: Path, step: int) -> None:
    Image.new("RGB", (32, 32), (step % 256, 80, 160)).save(path)


def _write_sound(path: Path, step: int) -> None:
    times = np.arange(8000, dtype=np.float32) / 8000
    write_audio(0.3 * np.sin(2 * np.pi * (200 + step) * times), path, 8000)


def _write_solid(path: Path, step: int) -> None:
    vertices = np.array([[0, 0, 0], [1, 0, 0], [0, 1, 0], [0, 0, 1]], dtype=np.float64)
    write_mesh(Mesh(vertices, np.array([[0, 2, 1], [0, 1, 3], [0, 3, 2], [1, 2, 3]])), path)


def _write_video(path: Path, step: int) -> None:
    import av

    with av.open(str(path), "w") as file:
        stream = file.add_stream("libx264", rate=8)
        stream.width = stream.height = 32
        stream.pix_fmt = "yuv420p"
        for number in range(8):
            picture = np.full((32, 32, 3), 30 * number, dtype=np.uint8)
            file.mux(stream.encode(av.VideoFrame.from_ndarray(picture, format="rgb24")))
        file.mux(stream.encode(None))


WRITERS = {"png": _write_picture, "wav": _write_sound, "glb": _write_solid, "obj": _write_solid, "mp4": _write_video}


def wait_for(happened: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + DEADLINE
    while not happened():
        assert time.monotonic() < deadline, f"{DEADLINE} s passed before {what}"
        time.sleep(0.05)


# --- a server -------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Reply:
    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)


@dataclass(frozen=True)
class Address:
    """A server that listens."""

    port: int
    server: Any = None
    """The server itself, if it is in this process."""

    def ask(self, path: str, method: str = "GET", body: bytes | None = None, **headers: str) -> Reply:
        """The path as it stands, without the tidying that a browser does."""
        connection = http.client.HTTPConnection(LOOPBACK, self.port, timeout=60)
        try:
            names = {name.replace("_", "-"): value for name, value in headers.items()}
            connection.request(method, path, body, names)
            reply = connection.getresponse()
            return Reply(reply.status, {name.lower(): value for name, value in reply.getheaders()}, reply.read())
        finally:
            connection.close()

    def post(self, path: str, value: Any) -> Reply:
        return self.ask(path, "POST", json.dumps(value).encode(), content_type="application/json")

    def news(self, path: str) -> Iterator[tuple[str, Any]]:
        """Events as they come, until the one who asks has had enough."""
        connection = http.client.HTTPConnection(LOOPBACK, self.port, timeout=60)
        try:
            connection.request("GET", path)
            name = ""
            deadline = time.monotonic() + DEADLINE
            for line in connection.getresponse():
                assert time.monotonic() < deadline, "what was waited for was not told"
                word, _, rest = line.decode().rstrip("\n").partition(": ")
                if word == "event":
                    name = rest
                elif word == "data":
                    yield name, json.loads(rest)
        finally:
            connection.close()


@contextmanager
def viewing(*words: object, within: Sequence[str] = (), browser: Path | None = None) -> Iterator[tuple[Address, str]]:
    """`quintet view` as a person starts it, in a process of its own; where it listens, and what it said. `within` is
    the command that starts it, if not this one; `browser` the program that it may open the page in."""
    command = [*within, sys.executable, "-m", "quintet", "view", *map(str, words)]
    screen = {"DISPLAY": ":0", "BROWSER": f"{browser} %s"} if browser else {}
    command += [] if browser else ["--no-browser"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env={**environment(), **screen}) as process:
        assert process.stdout is not None
        try:
            said = process.stdout.readline()
            found = re.search(r"http://[^:]+:(\d+)/", said)
            assert found, said
            yield Address(int(found[1])), said
        finally:
            process.terminate()


@contextmanager
def serving(*folders: Path, token: str | None = None, read_only: bool = False) -> Iterator[Address]:
    """The server of `quintet view` in a thread."""
    listener = listen(LOOPBACK, 0)
    server = PageServer(Site(Folders(folders), read_only), token)
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]})
    thread.start()
    try:
        yield Address(listener.getsockname()[1], server)
    finally:
        server.should_exit = True
        thread.join()
        listener.close()
