"""What a case left in its folder, as numbers, tensors and files that can be compared exactly.

No code of either side takes part in reading.
"""

from __future__ import annotations

import hashlib
import json
import re
import struct
import zipfile
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from identity.keys import current_file, current_setting

CLOCKS = re.compile(r"(^|/)(time|rate)(/|$)")
"""Names of numbers that depend on the clock."""

STATE = ("step", "items_seen", "bad_steps", "rollbacks", "best_value", "best_step", "data_fingerprint", "world_size")
"""What a checkpoint's `meta.json` says of the training."""

PROSE = ("columns", "model")
"""Fields of `samples.jsonl` that are wording or a path."""


@dataclass(frozen=True)
class Tensor:
    """A tensor of a checkpoint: where it was, and what it was."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    digest: str

    @property
    def content(self) -> tuple[str, tuple[int, ...], str]:
        return self.dtype, self.shape, self.digest


@dataclass
class Record:
    """Everything that a case computed."""

    numbers: dict[str, str] = field(default_factory=dict)
    """Losses and metrics as hexadecimal floats."""
    tensors: list[Tensor] = field(default_factory=list)
    """The last checkpoint: weights, averaged weights and optimizer state."""
    files: dict[str, str] = field(default_factory=dict)
    """Samples, codes, embeddings and data: a digest, or the text of a row."""

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, content: Mapping[str, Any]) -> Record:
        tensors = [Tensor(**{**tensor, "shape": tuple(tensor["shape"])}) for tensor in content["tensors"]]
        return cls(dict(content["numbers"]), tensors, dict(content["files"]))


def record(folder: Path) -> Record:
    """The record of a case's folder, from what is there."""
    run, made = folder / "run", Record()
    if run.is_dir():
        made.numbers.update(metrics(run / "metrics.jsonl"))
        checkpoint = last_checkpoint(run)
        made.numbers.update(training_state(checkpoint / "meta.json"))
        made.tensors.extend(checkpoint_tensors(checkpoint))
        made.files.update(files(run / "samples", folder))
        if (run / "eval.json").exists():
            made.numbers.update(named("eval.json", json.loads((run / "eval.json").read_text(encoding="utf-8"))))
    for path in sorted(folder.glob("*")):
        if path.name == "files" or re.search(r"-(\d+|tokens)(\.npz)?$", path.name):
            made.files.update(files(path, folder))
    return made


# --- numbers --------------------------------------------------------------------------------------------------


def metrics(path: Path) -> Iterator[tuple[str, str]]:
    """Every number of `metrics.jsonl` but those of the clock; a name that comes twice in a step is numbered."""
    seen: dict[str, int] = {}
    for line in path.read_text(encoding="utf-8").splitlines():
        row = json.loads(line)
        for name, value in named(f"step {row.pop('step')}", row):
            seen[name] = seen.get(name, 0) + 1
            yield (name if seen[name] == 1 else f"{name} (row {seen[name]})"), value


def training_state(path: Path) -> Iterator[tuple[str, str]]:
    meta = json.loads(path.read_text(encoding="utf-8"))
    return named("last checkpoint", {name: meta[name] for name in STATE if name in meta})


def named(where: str, row: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    for name, value in row.items():
        if not CLOCKS.search(name):
            yield f"{where}: {name}", exact(value)


def exact(value: Any) -> str:
    """A number without rounding; anything else as JSON."""
    return value.hex() if isinstance(value, float) else json.dumps(value, sort_keys=True)


# --- tensors --------------------------------------------------------------------------------------------------


def last_checkpoint(run: Path) -> Path:
    return run / "checkpoints" / (run / "checkpoints" / "latest").read_text(encoding="utf-8").strip()


def checkpoint_tensors(checkpoint: Path) -> Iterator[Tensor]:
    for path in sorted(checkpoint.rglob("*.safetensors")):
        for name, dtype, shape, content in safetensors(path):
            where = f"{path.relative_to(checkpoint).as_posix()}: {name}"
            yield Tensor(where, dtype, shape, hashlib.sha256(content).hexdigest())


def safetensors(path: Path) -> Iterator[tuple[str, str, tuple[int, ...], bytes]]:
    """Name, dtype, shape and bytes of each tensor: a length, a JSON header and the data."""
    content = path.read_bytes()
    (length,) = struct.unpack("<Q", content[:8])
    header, data = json.loads(content[8 : 8 + length]), memoryview(content)[8 + length :]
    for name, entry in sorted(header.items()):
        if name != "__metadata__":
            begin, end = entry["data_offsets"]
            yield name, entry["dtype"], tuple(entry["shape"]), bytes(data[begin:end])


# --- files ----------------------------------------------------------------------------------------------------


def files(place: Path, folder: Path) -> Iterator[tuple[str, str]]:
    """The content of a file, or of all files below a folder, by name."""
    for path in sorted([place] if place.is_file() else place.rglob("*")):
        if path.is_file() and path.name not in ("SHA256SUMS", ".quintet-output"):
            name = path.relative_to(folder).with_name(current_file(path.name)).as_posix()
            yield from content_of(name, path)


def content_of(name: str, path: Path) -> Iterator[tuple[str, str]]:
    if path.suffix == ".safetensors":
        for tensor, dtype, shape, content in safetensors(path):
            yield f"{name}: {tensor}", f"{dtype} {list(shape)} {digest(content)}"
    elif path.suffix == ".npz":
        with zipfile.ZipFile(path) as archive:
            for member in sorted(archive.namelist()):
                yield f"{name}: {member}", digest(archive.read(member))
    elif path.suffix == ".mp4":
        yield name, film(path)
    elif path.name == "samples.jsonl":
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), start=1):
            yield f"{name}: row {number}", json.dumps(sample_row(json.loads(line)), sort_keys=True)
    else:
        yield name, digest(path.read_bytes())


def film(path: Path) -> str:
    """What every encoding of the same frames has in common: codec, size, rate and times.

    libx264 is not deterministic on frames of a few blocks: equal input gives other bytes from call to call. The frames
    themselves are in the filmstrip (PNG) that is written beside each MP4 and compared byte for byte.
    """
    import av

    with av.open(str(path)) as container:
        stream = container.streams.video[0]
        times = sorted(packet.pts or 0 for packet in container.demux(stream) if packet.size)
        form = f"{stream.codec_context.name} {stream.width}x{stream.height} at {stream.average_rate} frames a second"
        return f"{form}, times {times} x {stream.time_base}"


def sample_row(row: dict[str, Any]) -> dict[str, Any]:
    """A row of `samples.jsonl` in names that do not depend on the side."""
    kept = {name: value for name, value in row.items() if name not in PROSE}
    if "file" in kept:
        kept["file"] = current_file(kept["file"])
    if "settings" in kept:
        kept["settings"] = {current_setting(name): value for name, value in kept["settings"].items()}
    return kept


def digest(content: bytes) -> str:
    return f"sha256 {hashlib.sha256(content).hexdigest()}"
