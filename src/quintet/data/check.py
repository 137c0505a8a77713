"""`quintet data check`: a report of the files of a folder, with the files that cannot be used.

A medium is a set of extensions, a probe, and the recipe to train first. A probe reads one file as training does and
returns its properties: numbers (summarised as smallest, median, largest) or words (counted). A medium may also have a
function from files and properties to notes. A new medium is one line in `MEDIA`.
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

from quintet.common.printable import printable
from quintet.data.index.captions import equal_captions
from quintet.data.index.entry import Entry, Scan, read_sequence, unused_split_notes
from quintet.data.index.folder import Tree
from quintet.data.index.listing import list_media, split_items
from quintet.data.index.shard_store import is_url
from quintet.errors import RunError, UnreadableItem
from quintet.media import audio
from quintet.media import image as images
from quintet.media import mesh as meshes
from quintet.media import video as videos
from quintet.media.files import MediaFile, digest_of, media_ref

Facts = dict[str, float | str]
Probe = Callable[[MediaFile], Facts]
Progress = Callable[[int, int], None]
"""Called with the number of files done and the total."""

_LISTED = 20
_EXAMPLES = 3
_EXAMPLE_LENGTH = 80
_CHUNK = 256
_MANY_FACES = 800
"""Default of the mesh recipes for `data.max_faces`."""
_FRAMES = 17
"""Default of the video recipes for `data.frames`."""


@dataclass(frozen=True, slots=True)
class Medium:
    """How to find and read the files of one medium."""

    extensions: frozenset[str]
    probe: Probe
    recipe: str
    """The recipe to train on it first."""
    recipe_without_captions: str | None = None
    """The recipe to train first if captions are missing; None if `recipe` needs none."""
    notes: Callable[[Sequence[str], Sequence[Facts]], list[str]] = lambda files, facts: []
    image_sequences: bool = False
    """Whether a folder of numbered images counts as one file."""

    def first_recipe(self, captioned: bool) -> str:
        """The recipe to train first on files that all have captions, or do not."""
        return self.recipe if captioned else self.recipe_without_captions or self.recipe


def image_probe(path: MediaFile) -> Facts:
    """Size, format and mode of an image."""
    facts = images.probe_image(path)
    kind = f"{facts.format}, animated (first frame used)" if facts.animated else facts.format
    return {"width": facts.width, "height": facts.height, "format": kind, "mode": facts.mode}


def mesh_probe(path: MediaFile) -> Facts:
    """Number of faces and vertices, format and surface of a mesh."""
    facts = meshes.probe_mesh(path)
    surface = "watertight" if facts.watertight else "non-manifold" if facts.non_manifold_edges else "open"
    return {"faces": facts.faces, "vertices": facts.vertices, "format": facts.format, "surface": surface}


def mesh_notes(files: Sequence[str], facts: Sequence[Facts]) -> list[str]:
    """Notes on meshes that have too many faces, or edges with more than two faces."""
    large = [
        f"{file} ({row['faces']})" for file, row in zip(files, facts, strict=True) if _above(row, "faces", _MANY_FACES)
    ]
    non_manifold = [file for file, row in zip(files, facts, strict=True) if row["surface"] == "non-manifold"]
    notes = []
    if large:
        limit = f"more than {_MANY_FACES} faces (data.max_faces) and are decimated (data.decimate=false skips them)"
        notes.append(f"{len(large)} meshes have {limit}: {_some(large)}")
    if non_manifold:
        notes.append(f"{len(non_manifold)} meshes have edges with more than two faces: {_some(non_manifold)}")
    return notes


def _above(row: Facts, name: str, limit: int) -> bool:
    number = row[name]
    return not isinstance(number, str) and number > limit


def audio_probe(path: MediaFile) -> Facts:
    """Length, sampling rate, channels, format and level of an audio file."""
    facts = audio.probe_audio(path)
    level = "silent" if facts.silent else "clipped" if facts.clipped else "normal"
    channels = {1: "mono", 2: "stereo"}.get(facts.channels, f"{facts.channels} channels")
    words: Facts = {"rate": f"{facts.rate} Hz", "channels": channels, "format": facts.format, "level": level}
    return {"seconds": round(facts.seconds, 3), **words}


def audio_notes(files: Sequence[str], facts: Sequence[Facts]) -> list[str]:
    """Notes on files that are silent or clipped; both are used."""
    named = {
        level: [file for file, row in zip(files, facts, strict=True) if row["level"] == level]
        for level in ("silent", "clipped")
    }
    return [
        f"{len(found)} files are {level} and are still used: {_some(found)}" for level, found in named.items() if found
    ]


def video_probe(path: MediaFile) -> Facts:
    """Length, size, frame rate and format of a video."""
    facts = videos.probe_video(path)
    numbers: Facts = {
        "frames": facts.frames,
        "seconds": round(facts.seconds, 3),
        "width": facts.width,
        "height": facts.height,
    }
    return {**numbers, "rate": f"{facts.rate:.3g} fps" if facts.steady else "variable", "format": facts.format}


def video_notes(files: Sequence[str], facts: Sequence[Facts]) -> list[str]:
    """Notes on files that have fewer frames than a clip; they are used."""
    short = [file for file, row in zip(files, facts, strict=True) if not _above(row, "frames", _FRAMES - 1)]
    what = f"fewer than {_FRAMES} frames (data.frames) and are still used"
    return [f"{len(short)} files have {what}: {_some(short)}"] if short else []


MEDIA: dict[str, Medium] = {
    "image": Medium(images.EXTENSIONS, image_probe, "vqgan"),
    "mesh": Medium(meshes.EXTENSIONS, mesh_probe, "mesh-autoencoder", notes=mesh_notes),
    "audio": Medium(audio.EXTENSIONS, audio_probe, "mulan", "audio-codec", audio_notes),
    "video": Medium(videos.EXTENSIONS, video_probe, "cvivit", notes=video_notes, image_sequences=True),
}


@dataclass(frozen=True, slots=True)
class Range:
    """Range of a number over all files."""

    min: float
    median: float
    max: float


@dataclass(frozen=True, slots=True)
class Captions:
    """Summary of the captions; lengths are in characters."""

    source: str
    columns: list[str]
    present: int
    missing: int
    distinct: int
    longest: int
    examples: list[str]


@dataclass(slots=True)
class Report:
    """The result of a check. Counts are numbers of files; `duplicates` are groups of files with the same bytes."""

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
    left_out: list[tuple[str, str]] = field(default_factory=list)
    """Subfolders that quintet wrote, and what they are."""
    problem: str | None = None
    """Why the metadata cannot be used; None if it can."""

    def to_json(self) -> dict[str, Any]:
        """The full report in plain JSON types."""
        return {
            **asdict(self),
            "skipped": [{"file": file, "reason": reason} for file, reason in self.skipped],
            "left_out": [{"folder": folder, "reason": reason} for folder, reason in self.left_out],
        }

    def lines(self) -> list[str]:
        """The lines of a summary for the terminal."""
        return [printable(f"{name:<12}{text}".rstrip()) for name, text in self._summary()]

    def _summary(self) -> Iterator[tuple[str, str]]:
        yield "folder", self.root
        yield "files", f"{self.found} {self.medium} files found, {self.usable} usable"
        for name, numbers in self.numbers.items():
            yield name, f"{numbers.min:g} / {numbers.median:g} / {numbers.max:g} (smallest / median / largest)"
        for name, counts in self.words.items():
            yield name, _counted(counts)
        if self.problem is not None:
            yield "error", f"{self.problem}; the captions below are not from it, and training is refused"
        yield from self._caption_lines()
        yield "splits", _counted(self.splits) or "none; a fraction of the files is held out for validation"
        yield from self._duplicate_lines()
        yield from _listed("skipped", [f"{file}: {reason}" for file, reason in self.skipped])
        if self.left_out:
            yield from _listed("left out", [f"{folder}: {what}" for folder, what in self.left_out])
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
        heading = f"{surplus} files are exact copies of another file"
        yield from _listed("duplicates", [_equal(group) for group in self.duplicates], heading)


def check_folder(
    root: str | os.PathLike[str], *, medium: str | None = None, progress: Progress | None = None
) -> Report:
    """Read every file of a folder; `medium` defaults to the one with the most files."""
    medium, scanned = scan_medium(root, medium)
    good, facts, broken = _probe_all(root, scanned.entries, MEDIA[medium].probe, progress)
    captions = _captions(scanned, good)
    notes = [*scanned.notes, *MEDIA[medium].notes([entry.file for entry in good], facts)]
    notes += unused_split_notes(split_items(good, 0, 0)[2])
    if captions.distinct == 1 and captions.present > 1:
        notes.append(equal_captions(captions.present, f"{medium} files", captions.examples[0]))
    return Report(
        root=str(root),
        medium=medium,
        found=scanned.found,
        usable=len(good),
        numbers=_numbers(facts),
        words=_words(facts),
        captions=captions,
        splits=dict(Counter(entry.split for entry in good if entry.split).most_common()),
        duplicates=_duplicates(root, good),
        skipped=sorted(scanned.skipped + broken),
        notes=notes,
        left_out=scanned.left_out,
        problem=scanned.problem,
    )


def scan_medium(root: str | os.PathLike[str], medium: str | None) -> tuple[str, Scan]:
    """The medium of a folder (by default the one with the most files), and the scan of its files."""
    names = [medium] if medium else list(MEDIA)
    tree = None if medium or is_url(root) else Tree(Path(root), shared=True)
    scans = {
        name: list_media(
            root, MEDIA[name].extensions, allow_empty=True, image_sequences=MEDIA[name].image_sequences, tree=tree
        )
        for name in names
    }
    chosen = max(names, key=lambda name: scans[name].found)
    if chosen == "image" and _is_animated(root, scans["image"], scans.get("video")):
        chosen = "video"
    return chosen, scans[chosen]


def _is_animated(root: str | os.PathLike[str], image_scan: Scan, video_scan: Scan | None) -> bool:
    """Whether GIF and WebP files, which may be images or videos, are videos: the first one is animated."""
    if video_scan is None or not video_scan.entries or image_scan.found != video_scan.found:
        return False
    try:
        return videos.read_header(video_scan.entries[0].media(root)).frames > 1
    except (UnreadableItem, RunError):
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
        except (UnreadableItem, RunError) as problem:  # a damaged shard ends a training, but not a report
            return str(problem)

    # In chunks: a queue of all files would hold as many waiting results.
    with _pool() as pool:
        for start in range(0, len(entries), _CHUNK):
            chunk = entries[start : start + _CHUNK]
            for entry, result in zip(chunk, pool.map(attempt, chunk), strict=True):
                if isinstance(result, str):
                    broken.append((entry.file, result))
                else:
                    good.append(entry)
                    facts.append(result)
            if progress is not None:
                progress(start + len(chunk), len(entries))
    return good, facts, broken


def _pool() -> ThreadPoolExecutor:
    """Few threads: decoders release the GIL, and each may hold a large image."""
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
    """Groups of files with equal content; only files of equal size are read."""
    by_size: dict[int, list[Entry]] = defaultdict(list)
    for entry in entries:
        by_size[entry.stamp.size if entry.stamp else -1].append(entry)
    candidates = [entry for same_size in by_size.values() if len(same_size) > 1 for entry in same_size]
    by_content: dict[str, list[str]] = defaultdict(list)
    with _pool() as pool:
        for entry, digest in zip(candidates, pool.map(lambda entry: _digest(root, entry), candidates), strict=True):
            by_content[digest].append(entry.file)
    return sorted(sorted(files) for files in by_content.values() if len(files) > 1)


def _digest(root: str | os.PathLike[str], entry: Entry) -> str:
    try:
        media = media_ref(entry.media(root))
        return digest_of(read_sequence(media) if isinstance(media, Path) and media.is_dir() else media)
    except (OSError, UnreadableItem, RunError):  # removed or changed since it was probed, so it is no duplicate
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
