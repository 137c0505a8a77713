"""Building-brick parts as OBJ files: `meshes.py LDRAW OUT`, with the unpacked Debian package `ldraw-parts`.

Parts with at most 300 faces, with the primitives of low resolution where there are any; no patterns and stickers. All
files that a part consists of must be under CC-BY-2.0. Numbers that are held out are the validation split.
"""

from __future__ import annotations

import argparse
import re
from functools import cache
from pathlib import Path

import numpy as np
import numpy.typing as npt

from held_out import held_out, slug
from rows import Row, begin, checked_license, finish

MAX_FACES, MIN_FACES = 300, 8
LICENSE_LINE = "Redistributable under CCAL version 2.0"
SKIPPED = re.compile(r"^[~=_|]|pattern|sticker|moved to|obsolete", re.IGNORECASE)
DEPTH = 12
Faces = npt.NDArray[np.float64]
"""(faces, 3 corners, 3)"""


class UnusablePartError(Exception):
    """A file is missing, or under another licence, or the part has too many faces."""


class Library:
    """The files of the library by lower-case name, those of low resolution first."""

    def __init__(self, root: Path) -> None:
        self.files: dict[str, Path] = {}
        for folder in ("p/8", "p", "parts"):
            for path in sorted((root / folder).rglob("*.dat")):
                self.files.setdefault(path.relative_to(root / folder).as_posix().lower(), path)
        self.faces = cache(self._faces)

    def _faces(self, name: str, depth: int = 0) -> Faces:
        path = self.files.get(name)
        if path is None or depth > DEPTH:
            raise UnusablePartError(name)
        text = path.read_text(encoding="utf-8", errors="replace")
        if LICENSE_LINE not in text:
            raise UnusablePartError(name)
        found: list[Faces] = []
        for line in text.splitlines():
            words = line.split()
            if words[:1] == ["1"] and len(words) >= 15:
                numbers = np.array(words[2:14], dtype=np.float64)
                inside = self.faces(" ".join(words[14:]).replace("\\", "/").lower(), depth + 1)
                found.append(inside @ numbers[3:].reshape(3, 3).T + numbers[:3])
            elif words[:1] in (["3"], ["4"]):
                corners = np.array(words[2:], dtype=np.float64).reshape(-1, 3)
                found += [corners[[0, 1, 2]][None], *([corners[[0, 2, 3]][None]] if words[0] == "4" else [])]
            if sum(map(len, found)) > MAX_FACES:
                raise UnusablePartError(name)
        return np.concatenate(found) if found else np.zeros((0, 3, 3))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("ldraw", type=Path)
    parser.add_argument("version", help="version of the package ldraw-parts")
    parser.add_argument("out", type=Path)
    arguments = parser.parse_args()
    library, folder = Library(arguments.ldraw), begin(arguments.out)
    source = f"debian:ldraw-parts={arguments.version}"
    licence = checked_license("CC-BY-2.0", source)
    numbers = {name.partition("-")[0] for name in held_out("bricks").names}
    titles = {name.partition("-")[2] for name in held_out("bricks").names}
    rows, seen = [], set()
    for path in sorted((arguments.ldraw / "parts").glob("*.dat")):
        title = " ".join(path.open(encoding="utf-8", errors="replace").readline().split()[1:])
        if SKIPPED.search(title) or not title:
            continue
        try:
            faces = library.faces(path.name.lower())
        except (UnusablePartError, ValueError):
            continue
        text = obj(faces)
        if text is None or text in seen:
            continue
        seen.add(text)
        name = f"{path.stem}-{slug(title)}.obj"
        (folder / name).write_text(text, encoding="utf-8")
        number = re.match(r"[0-9]*", path.stem)
        is_held_out = (number is not None and number[0] in numbers) or slug(title) in titles
        rows.append(Row(name, [title.lower()], source, licence, "validation" if is_held_out else "train"))
    finish(arguments.out, rows)


def obj(faces: Faces) -> str | None:
    """An OBJ file, upright and from -1 to 1, without degenerate and double faces; None if too few are left."""
    if not len(faces):
        return None
    points, index = np.unique((faces * [1, -1, -1]).round(3).reshape(-1, 3), axis=0, return_inverse=True)
    corners = index.reshape(-1, 3)
    corners = corners[[len(set(face)) == 3 for face in corners.tolist()]]
    _, first = np.unique(np.sort(corners, axis=1), axis=0, return_index=True)
    corners = corners[np.sort(first)]
    if len(corners) < MIN_FACES:
        return None
    centre, size = (points.max(0) + points.min(0)) / 2, (points.max(0) - points.min(0)).max() / 2
    lines = [f"v {x:.4g} {y:.4g} {z:.4g}" for x, y, z in (points - centre) / size]
    return "\n".join([*lines, *(f"f {a} {b} {c}" for a, b, c in (corners + 1).tolist())]) + "\n"


if __name__ == "__main__":
    main()
