"""Owns `quintet data check`: what is in a folder, what is broken and what will be used.

A medium is a set of extensions and a probe: a function that reads one file as training would and returns its facts,
numbers (summed up as smallest, median, largest) or words (counted), and the recipe to go on with. Where single files
should be named, it also brings a function from names and facts to notes. A new medium is one line in `MEDIA`.
"""

from __future__ import annotations

import os
import statistics
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from quintet.data.index.entry import Entry, Scan, film_in, printable
from quintet.data.index.folder import Tree
from quintet.data.index.listing import list_media
from quintet.data.index.shard_store import is_address
from quintet.errors import UnreadableItem
from quintet.media import audio as sounds
from quintet.media import image as images
from quintet.media import mesh as meshes
from quintet.media import video as films
from quintet.media.files import MediaFile, digest_of, media_ref

Facts = dict[str, float | str]
Probe = Callable[[MediaFile], Facts]
Progress = Callable[[int, int], None]
"""Called with the files done and the files in all."""

_LISTED = 20
_EXAMPLES = 3
_EXAMPLE_LENGTH = 80
_CHUNK = 256
_MANY_FACES = 800
"""The most that the mesh recipes take by default (`data.max_faces`)."""
_FRAMES = 17
"""Of a clip of the video recipes, by default (`data.frames`)."""


@dataclass(frozen=True, slots=True)
class Medium:
    """How to find and read the files of one kind."""

    extensions: frozenset[str]
    probe: Probe
    recipe: str
    """What to train on it first."""
    notes: Callable[[Sequence[str], Sequence[Facts]], list[str]] = lambda files, facts: []
    films: bool = False
    """Whether a folder of numbered pictures counts as a file."""


def image_probe(path: MediaFile) -> Facts:
    """Size, format and mode of a picture."""
    facts = images.probe_image(path)
    kind = f"{facts.format}, animated (first frame used)" if facts.animated else facts.format
    return {"width": facts.width, "height": facts.height, "format": kind, "mode": facts.mode}


def mesh_probe(path: MediaFile) -> Facts:
    """Faces, vertices, format and state of a mesh."""
    facts = meshes.probe_mesh(path)
    surface = "watertight" if facts.watertight else "non-manifold" if facts.non_manifold_edges else "open"
    return {"faces": facts.faces, "vertices": facts.vertices, "format": facts.format, "surface": surface}


def mesh_notes(files: Sequence[str], facts: Sequence[Facts]) -> list[str]:
    """Which meshes are too large, and which have edges of more than two faces."""
    large = [
        f"{file} ({row['faces']})" for file, row in zip(files, facts, strict=True) if _above(row, "faces", _MANY_FACES)
    ]
    odd = [file for file, row in zip(files, facts, strict=True) if row["surface"] == "non-manifold"]
    notes = []
    if large:
        limit = f"more than {_MANY_FACES} faces (data.max_faces; data.decimate=true reduces them)"
        notes.append(f"{len(large)} meshes have {limit}: {_some(large)}")
    if odd:
        notes.append(f"{len(odd)} meshes have edges of more than two faces: {_some(odd)}")
    return notes


def _above(row: Facts, name: str, most: int) -> bool:
    number = row[name]
    return not isinstance(number, str) and number > most


def audio_probe(path: MediaFile) -> Facts:
    """Length, rate, channels, format and state of a sound."""
    facts = sounds.probe_audio(path)
    level = "silent" if facts.silent else "clipped" if facts.clipped else "sound"
    channels = {1: "mono", 2: "stereo"}.get(facts.channels, f"{facts.channels} channels")
    words: Facts = {"rate": f"{facts.rate} Hz", "channels": channels, "format": facts.format, "level": level}
    return {"seconds": round(facts.seconds, 3), **words}


def audio_notes(files: Sequence[str], facts: Sequence[Facts]) -> list[str]:
    """Which files are silent or clipped; both are used."""
    named = {
        level: [file for file, row in zip(files, facts, strict=True) if row["level"] == level]
        for level in ("silent", "clipped")
    }
    return [f"{len(found)} files are {level}, and used: {_some(found)}" for level, found in named.items() if found]


def video_probe(path: MediaFile) -> Facts:
    """Length, size, rate and format of a video."""
    facts = films.probe_video(path)
    numbers: Facts = {
        "frames": facts.frames,
        "seconds": round(facts.seconds, 3),
        "width": facts.width,
        "height": facts.height,
    }
    return {**numbers, "rate": f"{facts.rate:.3g} fps" if facts.steady else "variable", "format": facts.format}


def video_notes(files: Sequence[str], facts: Sequence[Facts]) -> list[str]:
    """Which files have fewer frames than a clip; they are used."""
    short = [file for file, row in zip(files, facts, strict=True) if not _above(row, "frames", _FRAMES - 1)]
    what = f"fewer than {_FRAMES} frames (data.frames), and are used"
    return [f"{len(short)} files have {what}: {_some(short)}"] if short else []


MEDIA: dict[str, Medium] = {
    "image": Medium(images.EXTENSIONS, image_probe, "vqgan"),
    "mesh": Medium(meshes.EXTENSIONS, mesh_probe, "mesh-autoencoder", mesh_notes),
    "audio": Medium(sounds.EXTENSIONS, audio_probe, "mulan", audio_notes),
    "video": Medium(films.EXTENSIONS, video_probe, "cvivit", video_notes, films=True),
}


@dataclass(frozen=True, slots=True)
class Range:
    """A number over all files."""

    min: float
    median: float
    max: float


@dataclass(frozen=True, slots=True)
class Captions:
    """What the captions are; lengths in characters."""

    source: str
    columns: list[str]
    present: int
    missing: int
    distinct: int
    longest: int
    examples: list[str]


@dataclass(slots=True)
class Report:
    """The outcome of a check; the counts are of files, `duplicates` groups those with the same bytes."""

    root: str
    medium: str
    found: int
    usable: int
    numbers: dict[str, Range]
    words: dict[str, dict[str, int]]
    captions: Captions
    splits: dict[str, int]
    duplicates: list[list[str]]
    skipped: list[tuple[str, str]]
    notes: list[str] = field(default_factory=list)

    def to_json(self) -> dict[str, Any]:
        """Everything, in plain JSON types."""
        return {**asdict(self), "skipped": [{"file": file, "reason": reason} for file, reason in self.skipped]}

    def lines(self) -> list[str]:
        """A summary to read in a terminal."""
        return [printable(f"{name:<12}{text}".rstrip()) for name, text in self._summary()]

    def _summary(self) -> Iterator[tuple[str, str]]:
        yield "folder", self.root
        yield "files", f"{self.found} {self.medium} files found, {self.usable} usable"
        for name, numbers in self.numbers.items():
            yield name, f"{numbers.min:g} / {numbers.median:g} / {numbers.max:g} (smallest / median / largest)"
        for name, counts in self.words.items():
            yield name, _counted(counts)
        yield from self._caption_lines()
        yield "splits", _counted(self.splits) or "none given: a fraction is set aside for validation"
        yield from self._duplicate_lines()
        yield from _listed("skipped", [f"{file}: {reason}" for file, reason in self.skipped])
        for note in self.notes:
            yield "note", note

    def _caption_lines(self) -> Iterator[tuple[str, str]]:
        captions = self.captions
        if not captions.present:
            yield "captions", "none"
            return
        counts = f"{captions.present} files with, {captions.missing} without, {captions.distinct} distinct"
        yield "captions", f"{captions.source}: {counts}, longest {captions.longest} characters"
        for example in captions.examples:
            yield "", example if len(example) <= _EXAMPLE_LENGTH else example[: _EXAMPLE_LENGTH - 1] + "…"

    def _duplicate_lines(self) -> Iterator[tuple[str, str]]:
        if not self.duplicates:
            yield "duplicates", "none"
            return
        surplus = sum(len(group) - 1 for group in self.duplicates)
        heading = f"{surplus} files repeat another one, byte by byte"
        yield from _listed("duplicates", [_equal(group) for group in self.duplicates], heading)


def check_folder(
    root: str | os.PathLike[str], *, medium: str | None = None, progress: Progress | None = None
) -> Report:
    """Read every file of a folder. Without `medium`, the one with the most files is checked."""
    medium, scanned = scan_medium(root, medium)
    good, facts, broken = _probe_all(root, scanned.entries, MEDIA[medium].probe, progress)
    return Report(
        root=str(root),
        medium=medium,
        found=scanned.found,
        usable=len(good),
        numbers=_numbers(facts),
        words=_words(facts),
        captions=_captions(scanned, good),
        splits=dict(Counter(entry.split for entry in good if entry.split).most_common()),
        duplicates=_duplicates(root, good),
        skipped=sorted(scanned.skipped + broken),
        notes=[*scanned.notes, *MEDIA[medium].notes([entry.file for entry in good], facts)],
    )


def scan_medium(root: str | os.PathLike[str], medium: str | None) -> tuple[str, Scan]:
    """The medium of a folder, that of most files if none is named, and those files."""
    names = [medium] if medium else list(MEDIA)
    tree = None if medium or is_address(root) else Tree(Path(root), shared=True)
    scans = {
        name: list_media(root, MEDIA[name].extensions, allow_empty=True, films=MEDIA[name].films, tree=tree)
        for name in names
    }
    chosen = max(names, key=lambda name: scans[name].found)
    if chosen == "image" and _moves(root, scans["image"], scans.get("video")):
        chosen = "video"
    return chosen, scans[chosen]


def _moves(root: str | os.PathLike[str], pictures: Scan, videos: Scan | None) -> bool:
    """Whether files that may all be either, GIF and WebP, are videos: the first one is animated."""
    if videos is None or not videos.entries or pictures.found != videos.found:
        return False
    try:
        return films.read_header(videos.entries[0].media(root)).frames > 1
    except UnreadableItem:
        return False


def _probe_all(
    root: str | os.PathLike[str], entries: Sequence[Entry], probe: Probe, progress: Progress | None
) -> tuple[list[Entry], list[Facts], list[tuple[str, str]]]:
    good: list[Entry] = []
    facts: list[Facts] = []
    broken: list[tuple[str, str]] = []

    def attempt(entry: Entry) -> Facts | str:
        try:
            return probe(entry.media(root))
        except UnreadableItem as problem:
            return str(problem)

    # In portions: a queue of all files at once would hold as many results in waiting.
    with _pool() as pool:
        for start in range(0, len(entries), _CHUNK):
            portion = entries[start : start + _CHUNK]
            for entry, result in zip(portion, pool.map(attempt, portion), strict=True):
                if isinstance(result, str):
                    broken.append((entry.file, result))
                else:
                    good.append(entry)
                    facts.append(result)
            if progress is not None:
                progress(start + len(portion), len(entries))
    return good, facts, broken


def _pool() -> ThreadPoolExecutor:
    """Few threads: decoders run outside Python's lock, and each may hold a large picture."""
    return ThreadPoolExecutor(min(4, os.cpu_count() or 1))


def _numbers(facts: Sequence[Facts]) -> dict[str, Range]:
    columns: dict[str, list[float]] = defaultdict(list)
    for row in facts:
        for name, value in row.items():
            if not isinstance(value, str):
                columns[name].append(value)
    return {name: Range(min(values), statistics.median(values), max(values)) for name, values in columns.items()}


def _words(facts: Sequence[Facts]) -> dict[str, dict[str, int]]:
    columns: dict[str, Counter[str]] = defaultdict(Counter)
    for row in facts:
        for name, value in row.items():
            if isinstance(value, str):
                columns[name][value] += 1
    return {name: dict(counts.most_common()) for name, counts in columns.items()}


def _captions(scanned: Scan, good: Sequence[Entry]) -> Captions:
    texts = [entry.text for entry in good if entry.text is not None]
    distinct = list(dict.fromkeys(texts))
    return Captions(
        source=scanned.captions_from,
        columns=scanned.columns,
        present=len(texts),
        missing=len(good) - len(texts),
        distinct=len(distinct),
        longest=max(map(len, texts), default=0),
        examples=distinct[:: max(1, len(distinct) // _EXAMPLES)][:_EXAMPLES],
    )


def _duplicates(root: str | os.PathLike[str], entries: Sequence[Entry]) -> list[list[str]]:
    """Files of equal content; only those of equal size are read."""
    by_size: dict[int, list[Entry]] = defaultdict(list)
    for entry in entries:
        by_size[entry.stamp.size if entry.stamp else -1].append(entry)
    candidates = [
        entry for codebook_smoothing in by_size.values() if len(codebook_smoothing) > 1 for entry in codebook_smoothing
    ]
    by_content: dict[str, list[str]] = defaultdict(list)
    with _pool() as pool:
        for entry, digest in zip(candidates, pool.map(lambda entry: _digest(root, entry), candidates), strict=True):
            by_content[digest].append(entry.file)
    return sorted(sorted(files) for files in by_content.values() if len(files) > 1)


def _digest(root: str | os.PathLike[str], entry: Entry) -> str:
    try:
        place = media_ref(entry.media(root))
        return digest_of(film_in(place) if isinstance(place, Path) and place.is_dir() else place)
    except (OSError, UnreadableItem):  # gone or changed since it was probed; then it equals nothing
        return entry.file


def _counted(counts: dict[str, int]) -> str:
    return ", ".join(f"{name} {count}" for name, count in counts.items())


def _some(names: Sequence[str]) -> str:
    return ", ".join(names[:_EXAMPLES]) + (" …" if len(names) > _EXAMPLES else "")


def _equal(group: Sequence[str]) -> str:
    more = len(group) - _EXAMPLES
    return " = ".join(group[:_EXAMPLES]) + (f" = {more} more" if more > 0 else "")


def _listed(name: str, items: Sequence[str], heading: str | None = None) -> Iterator[tuple[str, str]]:
    yield name, heading or (str(len(items)) if items else "none")
    for item in items[:_LISTED]:
        yield "", item
    if len(items) > _LISTED:
        yield "", f"… and {len(items) - _LISTED} more (--json lists all)"
