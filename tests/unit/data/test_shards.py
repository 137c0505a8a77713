"""Shards: the same items as their folder, with an index or without; a damaged shard is an error."""

from __future__ import annotations

import io
import json
import os
import pickle
import shutil
import tarfile
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from PIL import Image

from quintet.common.rng import ItemRNG
from quintet.config import DataConfig
from quintet.config.text import TextConfig
from quintet.data.captioned import inferred_text_keys
from quintet.data.check import MEDIA, check_folder, scan_medium
from quintet.data.image import ImageFolder
from quintet.data.index.entry import Entry
from quintet.data.index.folder import scan
from quintet.data.index.listing import fingerprint_of, list_media, split_items
from quintet.data.index.shard_index import INDEX_NAME, IndexBuilder, Row, Shard, ShardIndex
from quintet.data.index.shard_writer import ShardWriter, write_shards
from quintet.data.index.shards import ShardSet, open_set
from quintet.data.index.tar_members import open_tar
from quintet.errors import RunError, UnreadableItem, UsageError
from quintet.media.files import Blob, media_ref, read_file
from quintet.media.video import read_header, read_video


def sharded(folder: Path, out: Path, medium: str | None = None, items: int = 10) -> Path:
    _, scanned = scan_medium(folder, medium)
    write_shards(folder, scanned, out, items=items)
    return out


def png(colour: int = 0, size: int = 8) -> bytes:
    stream = io.BytesIO()
    Image.new("RGB", (size, size), (colour % 256, 0, 0)).save(stream, "PNG")
    return stream.getvalue()


def known(entries: Any) -> list[tuple[Any, ...]]:
    return [(entry.file, entry.text, entry.split, entry.extra) for entry in entries]


def write_tar(path: Path, members: dict[str, bytes], form: int = tarfile.USTAR_FORMAT) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    with tarfile.open(path, "w", format=form) as tar:
        for name, content in members.items():
            about = tarfile.TarInfo(name)
            about.size = len(content)
            tar.addfile(about, io.BytesIO(content))
    return path


# --- the same items -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("data", "medium"), [("pictures", "image"), ("meshes", "mesh"), ("sounds", "audio"), ("videos", "video")]
)
def test_shards_hold_what_the_folder_holds(
    data: str, medium: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    folder = request.getfixturevalue(data)
    shards = sharded(folder, tmp_path / "shards")
    kind = MEDIA[medium]
    of_folder = scan(folder, kind.extensions, image_sequences=kind.image_sequences).entries
    of_shards = list_media(shards, kind.extensions, image_sequences=kind.image_sequences).entries
    assert known(of_shards) == known(of_folder)
    for one, other in zip(of_folder, of_shards, strict=True):
        assert read_file(media_ref(other.media(shards))) == (folder / one.file).read_bytes()
    sides, other_sides = split_items(of_folder, 0.2, 42), split_items(of_shards, 0.2, 42)
    assert [known(side) for side in sides[:2]] == [known(side) for side in other_sides[:2]]
    assert {name: known(side) for name, side in sides[2].items()} == {
        name: known(side) for name, side in other_sides[2].items()
    }
    report, same = check_folder(folder).to_json(), check_folder(shards).to_json()
    differing = ("root", "notes", "captions")
    assert {name: report[name] for name in report if name not in differing} == {
        name: same[name] for name in same if name not in differing
    }


@pytest.mark.parametrize("count", [1, 2, 3, 400])
@pytest.mark.parametrize("group", [None, r"\d"])
@pytest.mark.parametrize("fraction", [0.0, 0.05, 0.999])
def test_the_validation_split_is_that_of_the_folder(
    count: int, group: str | None, fraction: float, tmp_path: Path
) -> None:
    writer = ShardWriter(tmp_path, 100, 1024)
    entries = [Entry(f"ä/{number}.png") for number in range(count)]
    for entry in entries:
        writer.add(entry, Blob(entry.file, b"x"))
    writer.close()
    of_shards = list_media(tmp_path, frozenset({".png"})).entries
    for seed in (42, 7):
        expected = [known(side) for side in split_items(entries, fraction, seed, group)[:2]]
        assert [known(side) for side in split_items(of_shards, fraction, seed, group)[:2]] == expected


def test_a_lost_index_is_rebuilt_with_the_same_fingerprint(pictures: Path, tmp_path: Path) -> None:
    shards = sharded(pictures, tmp_path / "shards")
    before = fingerprint_of(shards, list_media(shards, frozenset({".png"})).entries)
    (shards / INDEX_NAME).unlink()
    scanned = list_media(shards, frozenset({".png"}), cache=str(tmp_path / "cache"))
    assert fingerprint_of(shards, scanned.entries) == before
    assert [path.suffix for path in (tmp_path / "cache" / "indexes").iterdir() if path.suffix != ".lock"] == [
        ".safetensors"
    ]


def test_media_of_equal_sizes_have_different_fingerprints(tmp_path: Path) -> None:
    """By the hash in the index, or by those in the shards if it is lost; a copy of the shards has the same."""
    prints = []
    for name, content in (("one", b"first"), ("other", b"other")):
        (tmp_path / name).mkdir()
        writer = ShardWriter(tmp_path / name, 1, 1)
        for item in range(3):
            writer.add(Entry(f"{item}.wav"), Blob("", content if item == 1 else b"equal"))
        writer.close()
        shutil.copytree(tmp_path / name, tmp_path / f"copy of {name}")
        (tmp_path / f"copy of {name}" / INDEX_NAME).unlink()
        for folder in (tmp_path / name, tmp_path / f"copy of {name}"):
            prints.append(fingerprint_of(folder, list_media(folder, MEDIA["audio"].extensions).entries))
    assert prints[0] == prints[1] != prints[2] == prints[3]


def test_rewritten_shards_have_another_version(tmp_path: Path) -> None:
    """Shards of other programs have no hash; their version is the modification time, also in data workers."""
    found = []
    for time, content in ((1, b"one"), (1, b"one"), (2, b"two")):
        path = write_tar(tmp_path / "0.tar", {"a.wav": content})
        os.utime(path, (time, time))
        entries = list_media(tmp_path, MEDIA["audio"].extensions).entries
        found.append((fingerprint_of(tmp_path, entries), entries.version))
        assert pickle.loads(pickle.dumps(entries)).version == entries.version
    assert found[0] == found[1]
    assert found[0][0] == found[2][0]
    assert found[0][1] != found[2][1]


def test_all_metadata_of_a_file_is_preserved(tmp_path: Path) -> None:
    """Other columns, several captions, captions of several lines, names with dots; with an index or without."""
    rows = [
        {"file_name": "a.b.png", "text": ["one", "two\nlines"], "caption": "a column", "n": [1, {"x": None}]},
        {"file_name": "a.c.png", "text": "first\nsecond", "texts": "a column", "split": "validation"},
        {"file_name": "ü/d.png", "texts": ["no", "captions"]},
    ]
    for number, row in enumerate(rows):
        path = tmp_path / "set" / str(row["file_name"])
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(png(number))
    (tmp_path / "set" / "metadata.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    shards = sharded(tmp_path / "set", tmp_path / "shards")
    expected = known(scan(tmp_path / "set", frozenset({".png"})).entries)
    before = list_media(shards, frozenset({".png"})).entries
    assert known(before) == expected
    digest = fingerprint_of(shards, before)
    (shards / INDEX_NAME).unlink()
    after = list_media(shards, frozenset({".png"})).entries
    assert known(after) == expected
    assert fingerprint_of(shards, after) == digest
    again = sharded(shards, tmp_path / "again")
    assert known(list_media(again, frozenset({".png"})).entries) == expected


@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(damage=st.data())
def test_a_damaged_tar_file_is_listed_or_refused(damage: st.DataObject, pictures: Path, shared: Path) -> None:
    shards = shared / "shards-to-damage"
    if not shards.exists():
        sharded(pictures, shards)
    content = bytearray((shards / "shard-00000.tar").read_bytes()[: 512 * 12])
    for _ in range(damage.draw(st.integers(1, 3))):
        content[damage.draw(st.integers(0, len(content) - 1))] = damage.draw(st.integers(0, 255))
    path = shared / "damaged" / "0.tar"
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(content)
    with suppress(UsageError):
        for entry in list_media(path, MEDIA["image"].extensions).entries:
            with suppress(UnreadableItem, RunError):
                entry.media(shared)


def test_the_same_folder_gives_the_same_bytes(pictures: Path, tmp_path: Path) -> None:
    one, other = sharded(pictures, tmp_path / "one"), sharded(pictures, tmp_path / "other")
    assert [path.name for path in sorted(one.iterdir())] == [path.name for path in sorted(other.iterdir())]
    for path in one.iterdir():
        assert path.read_bytes() == (other / path.name).read_bytes()


def test_other_programs_read_the_shards(pictures: Path, tmp_path: Path) -> None:
    shards = sharded(pictures, tmp_path / "shards", items=20)
    entries = scan(pictures, frozenset({".png"})).entries
    with tarfile.open(shards / "shard-00001.tar") as tar:
        assert tar.getnames()[:3] == ["000000020.png", "000000020.txt", "000000020.json"]
        caption, metadata = (tar.extractfile(f"000000020.{kind}") for kind in ("txt", "json"))
        assert caption is not None
        assert metadata is not None
        assert caption.read().decode() == entries[20].text
        assert json.loads(metadata.read())["file_name"] == entries[20].file


def test_an_image_sequence_stays_one_video_in_shards(tmp_path: Path) -> None:
    for name in ("one", "two"):
        (tmp_path / "videos" / name).mkdir(parents=True)
        for number in (2, 10, 1):
            (tmp_path / "videos" / name / f"frame-{number}.png").write_bytes(png(20 * number))
    (tmp_path / "videos" / "one.txt").write_text("it brightens\n")
    shards = sharded(tmp_path / "videos", tmp_path / "shards", "video")
    for _ in range(2):  # with the index, and without
        entries = list_media(shards, MEDIA["video"].extensions, image_sequences=True).entries
        assert [(entry.file, entry.text) for entry in entries] == [("one", "it brightens"), ("two", None)]
        clip = read_video(entries[0].media(shards))
        assert clip[:, 0, 0, 0].tolist() == [20, 40, 200]
        assert np.array_equal(clip, read_video(tmp_path / "videos" / "one"))
        assert read_header(entries[0].media(shards)).frames == 3
        (shards / INDEX_NAME).unlink(missing_ok=True)


def test_an_image_sequence_of_one_image_stays_a_video_in_shards(tmp_path: Path) -> None:
    (tmp_path / "videos" / "one").mkdir(parents=True)
    (tmp_path / "videos" / "one" / "frame-1.png").write_bytes(png())
    shards = sharded(tmp_path / "videos", tmp_path / "shards", "video")
    for _ in range(2):  # with the index, and without
        entries = list_media(shards, MEDIA["video"].extensions, image_sequences=True).entries
        assert [entry.file for entry in entries] == ["one"]
        assert read_header(entries[0].media(shards)).frames == 1
        (shards / INDEX_NAME).unlink(missing_ok=True)


def test_image_sequences_are_duplicates_only_if_their_images_are(tmp_path: Path) -> None:
    for name, colour in (("one", 1), ("same", 1), ("other", 2)):
        (tmp_path / "videos" / name).mkdir(parents=True)
        for number in range(3):
            (tmp_path / "videos" / name / f"{number}.png").write_bytes(png(colour))
    shards = sharded(tmp_path / "videos", tmp_path / "shards", "video")
    for folder in (tmp_path / "videos", shards):
        assert check_folder(folder, medium="video").duplicates == [["one", "same"]]


def test_datasets_of_shards_can_be_pickled(pictures: Path, tmp_path: Path) -> None:
    shards = sharded(pictures, tmp_path / "shards")
    source = ImageFolder(shards, list_media(shards, frozenset({".png"})).entries, 16, 16)
    first = source.load(3, ItemRNG(0, [0], [3]))
    other = pickle.loads(pickle.dumps(source))
    again = other.load(3, ItemRNG(0, [0], [3]))
    assert first["texts"] == again["texts"]
    assert (first["images"] == again["images"]).all()


@pytest.mark.parametrize(("short", "times"), [(0, 1), (1, 2)])
def test_images_of_shards_are_cached_if_all_of_them_fit(
    short: int, times: int, pictures: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise the memory of a worker would grow over a whole epoch."""
    shards = sharded(pictures, tmp_path / "shards")
    entries = list_media(shards, frozenset({".png"})).entries
    source = ImageFolder(shards, entries, 16, 16, memory=16 * 16 * 3 * len(entries) - short)
    read: list[int] = []
    original_read = ShardSet.read
    monkeypatch.setattr(ShardSet, "read", lambda self, *span: read.append(span[1]) or original_read(self, *span))
    for _ in range(2):
        source.load(3, ItemRNG(0, [0], [3]))
    assert len(read) == times


# --- shards of other programs -------------------------------------------------------------------------------------


@pytest.mark.parametrize("form", [tarfile.USTAR_FORMAT, tarfile.GNU_FORMAT, tarfile.PAX_FORMAT])
def test_shards_of_img2dataset_are_listed(form: int, tmp_path: Path) -> None:
    long = "folder/" + "n" * (60 if form == tarfile.USTAR_FORMAT else 180)
    members = {
        "000000000.jpg": b"a",
        "000000000.json": json.dumps({"caption": "by json", "url": "x", "width": 3}).encode(),
        "000000000.txt": b"by text\n",
        f"{long}.png": b"bb",
        f"{long}.json": b'{"caption": "only json"}',
        "ü.png": b"c",
    }
    write_tar(tmp_path / "set" / "00000.tar", members, form)
    write_tar(tmp_path / "set" / "00001.tar", {"000010000.webp": b"dddd"}, form)
    (tmp_path / "set" / "00000.parquet").write_bytes(b"a table about the first")
    (tmp_path / "set" / "00000_stats.json").write_text("{}")
    scanned = list_media(tmp_path / "set", MEDIA["image"].extensions)
    assert known(scanned.entries) == [
        ("000000000.jpg", "by text", None, {}),
        (f"{long}.png", "only json", None, {}),
        ("ü.png", None, None, {}),
        ("000010000.webp", None, None, {}),
    ]
    assert [read_file(media_ref(entry.media(tmp_path))) for entry in scanned.entries] == [b"a", b"bb", b"c", b"dddd"]
    assert scanned.notes == ["2 of 4 files have no caption in the shards"]


def test_names_in_the_json_of_other_programs_are_ignored(tmp_path: Path) -> None:
    metadata = b'{"file_name": "image.png", "caption": "told", "id": 3}'
    odd = b'{"quintet_sha256": "half \\ud800"}'
    members = {"a.png": b"x", "a.json": metadata, "b.png": b"y", "b.json": metadata, "c.png": b"z", "c.json": odd}
    write_tar(tmp_path / "0.tar", members)
    entries = list_media(tmp_path, MEDIA["image"].extensions).entries
    assert known(entries) == [("a.png", "told", None, {}), ("b.png", "told", None, {}), ("c.png", None, None, {})]


def test_a_text_of_the_same_name_takes_precedence_over_that_of_the_key(tmp_path: Path) -> None:
    members = {
        **{
            "photo.v1.png": b"1",
            "photo.v1.txt": b"first",
            "photo.v2.png": b"2",
            "photo.v2.json": b'{"text": "second"}',
        },
        **{"photo.v3.png": b"3", "photo.txt": b"any"},
    }
    write_tar(tmp_path / "0.tar", members)
    entries = list_media(tmp_path, MEDIA["image"].extensions).entries
    assert [(entry.file, entry.text) for entry in entries] == [
        ("photo.v1.png", "first"),
        ("photo.v2.png", "any"),  # a .txt takes precedence over any .json
        ("photo.v3.png", "any"),
    ]


def test_one_numbered_image_is_an_image_and_several_are_a_video(tmp_path: Path) -> None:
    members = {
        "cat.png": b"1",
        "IMG.2023.jpg": b"2",
        "turn.001.png": png(1),
        "turn.json": b"{}",
        "turn.002.png": png(2),
    }
    write_tar(tmp_path / "0.tar", members)
    scanned = list_media(tmp_path, MEDIA["image"].extensions)
    assert [entry.file for entry in scanned.entries] == ["cat.png", "IMG.2023.jpg"]
    assert scanned.notes == ["films of numbered pictures (key.001.png, …), which only recipes of video use: 1"]
    scanned = list_media(tmp_path, MEDIA["video"].extensions, image_sequences=True)
    assert [entry.file for entry in scanned.entries] == ["turn"]
    video = scanned.entries[0].media("")
    assert isinstance(video, Blob)
    assert video.frames == {"001.png": png(1), "002.png": png(2)}
    assert scanned.notes == []


def test_each_medium_of_a_mixed_set_is_found_by_its_recipe(tmp_path: Path) -> None:
    members = {"a.mp4": b"film", "a.m4a": b"sound", "a.jpg": b"picture", "a.txt": b"all of it"}
    write_tar(tmp_path / "0.tar", members)
    for medium, file in (("video", "a.mp4"), ("audio", "a.m4a"), ("image", "a.jpg")):
        scanned = list_media(tmp_path, MEDIA[medium].extensions)
        assert [(entry.file, entry.text) for entry in scanned.entries] == [(file, "all of it")]
    with pytest.raises(UsageError, match=r"expected .*\.obj.*, found 1 \.mp4, 1 \.m4a, 1 \.jpg"):
        list_media(tmp_path, MEDIA["mesh"].extensions)


def test_skipped_members_are_named(tmp_path: Path) -> None:
    write_tar(tmp_path / "0.tar", {"a.png": b"x", "b.txt": b"alone", "b.json": b"{}", "c.png": b"", "d/.e.png": b"h"})
    with tarfile.open(tmp_path / "1.tar", "w") as tar:
        link = tarfile.TarInfo("l.png")
        link.type, link.linkname = tarfile.SYMTYPE, "/etc/passwd"
        tar.addfile(link)
        folder = tarfile.TarInfo("folder")
        folder.type = tarfile.DIRTYPE
        tar.addfile(folder)
    scanned = list_media(tmp_path, MEDIA["image"].extensions)
    assert [entry.file for entry in scanned.entries] == ["a.png"]
    assert scanned.skipped == [
        ("0.tar: b", "no media under this key, only json, txt"),
        ("0.tar: c.png", "empty file"),
        ("1.tar: l.png", "a link or a device, not a file"),
    ]


def test_a_rewritten_shard_is_listed_again(tmp_path: Path) -> None:
    write_tar(tmp_path / "0.tar", {"a.png": b"x"})
    assert len(list_media(tmp_path, MEDIA["image"].extensions).entries) == 1
    write_tar(tmp_path / "0.tar", {"a.png": b"x", "b.png": b"y"})
    assert len(list_media(tmp_path, MEDIA["image"].extensions).entries) == 2


def test_loose_files_make_a_folder_a_folder(tmp_path: Path) -> None:
    write_tar(tmp_path / "backup.tar", {"a.png": b"x"})
    (tmp_path / "b.png").write_bytes(png())
    assert [entry.file for entry in list_media(tmp_path, MEDIA["image"].extensions).entries] == ["b.png"]
    assert [entry.file for entry in list_media(tmp_path / "backup.tar", MEDIA["image"].extensions).entries] == ["a.png"]


@pytest.mark.parametrize("aside", ["backup.tar", "labels.parquet"])
def test_class_folders_are_a_folder(aside: str, tmp_path: Path) -> None:
    write_tar(tmp_path / aside, {"a.png": b"x"})
    for name in ("cats", "dogs"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "1.png").write_bytes(png())
    scanned = list_media(tmp_path, MEDIA["image"].extensions)
    assert [(entry.file, entry.text) for entry in scanned.entries] == [("cats/1.png", "cats"), ("dogs/1.png", "dogs")]
    assert scanned.notes == [
        f"tar and parquet files that are not read, because media lie beside them: 1, the first {aside}; name it in "
        "place of the folder to use it"
    ]


def test_hidden_shards_are_ignored(tmp_path: Path) -> None:
    for name in ("0.tar", ".trash/1.tar", ".2.tar"):
        write_tar(tmp_path / name, {"a.png": b"x"})
    (tmp_path / ".thumbnails").mkdir()
    (tmp_path / ".thumbnails" / "b.png").write_bytes(png())
    assert [shard.name for shard in open_set(tmp_path).index.shards] == ["0.tar"]
    assert [entry.file for entry in list_media(tmp_path, MEDIA["image"].extensions).entries] == ["a.png"]


def test_classes_are_listed_with_the_cache_of_the_run(tmp_path: Path) -> None:
    write_tar(tmp_path / "set" / "0.tar", {"a.png": b"x", "a.txt": b"cat", "b.png": b"y", "b.txt": b"dog"})
    data = DataConfig(path=str(tmp_path / "set"), cache_dir=str(tmp_path / "cache"))
    assert inferred_text_keys(TextConfig(text="classes"), data, frozenset({".png"})) == {
        "model.classes": ["cat", "dog"]
    }
    assert [*(tmp_path / "cache" / "indexes").glob("*.safetensors")]


# --- errors -------------------------------------------------------------------------------------------------------


def test_two_items_of_one_name_are_refused(tmp_path: Path) -> None:
    for name in ("0.tar", "1.tar"):
        write_tar(tmp_path / name, {"a.png": b"x"})
    with pytest.raises(UsageError, match=r"two items are named 'a.png', in the shards 0.tar and 1.tar"):
        list_media(tmp_path, MEDIA["image"].extensions)


def test_a_truncated_tar_file_is_refused(pictures: Path, tmp_path: Path) -> None:
    """At every length except between two members, where it cannot be detected: then there is a note."""
    shards = sharded(pictures, tmp_path / "shards", items=3)
    content = (shards / "shard-00000.tar").read_bytes()
    with open_tar(shards / "shard-00000.tar", "whole") as listing:
        members = list(listing)
    (tmp_path / "cut").mkdir()
    for length in range(1, len(content), 97):
        (tmp_path / "cut" / "0.tar").write_bytes(content[:length])
        ends = [member.offset + member.size for member in members if member.offset + member.size <= length]
        after = -(-ends[-1] // 512) * 512 if ends else 0
        if length <= after or (len(ends) == len(members) and length >= after + 512):
            list_media(tmp_path / "cut", MEDIA["image"].extensions, allow_empty=True, cache=str(tmp_path / str(length)))
            continue
        with pytest.raises(UsageError, match=r"the shard 0.tar of .*cut is truncated or damaged"):
            list_media(tmp_path / "cut", MEDIA["image"].extensions, cache=str(tmp_path / str(length)))
    (tmp_path / "cut" / "0.tar").write_bytes(content[: members[3].header])
    notes = list_media(tmp_path / "cut", MEDIA["image"].extensions).notes
    assert notes == ["0.tar has no mark of its end: it may have been cut off; what is there is used"]


def test_a_file_that_is_not_tar_is_refused(tmp_path: Path) -> None:
    for content in (b"", b"PK" * 600, os.urandom(3000)):
        (tmp_path / "0.tar").write_bytes(content)
        with pytest.raises(UsageError, match=r"the shard 0.tar .* is truncated or damaged"):
            list_media(tmp_path, MEDIA["image"].extensions)


@pytest.mark.parametrize("size", [b"-0000001000", b"0o000000003", b"00000000_03", b"+0000000003"])
def test_a_size_that_is_not_octal_is_refused(size: bytes, tmp_path: Path) -> None:
    content = bytearray(write_tar(tmp_path / "0.tar", {"a.png": b"abc"}).read_bytes())
    content[124:136] = size + b"\0"
    content[148:156] = b" " * 8
    content[148:156] = b"%06o\0 " % sum(content[:512])
    (tmp_path / "0.tar").write_bytes(content)
    with pytest.raises(UsageError, match=r"the shard 0.tar .* is truncated or damaged \(there is no valid header"):
        list_media(tmp_path, MEDIA["image"].extensions)


def test_a_size_of_thousands_of_digits_is_refused(tmp_path: Path) -> None:
    with tarfile.open(tmp_path / "0.tar", "w", format=tarfile.PAX_FORMAT) as tar:
        about = tarfile.TarInfo("a.png")
        about.size, about.pax_headers = 3, {"size": "9" * 5000}
        tar.addfile(about, io.BytesIO(b"abc"))
    with pytest.raises(UsageError, match=r"the shard 0.tar .* is truncated or damaged \(the size of a member"):
        list_media(tmp_path, MEDIA["image"].extensions)


def test_an_index_that_does_not_match_its_shards_is_refused(pictures: Path, tmp_path: Path) -> None:
    shards = sharded(pictures, tmp_path / "shards")
    last = sorted(shards.glob("*.tar"))[-1]
    content = last.read_bytes()
    shutil.copy(last, shards / "more.tar")
    with pytest.raises(UsageError, match=r"does not name the shard more.tar"):
        list_media(shards, MEDIA["image"].extensions)
    (shards / "more.tar").unlink()
    last.write_bytes(content[:-512])
    with pytest.raises(UsageError, match=f"{last.name} has {len(content) - 512} bytes instead of {len(content)}"):
        list_media(shards, MEDIA["image"].extensions)
    last.unlink()
    with pytest.raises(UsageError, match=f"the shard {last.name}, which the index names, is missing in"):
        list_media(shards, MEDIA["image"].extensions)


def test_a_shard_that_changes_during_a_run_ends_it(pictures: Path, tmp_path: Path) -> None:
    shards = sharded(pictures, tmp_path / "shards")
    entries = list_media(shards, MEDIA["image"].extensions).entries
    entries[0].media(shards)
    (shards / "shard-00001.tar").write_bytes(b"short")
    with pytest.raises(RunError, match=r"shard-00001.tar of .* changed since the run started"):
        entries[10].media(shards)
    (shards / "shard-00002.tar").unlink()
    with pytest.raises(RunError, match=r"shard-00002.tar of .* cannot be read: No such file"):
        entries[20].media(shards)
    os.truncate(shards / "shard-00000.tar", 100)
    with pytest.raises(RunError, match=r"shard-00000.tar of .* is shorter than when the run started"):
        entries[1].media(shards)


@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(damage=st.data())
def test_a_damaged_index_is_an_error_and_never_points_outside_a_shard(
    damage: st.DataObject, pictures: Path, shared: Path
) -> None:
    shards = shared / "shards-to-damage"
    if not shards.exists():
        sharded(pictures, shards)
    content = bytearray((shards / INDEX_NAME).read_bytes())
    if damage.draw(st.booleans()):
        del content[damage.draw(st.integers(0, len(content) - 1)) :]
    else:
        position = damage.draw(st.integers(0, len(content) - 1))
        content[position] = damage.draw(st.integers(0, 255))
    path = shared / "damaged.safetensors"
    path.write_bytes(content)
    try:
        index = ShardIndex.open(path)
    except UsageError:
        return
    rows = [index.row(position) for position in range(len(index))]
    assert all(row.offset >= 0 and row.offset + row.size <= index.shards[row.shard].size for row in rows)


@pytest.mark.parametrize("header", [b"5", b"[]", b'{"__metadata__": 5}', b'{"__metadata__": {}, "shard": 5}'])
def test_an_index_with_another_header_is_refused(header: bytes, tmp_path: Path) -> None:
    path = tmp_path / INDEX_NAME
    path.write_bytes(len(header).to_bytes(8, "little") + header)
    with pytest.raises(UsageError, match=rf"{INDEX_NAME} is not a usable index of shards"):
        list_media(tmp_path, MEDIA["image"].extensions)


@pytest.mark.parametrize(("size", "extra"), [(2**70, b"{}"), (9, b"{a"), (9, b"[1]"), (9, b"[" * 100_000)], ids=str)
def test_a_malicious_index_is_refused(size: int, extra: bytes, tmp_path: Path) -> None:
    builder = IndexBuilder()
    builder.shards.append(Shard("0.tar", size))
    builder.add(Row(0, 0, 1, "a.png", ".png", None, None, {}))
    builder._texts["extras"] += extra
    builder._ends["extras"][0] = len(extra)
    builder.write(tmp_path / INDEX_NAME)
    with pytest.raises(UsageError, match=rf"{INDEX_NAME} is not a usable index of shards"):
        ShardIndex.open(tmp_path / INDEX_NAME).row(0)


def test_half_a_surrogate_in_a_column_is_a_question_mark(tmp_path: Path) -> None:
    (tmp_path / "set").mkdir()
    (tmp_path / "set" / "a.png").write_bytes(png())
    row = {"file_name": "a.png", "text": "x", "note": "half \ud800", "texts": ["x", "\ud800"]}
    (tmp_path / "set" / "metadata.jsonl").write_text(json.dumps(row))
    shards = sharded(tmp_path / "set", tmp_path / "shards")
    for _ in range(2):  # with the index, and without
        entry = list_media(shards, MEDIA["image"].extensions).entries[0]
        assert entry.extra == {"note": "half ?", "texts": ["x", "?"]}
        (shards / INDEX_NAME).unlink(missing_ok=True)


def test_shards_do_not_replace_the_current_folder(
    pictures: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for out in (Path(), tmp_path):
        with pytest.raises(UsageError, match="is the current folder; choose a new folder for the shards"):
            sharded(pictures, out)
    assert not [*tmp_path.iterdir()]


def test_an_existing_folder_for_shards_is_refused(pictures: Path, tmp_path: Path) -> None:
    (tmp_path / "file.txt").touch()
    with pytest.raises(UsageError, match="already exists; choose a new folder"):
        sharded(pictures, tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["file.txt"]


def test_a_file_that_vanishes_while_shards_are_written_is_named(tmp_path: Path) -> None:
    for name in ("a.png", "b.png"):
        (tmp_path / name).write_bytes(png())
    _, scanned = scan_medium(tmp_path, "image")
    (tmp_path / "a.png").unlink()
    written = write_shards(tmp_path, scanned, tmp_path / "out")
    assert (written.items, written.shards) == (1, 1)
    assert written.skipped == [("a.png", "cannot be opened: No such file or directory")]
    assert open_set(tmp_path / "out").index.skipped == written.skipped
