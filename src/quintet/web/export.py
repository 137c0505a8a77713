"""Export of the page to static files: one `.html` file with everything, or a folder with a page and media files.

Both work from a disk as well as from a server. A page opened from a disk may not fetch other files, but it may embed
images and videos and run scripts: audio and meshes are therefore written as scripts that contain their bytes.
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

from quintet.common.files import atomic_folder, replace_text
from quintet.common.outputs import mark_output
from quintet.errors import UsageError
from quintet.web import samples
from quintet.web.common import PAGE, json_safe, to_json
from quintet.web.folders import Folders, Missing, RunDir
from quintet.web.library import Library, WatchedRun

POINTS = 1_000
"""Maximum number of points per curve."""
MAX_PAGE_BYTES = 100 * 2**20
"""Maximum size of the media in a single file; samples of older steps are omitted first."""
COPIED_KINDS = ("image", "video")


def write_page(paths: Sequence[Path], target: Path) -> Iterator[str]:
    """Write the runs in the folders to a new file or folder; yields lines to print."""
    folders = Folders(paths)
    if target.exists() and not (target.is_dir() and not any(target.iterdir())):
        raise UsageError(f"{target} already exists and is not overwritten; choose another name")
    runs = [Library(folders).find(label) for label in folders.scan()]
    if not runs:
        raise UsageError(f"no run found in {', '.join(map(str, paths))}")
    single = target.suffix.lower() in (".html", ".htm")
    title = ", ".join(folders.roots)
    try:
        if single:
            target.parent.mkdir(parents=True, exist_ok=True)
            store: MediaStore = InlineMedia()
            replace_text(target, _page(_content(title, runs, store)))
        else:
            with atomic_folder(target) as temporary:
                mark_output(temporary)
                store = MediaFolder(temporary)
                (temporary / "index.html").write_text(_page(_content(title, runs, store)), encoding="utf-8")
    except OSError as error:
        raise UsageError(f"cannot write {target}: {error.strerror}") from None
    page = target if single else target / "index.html"
    yield f"written: {page} ({len(runs)} run{'s' if len(runs) > 1 else ''}; open it in a browser)"
    if store.omitted:
        yield (
            f"omitted: {store.omitted} samples of older steps, to keep the file below {MAX_PAGE_BYTES // 2**20} MB; "
            "--export to a folder includes all of them"
        )


def _content(title: str, runs: Sequence[WatchedRun], store: MediaStore) -> dict[str, Any]:
    return {"title": title, "runs": [_run(watched, number, store) for number, watched in enumerate(runs)]}


class MediaStore(Protocol):
    """Destination of the media files."""

    omitted: int

    def put(self, run_dir: RunDir, number: int, parts: Sequence[str], kind: str) -> str | None:
        """URL of a file for the page; None if there is no room for it."""


class InlineMedia:
    """Media in the page itself, as data URLs."""

    def __init__(self) -> None:
        self.omitted = 0
        self._room = MAX_PAGE_BYTES

    def put(self, run_dir: RunDir, number: int, parts: Sequence[str], kind: str) -> str | None:
        path, content_type = samples.media(run_dir, *parts)
        self._room -= os.path.getsize(path)
        if self._room < 0:
            self.omitted += 1
            return None
        with run_dir.open(*parts) as file:
            return f"data:{content_type.split(';')[0]};base64,{base64.b64encode(file.read()).decode()}"


class MediaFolder:
    """Media in a folder next to the page, with one subfolder per run and step."""

    def __init__(self, target: Path) -> None:
        self.omitted = 0
        self._target = target

    def put(self, run_dir: RunDir, number: int, parts: Sequence[str], kind: str) -> str | None:
        samples.media(run_dir, *parts)
        address = f"media/{number}/{parts[-2]}/{_portable(parts[-1])}"
        target = self._target / address
        target.parent.mkdir(parents=True, exist_ok=True)
        with run_dir.open(*parts) as file:
            if kind in COPIED_KINDS:
                with target.open("wb") as copy:
                    shutil.copyfileobj(file, copy)
            else:
                text = base64.b64encode(file.read()).decode()
                script = f"quintet.arrived({json.dumps(address)}, {json.dumps(text)});\n"
                target.with_name(f"{target.name}.js").write_text(script, encoding="utf-8")
        return address


def _portable(file: str) -> str:
    """A file name that is the same in a URL and on every file system."""
    return re.sub(r"[^A-Za-z0-9._-]", lambda found: f"_{ord(found[0]):x}_", file)


def _run(watched: WatchedRun, number: int, store: MediaStore) -> dict[str, Any]:
    watched.refresh(complete=True)
    about = watched.describe(read_only=True)
    found: dict[str, Any] = {}
    media: dict[str, str] = {}
    # Newest first, so that a page without room for all samples has the newest ones.
    for step in reversed(about["sample_steps"]):
        folder = samples.folder_of(step)
        found[str(step)] = samples.entries(watched.run_dir, "samples", folder)
        for entry in found[str(step)]:
            address = None
            try:
                address = store.put(watched.run_dir, number, ["samples", folder, entry["file"]], entry["kind"])
            except Missing:
                entry["missing"] = True
            if address is not None:
                media[f"{step}/{entry['file']}"] = address
    names = list(watched.metrics.columns)
    curves = watched.curves(names, float("-inf"), float("inf"), POINTS)
    return {"about": about, "curves": curves, "samples": found, "media": media}


def _page(content: dict[str, Any]) -> str:
    """The page with inlined scripts, styles and content; `<` is escaped, so that no text can end the JSON element."""
    page = (PAGE / "index.html").read_text(encoding="utf-8")
    data = to_json(json_safe(content)).decode().replace("<", "\\u003c")

    def inline(found: re.Match[str]) -> str:
        file = (PAGE / (found[1] or found[2])).read_text(encoding="utf-8")
        return f"<style>\n{file}</style>" if found[1] else f"<script>\n{file}</script>"

    page = re.sub(r'<link rel="stylesheet" href="static/([^"]+)">|<script src="static/([^"]+)"></script>', inline, page)
    marker = '<a class="skip"'
    return page.replace(marker, f'<script type="application/json" id="exported">{data}</script>\n{marker}', 1)
