"""Several windows of each file of an audio folder as items, so that all parts of long files can be encoded once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Literal

from quintet.common.batch import Dataset, Item
from quintet.common.rng import ItemRNG
from quintet.data.audio import AudioFolder, windows_of
from quintet.data.index.shards import ShardEntries
from quintet.data.splits import Splits
from quintet.errors import UnreadableItem, UsageError
from quintet.media import audio

MAX_WINDOWS = 10**6
"""Windows of one file; more than any file has."""


@dataclass
class AudioWindows(AudioFolder):
    """Windows of audio files as items; `entries` holds the entry of each window, and `starts` its first sample."""

    starts: Sequence[int] = field(default=(), kw_only=True)
    max_windows_per_file: int = field(default=1, kw_only=True)

    @classmethod
    def of(cls, folder: AudioFolder, windows: int | Literal["all"]) -> AudioWindows:
        """Up to `windows` evenly spaced windows of each file, or as many as cover it."""
        if isinstance(folder.entries, ShardEntries):
            raise UsageError("data.windows needs a folder of files; shards are read from the start of each clip")
        most = MAX_WINDOWS if windows == "all" else windows
        pairs = [(item, start) for item in range(len(folder)) for start in _starts(folder, item, most)]
        settings = {each.name: getattr(folder, each.name) for each in fields(folder) if each.init}
        own = {"entries": [folder.entries[item] for item, _ in pairs], "starts": [start for _, start in pairs]}
        return cls(**{**settings, **own, "max_windows_per_file": most})

    def name(self, item: int) -> str:
        start = self.starts[item]
        return super().name(item) + (f" from {start / self.rate:.2f} s" if start else "")

    def load(self, item: int, rng: ItemRNG) -> Item:
        samples = self._read(item, self.starts[item], min(self.window, self.frames(item)))
        return {**self.metadata(item), **windows_of(self.with_axis(samples))}

    @property
    def preprocessing_key(self) -> str:
        cut = f"up to {self.max_windows_per_file} windows of {self.seconds:g} s"
        return f"{self.rate} Hz, {cut}, loudness {self.loudness}{self.channels_key}"


def with_windows(splits: Splits, windows: int | Literal["all"]) -> Splits:
    """The splits of an audio folder with several windows of each file."""

    def of(source: Dataset) -> AudioWindows:
        assert isinstance(source, AudioFolder)
        return AudioWindows.of(source, windows)

    extra_splits = {name: of(source) for name, source in splits.extra_splits.items()}
    return replace(splits, train=of(splits.train), validation=of(splits.validation), extra_splits=extra_splits)


def _starts(folder: AudioFolder, item: int, most: int) -> list[int]:
    """First samples of the windows of a file; an unreadable file is one item, which is skipped when it is read."""
    try:
        return audio.window_starts(folder.frames(item), folder.window, folder.window, most)
    except UnreadableItem:
        return [0]
