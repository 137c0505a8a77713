"""Only a marker makes data synthetic: items then carry its name and their metadata, whatever the columns are called."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from quintet.common.batch import collate
from quintet.common.rng import ItemRNG
from quintet.config import ImageDataConfig
from quintet.data.check import scan_medium
from quintet.data.image import folder_splits
from quintet.data.index.marker import MARKER, read_marker
from quintet.data.index.shard_writer import write_shards
from quintet.data.splits import Splits
from quintet.synthetic.shapes import make_shapes


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    make_shapes(tmp_path / "shapes", 12, 32)
    return tmp_path / "shapes"


def splits(folder: Path | str, **keys: Any) -> Splits:
    return folder_splits(ImageDataConfig(path=str(folder), **keys), (16, 16), 3)


def items(result: Splits) -> list[dict[str, Any]]:
    sources = (result.train, result.validation, *result.extra_splits.values())
    return [source.load(item, ItemRNG(0, [0], [item])) for source in sources for item in range(len(source))]


def test_items_of_a_marked_folder_carry_its_name_and_their_columns(folder: Path) -> None:
    result = splits(folder)
    assert result.dataset == "shapes"
    rows = [json.loads(line) for line in (folder / "metadata.jsonl").read_text().splitlines()]
    loaded = items(result)
    assert sorted(item["texts"] for item in loaded) == sorted(row["text"] for row in rows)
    columns = {row["text"]: {"objects": row["objects"]} for row in rows}
    assert all(item["metadata"] == columns[item["texts"]] for item in loaded)
    batch = collate(loaded)
    assert batch["dataset"] == ["shapes"] * len(loaded)
    assert batch["metadata"] == [item["metadata"] for item in loaded]


def test_without_a_marker_columns_are_ignored(folder: Path) -> None:
    (folder / MARKER).unlink()
    result = splits(folder)
    assert result.dataset is None
    assert all(item.keys() == {"texts", "images"} for item in items(result))


def test_a_validation_folder_has_its_own_marker(folder: Path, tmp_path: Path) -> None:
    make_shapes(tmp_path / "other", 4, 32, 1)
    (folder / MARKER).unlink()
    result = splits(folder, validation_path=str(tmp_path / "other"))
    assert result.dataset is None
    assert "metadata" not in result.train.load(0, ItemRNG(0, [0], [0]))
    assert "metadata" in result.validation.load(0, ItemRNG(0, [0], [0]))


@pytest.mark.parametrize("index", [True, False])
def test_shards_keep_the_marker(index: bool, folder: Path, tmp_path: Path) -> None:
    write_shards(folder, scan_medium(folder, "image")[1], tmp_path / "shards")
    assert (tmp_path / "shards" / MARKER).read_bytes() == (folder / MARKER).read_bytes()
    if not index:
        (tmp_path / "shards" / "index.safetensors").unlink()
    cache = {"cache_dir": str(tmp_path / "cache")}
    for path in (tmp_path / "shards", tmp_path / "shards" / "shard-00000.tar", f"file://{tmp_path}/shards"):
        result = splits(path, **cache)
        assert result.dataset == "shapes", path
        assert [item["metadata"] for item in items(result)] == [item["metadata"] for item in items(splits(folder))]
    (folder / MARKER).unlink()
    write_shards(folder, scan_medium(folder, "image")[1], tmp_path / "unmarked")
    assert splits(tmp_path / "unmarked", **cache).dataset is None


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"{",
        b"\xff\xfe",
        b"[" * 10_000,
        b"[1]",
        b'{"version": 1}',
        b'{"name": "shapes"}',
        b'{"name": "my photos", "version": 1}',
        b'{"name": ["shapes"], "version": 1}',
        b'{"name": "shapes", "version": "new"}',
        b'{"name": "shapes", "version": 1, "more": "' + b"x" * 2**16 + b'"}',
    ],
)
def test_a_damaged_or_foreign_marker_is_ignored(content: bytes, folder: Path) -> None:
    (folder / MARKER).write_bytes(content)
    result = splits(folder)
    assert result.dataset is None
    assert all("metadata" not in item for item in items(result))


def test_only_a_regular_file_is_a_marker(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    os.mkfifo(tmp_path / "pipe")
    assert [read_marker(tmp_path / name) for name in ("folder", "pipe", "nothing")] == [None] * 3
    assert read_marker(None) is None


def test_a_marker_holds_the_settings_of_its_data_set(folder: Path) -> None:
    assert read_marker(folder / MARKER) == {"name": "shapes", "version": 1, "num": 12, "size": 32, "seed": 0}
