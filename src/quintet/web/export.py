"""Owns the page as static files: one `.html` that holds everything, or a folder of a page and the media beside it.

Both are opened from a disk as well as from a server. A page from a disk may not fetch its neighbours, but may show and
run them: pictures and videos lie there as they are, sounds and meshes as scripts that hand over their bytes.
"""

from __future__ import annotations

import base64
import json
import os
import re
import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Protocol

from quintet.errors import UsageError
from quintet.web import samples
from quintet.web.common import PAGE, speakable, to_json
from quintet.web.folders import Folders, Missing, Place
from quintet.web.library import Library, Watched

POINTS = 1_000
"""Of each curve."""
LARGEST_PAGE = 100 * 2**20
"""Bytes of media in a single file; older steps of samples are left out of it first."""
SHOWN_AS_THEY_ARE = ("image", "video")


def write_page(given: Sequence[Path], target: Path) -> Iterator[str]:
    """Write the runs below the given folders to a new file or folder; what was done, line by line."""
    folders = Folders(given)
    if target.exists() and not (target.is_dir() and not any(target.iterdir())):
        raise UsageError(f"{target} exists already; nothing is overwritten, choose another name")
    runs = [Library(folders).find(label) for label in folders.scan()]
    if not runs:
        raise UsageError(f"there is no run in {', '.join(map(str, given))}")
    single = target.suffix.lower() in (".html", ".htm")
    try:
        (target.parent if single else target).mkdir(parents=True, exist_ok=True)
        shelf: Shelf = Inside() if single else Beside(target)
        content = {
            "title": ", ".join(folders.roots),
            "runs": [_run(watched, number, shelf) for number, watched in enumerate(runs)],
        }
        page = target if single else target / "index.html"
        page.write_text(_page(content), encoding="utf-8")
    except OSError as error:
        raise UsageError(f"cannot write {target}: {error.strerror}") from None
    yield f"written: {page} ({len(runs)} run{'s' if len(runs) > 1 else ''}; open it in a browser)"
    if shelf.left_out:
        yield (
            f"left out: {shelf.left_out} samples of older steps, to keep the file below {LARGEST_PAGE // 2**20} MB; "
            "a folder as --export holds all of them"
        )


class Shelf(Protocol):
    """Where media go."""

    left_out: int

    def put(self, place: Place, number: int, parts: Sequence[str], kind: str) -> str | None:
        """The address of a file in the page; none if there is no room for it."""


class Inside:
    """In the page itself."""

    def __init__(self) -> None:
        self.left_out = 0
        self._room = LARGEST_PAGE

    def put(self, place: Place, number: int, parts: Sequence[str], kind: str) -> str | None:
        path, sent_as = samples.media(place, *parts)
        self._room -= os.path.getsize(path)
        if self._room < 0:
            self.left_out += 1
            return None
        with place.open(*parts) as file:
            return f"data:{sent_as.split(';')[0]};base64,{base64.b64encode(file.read()).decode()}"


class Beside:
    """In a folder beside the page, one for each run and step."""

    def __init__(self, target: Path) -> None:
        self.left_out = 0
        self._target = target

    def put(self, place: Place, number: int, parts: Sequence[str], kind: str) -> str | None:
        samples.media(place, *parts)
        address = f"media/{number}/{parts[-2]}/{_plain(parts[-1])}"
        target = self._target / address
        target.parent.mkdir(parents=True, exist_ok=True)
        with place.open(*parts) as file:
            if kind in SHOWN_AS_THEY_ARE:
                with target.open("wb") as copy:
                    shutil.copyfileobj(file, copy)
            else:
                text = base64.b64encode(file.read()).decode()
                script = f"quintet.arrived({json.dumps(address)}, {json.dumps(text)});\n"
                target.with_name(f"{target.name}.js").write_text(script, encoding="utf-8")
        return address


def _plain(file: str) -> str:
    """A name that is the same in an address and on every disk."""
    return re.sub(r"[^A-Za-z0-9._-]", lambda found: f"_{ord(found[0]):x}_", file)


def _run(watched: Watched, number: int, shelf: Shelf) -> dict[str, Any]:
    watched.refresh(whole=True)
    about = watched.describe(read_only=True)
    found: dict[str, Any] = {}
    media: dict[str, str] = {}
    # The newest first: they are what a page without room for all should hold.
    for step in reversed(about["sample_steps"]):
        folder = samples.folder_of(step)
        found[str(step)] = samples.entries(watched.place, "samples", folder)
        for entry in found[str(step)]:
            address = None
            try:
                address = shelf.put(watched.place, number, ["samples", folder, entry["file"]], entry["kind"])
            except Missing:
                entry["missing"] = True
            if address is not None:
                media[f"{step}/{entry['file']}"] = address
    names = list(watched.figures.columns)
    curves = watched.curves(names, float("-inf"), float("inf"), POINTS)
    return {"about": about, "curves": curves, "samples": found, "media": media}


def _page(content: dict[str, Any]) -> str:
    """The page with its scripts and styles inside, and what it shows as JSON that no text in it can end."""
    page = (PAGE / "index.html").read_text(encoding="utf-8")
    data = to_json(speakable(content)).decode().replace("<", "\\u003c")

    def inline(found: re.Match[str]) -> str:
        file = (PAGE / (found[1] or found[2])).read_text(encoding="utf-8")
        return f"<style>\n{file}</style>" if found[1] else f"<script>\n{file}</script>"

    page = re.sub(r'<link rel="stylesheet" href="static/([^"]+)">|<script src="static/([^"]+)"></script>', inline, page)
    marker = '<a class="skip"'
    return page.replace(marker, f'<script type="application/json" id="exported">{data}</script>\n{marker}', 1)
