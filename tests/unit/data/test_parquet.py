"""Parquet files in the layout of Hugging Face as shards."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image

from quintet.common.rng import ItemRNG
from quintet.data.check import MEDIA, check_folder
from quintet.data.image import ImageFolder
from quintet.data.index.listing import fingerprint_of, list_media, split_items
from quintet.errors import UsageError
from quintet.media.files import media_ref, read_file

FILE = pa.struct([("bytes", pa.binary()), ("path", pa.string())])


def image_bytes(colour: int) -> bytes:
    stream = io.BytesIO()
    Image.new("RGB", (8, 8), (colour, 0, 0)).save(stream, "PNG")
    return stream.getvalue()


def write(path: Path, columns: dict[str, Any], kinds: dict[str, Any], about: Any = None) -> Path:
    schema = pa.schema(list(kinds.items()))
    if about is not None:
        schema = schema.with_metadata({b"huggingface": json.dumps(about).encode()})
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.table(columns, schema=schema), path, row_group_size=3)
    return path


def files(count: int, extension: str = ".png") -> list[dict[str, Any]]:
    return [{"bytes": image_bytes(number), "path": f"{number}{extension}"} for number in range(count)]


def test_rows_are_items_with_captions_and_splits(tmp_path: Path) -> None:
    kinds = {"image": FILE, "text": pa.string(), "width": pa.int64()}
    for name, count in (("train-00000-of-00002", 7), ("train-00001-of-00002", 2), ("test-00000-of-00001", 1)):
        columns = {"image": files(count), "text": [f"{name} {row}" for row in range(count)], "width": [8] * count}
        write(tmp_path / "set" / "data" / f"{name}.parquet", columns, kinds)
    scanned = list_media(tmp_path / "set", MEDIA["image"].extensions, cache=str(tmp_path / "cache"))
    assert [entry.file for entry in scanned.entries][:2] == [
        "data/test-00000-of-00001/000000.png",
        "data/train-00000-of-00002/000000.png",
    ]
    train, _, others = split_items(scanned.entries, 0.0, 42)
    assert [entry.text for entry in train] == [
        *(f"train-00000-of-00002 {row}" for row in range(7)),
        *(f"train-00001-of-00002 {row}" for row in range(2)),
    ]
    assert [entry.text for entry in others["test"]] == ["test-00000-of-00001 0"]
    assert [read_file(media_ref(entry.media(""))) for entry in train] == [image_bytes(row) for row in (*range(7), 0, 1)]
    assert len([*(tmp_path / "cache" / "unpacked").glob("*.bytes")]) == 2  # nothing of the third was read yet
    loaded = ImageFolder("", train, 8, 8, train=False).load(8, ItemRNG(0, [0], [8]))
    assert loaded["images"][:, 0, 0].tolist() == [1, 0, 0]
    assert check_folder(tmp_path / "set").usable == 10


def test_a_missing_unpacked_file_is_unpacked_again(tmp_path: Path) -> None:
    write(tmp_path / "set" / "a.parquet", {"image": files(4)}, {"image": FILE})
    for _ in range(2):
        entries = list_media(tmp_path / "set", MEDIA["image"].extensions, cache=str(tmp_path / "cache")).entries
        assert read_file(media_ref(entries[3].media(""))) == image_bytes(3)
        next((tmp_path / "cache" / "unpacked").glob("*.bytes")).unlink()


@pytest.mark.parametrize(
    ("column", "kind", "medium", "extension"),
    [
        ("image", pa.binary(), "image", ".png"),
        ("jpg", pa.large_binary(), "image", ".jpg"),
        ("audio", pa.struct([("bytes", pa.binary()), ("sampling_rate", pa.int64())]), "audio", ".wav"),
        ("video", pa.binary(), "video", ".mp4"),
        ("mesh", pa.binary(), "mesh", ".glb"),
    ],
)
def test_each_medium_has_its_columns(column: str, kind: Any, medium: str, extension: str, tmp_path: Path) -> None:
    value = {"bytes": b"content"} if pa.types.is_struct(kind) else b"content"
    write(tmp_path / "a.parquet", {column: [value]}, {column: kind})
    scanned = list_media(tmp_path, MEDIA[medium].extensions)
    assert [entry.file for entry in scanned.entries] == [f"a/000000{extension}"]
    assert read_file(media_ref(scanned.entries[0].media(""))) == b"content"


def test_the_path_of_a_file_has_its_extension(tmp_path: Path) -> None:
    write(tmp_path / "a.parquet", {"audio": [{"bytes": b"x", "path": "some/where.FLAC"}]}, {"audio": FILE})
    assert [entry.file for entry in list_media(tmp_path, MEDIA["audio"].extensions).entries] == ["a/000000.flac"]


def test_numbers_of_classes_become_their_names(tmp_path: Path) -> None:
    about = {"info": {"features": {"label": {"names": ["cat", "dog"], "_type": "ClassLabel"}}}}
    kinds = {"image": FILE, "label": pa.int64(), "split": pa.string()}
    columns = {"image": files(3), "label": [1, 0, None], "split": ["train", "validation", None]}
    write(tmp_path / "a.parquet", columns, kinds, about)
    entries = list_media(tmp_path, MEDIA["image"].extensions).entries
    assert [(entry.text, entry.split) for entry in entries] == [("dog", "train"), ("cat", "validation"), (None, None)]


def test_a_path_without_a_known_extension_is_ignored(tmp_path: Path) -> None:
    """Three hundred different ends of URLs are not three hundred kinds of files."""
    paths = ["a.JPG", "https://x/img.ashx", *(f"https://x/y.jpg?id={number}" for number in range(300))]
    rows = [{"bytes": image_bytes(number % 256), "path": path} for number, path in enumerate(paths)]
    write(tmp_path / "a.parquet", {"image": rows}, {"image": FILE})
    entries = list_media(tmp_path, MEDIA["image"].extensions).entries
    assert [entry.file for entry in entries][:3] == ["a/000000.jpg", "a/000001.png", "a/000002.png"]
    assert len(entries) == 302


@pytest.mark.parametrize(
    ("name", "split"),
    [
        ("data/test_0.parquet", "test"),
        ("default/test/0000.parquet", "test"),
        ("Validation/0.parquet", "validation"),
        ("test/train-0.parquet", "train"),
        ("mnist-val.parquet", "val"),
        ("train.parquet", "train"),
        ("latest/trainer_0.parquet", None),
    ],
)
def test_splits_are_words_in_the_paths_of_files(name: str, split: str | None, tmp_path: Path) -> None:
    write(tmp_path / name, {"image": files(1)}, {"image": FILE})
    assert [entry.split for entry in list_media(tmp_path, MEDIA["image"].extensions).entries] == [split]


def test_media_of_equal_sizes_have_different_fingerprints(tmp_path: Path) -> None:
    prints = []
    for name, content in (("one", b"first"), ("other", b"other")):
        write(tmp_path / name / "a.parquet", {"audio": [content]}, {"audio": pa.binary()})
        entries = list_media(tmp_path / name, MEDIA["audio"].extensions).entries
        prints.append(fingerprint_of(tmp_path / name, entries))
    assert prints[0] != prints[1]


def test_several_captions_are_read(tmp_path: Path) -> None:
    columns = {"image": files(1), "captions": [["one", "two"]]}
    write(tmp_path / "a.parquet", columns, {"image": FILE, "captions": pa.list_(pa.string())})
    entry = list_media(tmp_path, MEDIA["image"].extensions).entries[0]
    assert (entry.text, entry.extra) == ("one", {"texts": ["one", "two"]})


def test_a_row_without_bytes_is_named(tmp_path: Path) -> None:
    columns = {"image": [{"bytes": None, "path": "x.png"}, *files(1), None]}
    write(tmp_path / "a.parquet", columns, {"image": FILE})
    scanned = list_media(tmp_path, MEDIA["image"].extensions)
    assert [entry.file for entry in scanned.entries] == ["a/000001.png"]
    assert scanned.skipped == [
        ("a/000000.png", "the row holds no bytes"),
        ("a/000002.png", "the row holds no bytes"),
    ]
    assert read_file(media_ref(scanned.entries[0].media(""))) == image_bytes(0)


def test_a_table_without_a_usable_column_is_refused(tmp_path: Path) -> None:
    kinds = {"url": pa.string(), "blob": pa.binary(), "image": pa.string()}
    write(tmp_path / "a.parquet", {"url": ["x"], "blob": [b"x"], "image": ["x.png"]}, kinds)
    with pytest.raises(
        UsageError,
        match=r"the shard a.parquet of .* has no usable column of media: it has url \(string\), blob \(binary\), image",
    ):
        list_media(tmp_path, MEDIA["image"].extensions)


def test_a_truncated_or_damaged_table_is_refused(tmp_path: Path) -> None:
    path = write(tmp_path / "a.parquet", {"image": files(30)}, {"image": FILE})
    content = path.read_bytes()
    damaged = bytearray(content)
    damaged[len(content) // 3 : len(content) // 3 + 400] = bytes(400)
    for wrong in (content[: len(content) // 2], b"", bytes(damaged)):
        path.write_bytes(wrong)
        with pytest.raises(UsageError, match=r"the shard a.parquet of .* is truncated or damaged"):
            list_media(tmp_path, MEDIA["image"].extensions)
