"""Scans of folders: names, links, captions, splits, and the items read from them."""

from __future__ import annotations

import json
import multiprocessing
import os
import pickle
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from PIL import Image
from torch.utils.data import DataLoader, Dataset

from quintet.common.rng import ItemRNG
from quintet.data.image import ImageFolder
from quintet.data.index.entry import Entry, Scan, fingerprint, split_entries
from quintet.data.index.folder import scan
from quintet.errors import UnreadableItem, UsageError
from quintet.media.image import EXTENSIONS


def touch(root: Path, *files: str) -> None:
    for file in files:
        (root / file).parent.mkdir(parents=True, exist_ok=True)
        (root / file).write_bytes(b"x")


def jsonl(path: Path, *rows: object) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))


def scanned(root: Path) -> Scan:
    return scan(root, EXTENSIONS)


def captions(found: Scan) -> dict[str, str | None]:
    return {entry.file: entry.text for entry in found.entries}


# Scanning


def test_files_are_listed_in_a_stable_order_whatever_the_case(tmp_path: Path) -> None:
    touch(tmp_path, "b.PNG", "a.JpEg", "sub/c.webp", "notes.md", "sub/deep/d.gif")
    found = scanned(tmp_path)
    assert [entry.file for entry in found.entries] == ["a.JpEg", "b.PNG", "sub/c.webp", "sub/deep/d.gif"]
    assert (found.found, found.skipped) == (4, [])


def test_hidden_names_are_ignored(tmp_path: Path) -> None:
    touch(tmp_path, "a.png", ".b.png", ".cache/c.png", "sub/.d/e.png", "__MACOSX/._a.png")
    assert list(captions(scanned(tmp_path))) == ["a.png"]


def test_empty_files_are_skipped_without_opening_any(tmp_path: Path) -> None:
    touch(tmp_path, "a.png")
    (tmp_path / "b.png").touch()
    os.mkfifo(tmp_path / "pipe.png")
    found = scanned(tmp_path)
    assert list(captions(found)) == ["a.png"]
    assert found.skipped == [("b.png", "empty file"), ("pipe.png", "not a regular file")]
    assert found.found == 3


def test_links_are_followed_inside_the_root_only(tmp_path: Path) -> None:
    root, outside = tmp_path / "root", tmp_path / "outside"
    touch(root, "a.png", "sub/b.png")
    touch(outside, "secret.png", "secret.txt")
    (root / "inside.png").symlink_to("sub/b.png")
    (root / "out.png").symlink_to(outside / "secret.png")
    (root / "a.txt").symlink_to(outside / "secret.txt")
    (root / "metadata.jsonl").symlink_to(outside / "secret.txt")
    (root / "gone.png").symlink_to("nowhere.png")
    (root / "self.png").symlink_to("self.png")
    (root / "sub" / "loop").symlink_to(root)
    (root / "folder").symlink_to(outside)
    found = scanned(root)
    assert captions(found) == {"a.png": None, "inside.png": None, "sub/b.png": "sub"}
    assert dict(found.skipped) == {
        "a.txt": "a link that leads out of the folder; not followed",
        "folder": "a link that leads out of the folder; not followed",
        "gone.png": "a link to nothing",
        "metadata.jsonl": "a link that leads out of the folder; not followed",
        "out.png": "a link that leads out of the folder; not followed",
        "self.png": "a link to nothing",
        "sub/loop": "a link to a folder; not followed",
    }


def test_the_root_itself_may_be_a_link(tmp_path: Path) -> None:
    touch(tmp_path / "real", "a.png", "b.png")
    (tmp_path / "real" / "c.png").symlink_to("a.png")
    (tmp_path / "link").symlink_to(tmp_path / "real")
    assert list(captions(scanned(tmp_path / "link"))) == ["a.png", "b.png", "c.png"]


def test_a_name_that_is_not_utf8_is_skipped(tmp_path: Path) -> None:
    touch(tmp_path, "ä.png")
    with open(os.fsencode(tmp_path) + b"/b\xff.png", "wb") as stream:
        stream.write(b"x")
    found = scanned(tmp_path)
    assert list(captions(found)) == ["ä.png"]
    assert found.skipped == [("b\\udcff.png", "its name is not UTF-8 or holds control characters; rename it")]


def test_a_folder_that_cannot_be_listed_is_skipped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    touch(tmp_path, "a.png", "closed/b.png")
    listing = os.scandir

    def refuse(path: str) -> object:
        if str(path).rstrip("/").endswith("closed"):
            raise PermissionError(13, "Permission denied")
        return listing(path)

    monkeypatch.setattr(os, "scandir", refuse)
    assert scanned(tmp_path).skipped == [("closed", "cannot be listed: Permission denied")]


@pytest.mark.parametrize(
    ("prepare", "words"),
    [
        (lambda root: root / "missing", ["missing", "does not exist"]),
        (lambda root: touch(root, "file") or root / "file", ["file", "is a file", "folder that contains"]),
        (lambda root: root, [".png", "found no files"]),
        (lambda root: touch(root, "a.mp4", "b.MP4", "c.wav") or root, [".jpg", "2 .mp4", "1 .wav"]),
        (lambda root: (root / "a.png").touch() or root, ["1 skipped", "a.png (empty file)"]),
    ],
)
def test_folders_that_cannot_be_used(tmp_path: Path, prepare: object, words: list[str]) -> None:
    root = prepare(tmp_path)  # type: ignore[operator]
    with pytest.raises(UsageError) as problem:
        scanned(root)
    assert all(word in str(problem.value) for word in words), problem.value
    assert "\n" not in str(problem.value)


def test_an_empty_folder_may_be_allowed(tmp_path: Path) -> None:
    assert scan(tmp_path, EXTENSIONS, allow_empty=True).entries == []


# Captions


def test_metadata_at_the_root(tmp_path: Path) -> None:
    touch(tmp_path, "a.png", "sub/b.png", "c.png", "a.txt", "d.mp4")
    jsonl(
        tmp_path / "metadata.jsonl",
        {"file_name": "./a.png", "text": "one", "split": "train", "objects": [1]},
        {"file_name": "sub\\b.png", "text": ["two", "deux"]},
        {"file_name": "a.png", "text": "again"},
        {"file_name": "missing.png", "text": "x"},
        {"file_name": "d.mp4", "text": "x"},
    )
    found = scanned(tmp_path)
    assert captions(found) == {"a.png": "one", "c.png": None, "sub/b.png": "two"}
    assert found.entries[0] == Entry("a.png", "one", "train", {"objects": [1]})
    assert found.entries[2].extra == {"texts": ["two", "deux"]}
    assert found.captions_from == "metadata.jsonl"
    assert found.columns == ["file_name", "text", "split", "objects"]
    assert found.skipped == [
        ("metadata.jsonl", "line 4: missing.png does not exist"),
        ("metadata.jsonl", "line 5: d.mp4 is not of an accepted type"),
    ]
    assert found.notes == [
        "rows for a file named before, left out: 1, the first a.png in metadata.jsonl line 3",
        "1 of 3 files have no caption in the metadata.jsonl",
    ]


@pytest.mark.parametrize(
    "escape",
    ["../secret.png", "/etc/passwd", "sub/../../secret.png", "..", "C:\\secret.png", "..\\secret.png", "//host/x.png"],
)
def test_rows_that_lead_out_of_the_folder_are_skipped(tmp_path: Path, escape: str) -> None:
    touch(tmp_path, "secret.png", "root/a.png")
    jsonl(tmp_path / "root" / "metadata.jsonl", {"file_name": escape, "text": "x"}, {"file_name": "a.png", "text": "a"})
    found = scanned(tmp_path / "root")
    assert captions(found) == {"a.png": "a"}
    assert found.skipped == [("metadata.jsonl", f"line 1: {escape} leads out of the folder; not read")]


def test_metadata_in_subfolders_applies_to_its_own_folder(tmp_path: Path) -> None:
    touch(tmp_path, "a.png", "sub/a.png", "sub/b.png")
    jsonl(
        tmp_path / "metadata.jsonl", {"file_name": "a.png", "text": "root"}, {"file_name": "sub/a.png", "text": "far"}
    )
    jsonl(tmp_path / "sub" / "metadata.jsonl", {"file_name": "a.png", "text": "near"}, {"file_name": "../a.png"})
    found = scanned(tmp_path)
    assert captions(found) == {"a.png": None, "sub/a.png": "near", "sub/b.png": None}


def test_jsonl_wins_over_csv(tmp_path: Path) -> None:
    touch(tmp_path, "a.png")
    jsonl(tmp_path / "metadata.jsonl", {"file_name": "a.png", "text": "from jsonl"})
    (tmp_path / "metadata.csv").write_text("file_name,text\na.png,from csv\n")
    found = scanned(tmp_path)
    assert captions(found) == {"a.png": "from jsonl"}
    assert found.notes == ["metadata.csv is not read, because metadata.jsonl is beside it"]
    (tmp_path / "metadata.jsonl").unlink()
    found = scanned(tmp_path)
    assert (captions(found), found.captions_from) == ({"a.png": "from csv"}, "metadata.csv")


def test_metadata_without_a_usable_row_is_ignored(tmp_path: Path) -> None:
    touch(tmp_path, "red_ball/a.png")
    (tmp_path / "metadata.csv").write_text("image,caption\na.png,x\n")
    found = scanned(tmp_path)
    assert (captions(found), found.captions_from) == ({"red_ball/a.png": "red ball"}, "class folders")
    assert found.skipped == [("metadata.csv", "line 1: no column file_name: the first line names image, caption")]


def test_text_files_beside_the_media(tmp_path: Path) -> None:
    touch(tmp_path, "a.png", "x/b.v2.png", "c.png")
    (tmp_path / "a.TXT").write_text("a cat\n")
    (tmp_path / "x" / "b.v2.txt").write_text("one\ntwo\n")
    (tmp_path / "README.txt").write_text("not a caption")
    found = scanned(tmp_path)
    assert captions(found) == {"a.png": "a cat", "c.png": None, "x/b.v2.png": "one"}
    assert found.entries[2].extra == {"texts": ["one", "two"]}
    assert (found.captions_from, found.notes) == ("text files", ["1 of 3 files have no caption in the text files"])


def test_class_folders(tmp_path: Path) -> None:
    touch(tmp_path, "red_ball/a.png", "animals/big-cat/b.png", "c.png")
    (tmp_path / "README.txt").write_text("not a caption")
    found = scanned(tmp_path)
    assert captions(found) == {"red_ball/a.png": "red ball", "animals/big-cat/b.png": "big cat", "c.png": None}
    assert found.captions_from == "class folders"


def test_no_captions(tmp_path: Path) -> None:
    touch(tmp_path, "a.png")
    assert scanned(tmp_path).captions_from == "none"


def test_names_never_split_the_data(tmp_path: Path) -> None:
    touch(tmp_path, "test-tube.png", "train.png", "validation/a.png", "test/b.png", "x-train-0001.png")
    found = scanned(tmp_path)
    assert [entry.split for entry in found.entries] == [None] * 5
    assert "use a `split` column" in found.notes[0]


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.binary(max_size=200), name=st.sampled_from(["metadata.jsonl", "metadata.csv", "a.txt"]))
def test_random_metadata_never_crashes_a_scan(tmp_path: Path, data: bytes, name: str) -> None:
    shutil.rmtree(tmp_path / "root", ignore_errors=True)
    touch(tmp_path / "root", "a.png")
    (tmp_path / "root" / name).write_bytes(b"file_name,text\n" + data if name.endswith("csv") else data)
    found = scanned(tmp_path / "root")
    assert [entry.file for entry in found.entries] == ["a.png"]
    json.dumps([found.skipped, found.notes, found.columns], ensure_ascii=False).encode()


# Splitting


def entries_of(*splits: str | None) -> list[Entry]:
    return [Entry(f"{number}.png", None, split) for number, split in enumerate(splits)]


def test_a_split_column_decides() -> None:
    entries = entries_of("train", "validation", "Valid", "val", "test", "withheld", "TRAIN", None)
    assert split_entries(entries, 0.5, 0, None) == ([0, 6, 7], [1, 2, 3])
    assert split_entries(entries, 0.0, 0, None) == ([0, 6, 7], [1, 2, 3])


def test_without_validation_rows_a_fraction_of_the_training_rows_validates() -> None:
    train, validation = split_entries(entries_of(*["train"] * 40, *["withheld"] * 10), 0.25, 0, None)
    assert sorted(train + validation) == list(range(40))
    assert 3 <= len(validation) <= 20


def test_a_split_column_may_have_no_training_rows() -> None:
    assert split_entries(entries_of("test", "validation"), 0.1, 0, None) == ([], [1])
    assert split_entries(entries_of("test", "test"), 0.1, 0, None) == ([], [])


def test_the_split_is_a_lasting_function_of_seed_and_name() -> None:
    entries = [Entry(f"{number}.png") for number in range(20)]
    frozen = [5, 11, 13, 17, 19]  # if this changes, old runs can no longer be compared with new ones
    assert split_entries(entries, 0.2, 0, None)[1] == frozen
    assert split_entries(entries, 0.2, 1, None)[1] != frozen


@settings(max_examples=50, deadline=None)
@given(st.sets(st.text(min_size=1, max_size=5), min_size=30, max_size=60), st.integers(0, 100))
def test_adding_files_does_not_move_the_others(names: set[str], seed: int) -> None:
    ordered = sorted(names)

    def sides(files: list[str]) -> dict[str, bool]:
        train, validation = split_entries([Entry(file) for file in files], 0.4, seed, None)
        assert sorted(train + validation) == list(range(len(files)))
        return {file: index in validation for index, file in enumerate(files)}

    some, every = sides(ordered[::2] + ordered[1::4]), sides(ordered)
    if (
        len(set(some.values())) == 2 and sum(some.values()) > 1
    ):  # a side of one item may only be there so that it is not empty
        assert all(every[file] == side for file, side in some.items())


def test_groups_stay_together() -> None:
    entries = [Entry(f"{name}--{style}.png") for name in "abcdefghijklmnop" for style in ("noto", "twemoji")]
    for seed in range(5):
        train, validation = split_entries(entries, 0.3, seed, r"^(.*)--")
        groups = [{entries[index].file.split("--")[0] for index in side} for side in (train, validation)]
        assert groups[0] & groups[1] == set()
        assert validation


def test_group_keys() -> None:
    files = ["a1x.png", "a2y.png", "b.png"]
    entries = [Entry(file) for file in files]
    assert len(split_entries(entries, 0.5, 0, "^[ab]")[0]) in (1, 2)  # the full match
    assert split_entries(entries[:2], 0.5, 0, "^(a)(z)?") == ([0, 1], [])  # one group is not split
    assert split_entries(entries[:2], 0.5, 0, "(z)?a") == ([0, 1], [])  # a group that took no part
    train, validation = split_entries(entries[:2], 0.5, 0, "zzz")  # no match: each file by itself
    assert len(train) == len(validation) == 1
    with pytest.raises(UsageError, match=r"data\.validation_group"):
        split_entries(entries, 0.5, 0, "(")


@pytest.mark.parametrize("fraction", [0.001, 0.999])
def test_neither_side_is_empty(fraction: float) -> None:
    for seed in range(10):
        train, validation = split_entries([Entry("a"), Entry("b"), Entry("c")], fraction, seed, None)
        assert train
        assert validation
    assert split_entries([Entry("a")], fraction, 0, None) == ([0], [])
    assert split_entries([Entry("a"), Entry("b")], 0, 0, None) == ([0, 1], [])


@pytest.mark.parametrize("fraction", [-0.1, 1.0, float("nan")])
def test_impossible_fractions(fraction: float) -> None:
    with pytest.raises(UsageError, match="validation fraction"):
        split_entries([Entry("a")], fraction, 0, None)


# Fingerprint


def test_the_fingerprint_equals_that_of_a_copy_and_sees_changes(tmp_path: Path) -> None:
    touch(tmp_path / "one", "a.png", "sub/b.png")
    shutil.copytree(tmp_path / "one", tmp_path / "two")
    os.utime(tmp_path / "two" / "a.png", (1, 1))
    entries = scanned(tmp_path / "one").entries
    original = fingerprint(tmp_path / "one", entries)
    assert fingerprint(tmp_path / "two", scanned(tmp_path / "two").entries) == original
    assert fingerprint(tmp_path / "one", [Entry("a.png", "other"), *entries[1:]]) != original
    assert fingerprint(tmp_path / "one", [Entry("a.png", None, "train"), *entries[1:]]) != original
    assert fingerprint(tmp_path / "one", entries[:1]) != original
    (tmp_path / "two" / "a.png").write_bytes(b"xx")
    assert fingerprint(tmp_path / "two", scanned(tmp_path / "two").entries) != original


def test_a_file_that_changed_after_the_scan_is_not_read(tmp_path: Path) -> None:
    touch(tmp_path, "a.png", "b.png", "c.png")
    same, rewritten, grown = scanned(tmp_path).entries
    os.utime(tmp_path / "b.png", (1, 1))
    (tmp_path / "c.png").write_bytes(b"longer than before")
    assert same.media(tmp_path) == str(tmp_path / "a.png")
    for entry in (rewritten, grown):
        with pytest.raises(UnreadableItem, match="changed since the run began"):
            entry.media(tmp_path)


# Items


@pytest.fixture
def images(tmp_path: Path) -> list[Entry]:
    generator = np.random.default_rng(0)
    for name in ("a.png", "b.png", "c.png"):
        Image.fromarray(generator.integers(0, 256, (16, 40, 3), dtype=np.uint8)).save(tmp_path / name)
    (tmp_path / "d.png").write_bytes(b"not an image")
    return [Entry("a.png", "first"), Entry("b.png"), Entry("c.png"), Entry("d.png")]


def test_items_are_uint8_and_a_text(tmp_path: Path, images: list[Entry]) -> None:
    source = ImageFolder(tmp_path, images, 16, 16, train=False)
    assert (len(source), source.name(1)) == (4, "b.png")
    item = source.load(0, ItemRNG(0, [0], [0]))
    full = np.array(Image.open(tmp_path / "a.png").convert("RGB"))
    assert item["images"].dtype == torch.uint8
    assert torch.equal(item["images"], torch.from_numpy(full[:, 12:28]).permute(2, 0, 1))
    assert (item["texts"], source.load(1, ItemRNG(0, [0], [1]))["texts"]) == ("first", "")
    with pytest.raises(UnreadableItem, match="no known image format"):
        source.load(3, ItemRNG(0, [0], [3]))
    assert ImageFolder(tmp_path, images, 8, 24, mode="L").load(0, ItemRNG(0, [0], [0]))["images"].shape == (1, 8, 24)


def test_flips_and_crops_are_random_per_item_and_epoch(tmp_path: Path, images: list[Entry]) -> None:
    plain = ImageFolder(tmp_path, images, 16, 16)
    flipping = ImageFolder(tmp_path, images, 16, 16, flip=True)
    moving = ImageFolder(tmp_path, images, 16, 16, random_crop=True)
    centre = plain.load(0, ItemRNG(0, [0], [0]))["images"]
    flipped = []
    crops = set()
    for epoch in range(12):
        rng = ItemRNG(7, [epoch], [0])
        taken = flipping.load(0, rng)["images"]
        expected = centre.flip(-1) if rng.number("flip") < 0.5 else centre
        assert torch.equal(taken, expected)
        assert torch.equal(flipping.load(0, ItemRNG(7, [epoch], [0]))["images"], taken)
        flipped.append(not torch.equal(taken, centre))
        crops.add(bytes(moving.load(0, rng)["images"].numpy()))
        assert torch.equal(plain.load(0, rng)["images"], centre)
    assert any(flipped)
    assert not all(flipped)
    assert len(crops) > 3


def test_validation_is_not_random(tmp_path: Path, images: list[Entry]) -> None:
    source = ImageFolder(tmp_path, images, 16, 16, flip=True, random_crop=True, train=False)
    taken = [source.load(0, ItemRNG(0, [epoch], [0]))["images"] for epoch in range(8)]
    assert all(torch.equal(image, taken[0]) for image in taken)


def test_truncated_files_are_used_if_requested(tmp_path: Path) -> None:
    generator = np.random.default_rng(0)
    path = tmp_path / "a.jpg"
    Image.fromarray(generator.integers(0, 256, (64, 64, 3), dtype=np.uint8)).save(path)
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
    with pytest.raises(UnreadableItem, match="truncated"):
        ImageFolder(tmp_path, [Entry("a.jpg")], 32, 32).load(0, ItemRNG(0, [0], [0]))
    item = ImageFolder(tmp_path, [Entry("a.jpg")], 32, 32, truncated="use").load(0, ItemRNG(0, [0], [0]))
    assert item["images"].shape == (3, 32, 32)


class Items(Dataset[torch.Tensor]):
    def __init__(self, source: ImageFolder) -> None:
        self.source = source

    def __len__(self) -> int:
        return 3

    def __getitem__(self, item: int) -> torch.Tensor:
        image: torch.Tensor = self.source.load(item, ItemRNG(0, [0], [item]))["images"]
        return image


def test_workers_read_what_this_process_reads(tmp_path: Path, images: list[Entry]) -> None:
    source = ImageFolder(tmp_path, images, 16, 16, flip=True, random_crop=True)
    assert pickle.loads(pickle.dumps(source)) == source
    here = torch.stack([Items(source)[item] for item in range(3)])
    context = multiprocessing.get_context("fork")
    (from_worker,) = DataLoader(Items(source), batch_size=3, num_workers=1, multiprocessing_context=context)
    assert torch.equal(here, from_worker)


def test_cached_images_are_equal_and_the_memory_limit_holds(tmp_path: Path) -> None:
    for number in range(3):
        Image.fromarray(np.full((8, 8, 3), 40 * number, np.uint8)).save(tmp_path / f"{number}.png")
    entries = scan(tmp_path, EXTENSIONS).entries
    room_for_two = ImageFolder(tmp_path, entries, 8, 8, memory=2 * 8 * 8 * 3)
    before = [room_for_two.load(item, ItemRNG(0, [0], [item]))["images"] for item in range(3)]
    (tmp_path / "0.png").unlink()
    assert torch.equal(room_for_two.load(0, ItemRNG(0, [1], [0]))["images"], before[0])
    (tmp_path / "2.png").unlink()
    with pytest.raises(UnreadableItem):
        room_for_two.load(2, ItemRNG(0, [1], [2]))
