"""Items that no starter model is trained on, because benchmarks measure on them: `held_out.py FOLDER...` lists them.

The folders hold the data sets of `benchmarks/`: emoji, notes, animated-emoji, bricks. The list is committed beside this
file, so that data can be prepared without them: names (those of the files without suffix and style) and SHA-256 of the
files.
"""

from __future__ import annotations

import hashlib
import json
import re
import sys
import unicodedata
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from quintet.data.index.entry import Entry, split_entries

LIST = Path(__file__).with_name("held_out.json")
NOTES_FRACTION = 0.3
SEED = 42


@dataclass(frozen=True)
class HeldOut:
    names: frozenset[str]
    hashes: frozenset[str]

    def has(self, *names: str) -> bool:
        """Whether one of the names is held out, in any spelling."""
        return any(slug(name) in self.names for name in names)

    def has_content(self, content: bytes) -> bool:
        return hashlib.sha256(content).hexdigest() in self.hashes


@cache
def held_out(name: str) -> HeldOut:
    """The held-out items of a data set of `benchmarks/`."""
    found = json.loads(LIST.read_text(encoding="utf-8"))[name]
    return HeldOut(frozenset(found["names"]), frozenset(found["sha256"]))


def slug(name: str) -> str:
    """A name in lower case and without accents, with dashes between its words."""
    plain = unicodedata.normalize("NFKD", name.lower()).encode("ascii", "ignore").decode()
    return "-".join(re.findall(r"[a-z0-9]+", plain.replace("'", "")))


def _emoji(files: list[Path]) -> list[Path]:
    return _by_name(files, 0.1, "^(.*)--")


def _animated(files: list[Path]) -> list[Path]:
    return _by_name(files, 0.15, None)


def _bricks(files: list[Path]) -> list[Path]:
    return _by_name(files, 0.1, "^([0-9]+)")


def _by_name(files: list[Path], fraction: float, group: str | None) -> list[Path]:
    entries = [Entry(path.name) for path in files]
    return [files[index] for index in split_entries(entries, fraction, SEED, group)[1]]


def _notes(files: list[Path]) -> list[Path]:
    """Those of both splits of `benchmarks/notes_codec.py`: by file and by instrument."""
    rows = [json.loads(line) for line in (files[0].parent / "metadata.jsonl").read_text("utf-8").splitlines()]
    instruments = {row["file_name"]: row["text"].split(", note")[0] for row in rows}
    return [path for path in files if _is_low(path.name) or _is_low(instruments[path.name])]


def _is_low(text: str) -> bool:
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big") / 2**64 < NOTES_FRACTION


SPLITS: Mapping[str, Callable[[list[Path]], list[Path]]] = {
    "emoji": _emoji,
    "notes": _notes,
    "animated-emoji": _animated,
    "bricks": _bricks,
}


def main() -> None:
    found = {}
    for folder in map(Path, sys.argv[1:]):
        files = sorted(path for path in folder.iterdir() if path.suffix in (".png", ".flac", ".mp4", ".obj"))
        chosen = SPLITS[folder.name](files)
        found[folder.name] = {
            "names": sorted({slug(path.stem.partition("--")[0]) for path in chosen}),
            "sha256": sorted(hashlib.sha256(path.read_bytes()).hexdigest() for path in chosen),
        }
        print(f"{folder.name}: {len(chosen)} of {len(files)}")
    LIST.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
