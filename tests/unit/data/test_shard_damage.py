"""Shards with damaged content: found by hash when a process opens them, repaired from the original or named."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
import tarfile
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image

from helpers import error_line, quintet, succeed
from quintet.data.check import MEDIA, check_folder
from quintet.data.index.listing import list_media
from quintet.errors import RunError, UnreadableItem
from quintet.media.budget import READ_BUDGET_BYTES
from quintet.media.files import media_ref, read_file

pytestmark = pytest.mark.fault("flipped-cache")

IMAGES = MEDIA["image"].extensions
DAMAGED = "damaged: its content does not match its hash in the shard"


def png(colour: int) -> bytes:
    stream = io.BytesIO()
    Image.new("RGB", (8, 8), (colour, 0, 0)).save(stream, "PNG")
    return stream.getvalue()


def folder_of(path: Path, count: int = 4) -> Path:
    path.mkdir()
    for number in range(count):
        (path / f"{number}.png").write_bytes(png(number))
    return path


def contents(root: object, cache: Path) -> list[bytes]:
    """The content of each item, as a new process reads it."""
    entries = list_media(str(root), IMAGES, cache=str(cache)).entries
    return [read_file(media_ref(entry.media(""))) for entry in entries]


def flip(path: Path, position: int) -> None:
    """Flip a bit without a trace in the size or the time of the file."""
    stamp = path.stat()
    content = bytearray(path.read_bytes())
    content[position] ^= 1
    path.write_bytes(content)
    os.utime(path, ns=(stamp.st_atime_ns, stamp.st_mtime_ns))


def flip_image(path: Path, number: int) -> None:
    flip(path, path.read_bytes().index(png(number)) + 40)


def test_an_unpacked_parquet_file_with_a_flipped_bit_is_unpacked_again(tmp_path: Path) -> None:
    (tmp_path / "set").mkdir()
    pq.write_table(pa.table({"image": [png(0), png(1)]}), tmp_path / "set" / "a.parquet")
    assert contents(tmp_path / "set", tmp_path / "cache") == [png(0), png(1)]
    (unpacked,) = (tmp_path / "cache" / "unpacked").glob("*.bytes")
    flip_image(unpacked, 1)
    assert contents(tmp_path / "set", tmp_path / "cache") == [png(0), png(1)]
    unpacked.write_bytes(unpacked.read_bytes()[:-1])  # truncated
    assert contents(tmp_path / "set", tmp_path / "cache") == [png(0), png(1)]


@pytest.mark.parametrize("own", [True, False])
def test_a_copy_of_a_remote_shard_with_a_flipped_bit_is_copied_again(tmp_path: Path, own: bool) -> None:
    """Also of a shard that another program wrote, which has no hash of its own."""
    folder = folder_of(tmp_path / "images")
    if own:
        succeed("data", "shard", folder, tmp_path / "set")
    else:
        (tmp_path / "set").mkdir()
        with tarfile.open(tmp_path / "set" / "a.tar", "w") as tar:
            for path in sorted(folder.iterdir()):
                tar.add(path, path.name)
    address = f"file://{tmp_path / 'set'}"
    whole = [png(number) for number in range(4)]
    assert contents(address, tmp_path / "cache") == whole
    (copy,) = (tmp_path / "cache" / "shards").rglob("*.tar")
    flip_image(copy, 2)
    assert contents(address, tmp_path / "cache") == whole
    assert png(2) in copy.read_bytes()


def test_a_damaged_item_of_a_shard_is_unreadable_and_the_others_are_used(tmp_path: Path) -> None:
    succeed("data", "shard", folder_of(tmp_path / "images"), tmp_path / "set")
    flip_image(tmp_path / "set" / "shard-00000.tar", 2)
    entries = list_media(tmp_path / "set", IMAGES, cache=str(tmp_path / "cache")).entries
    assert read_file(media_ref(entries[3].media(""))) == png(3)
    with pytest.raises(UnreadableItem, match=DAMAGED):
        entries[2].media("")
    report = check_folder(tmp_path / "set")
    assert (report.usable, report.skipped) == (3, [("2.png", DAMAGED)])


def test_a_damaged_item_is_named_by_training(pictures: Path, tmp_path: Path) -> None:
    from contract.cases import case_of

    succeed("data", "shard", pictures, tmp_path / "set")
    path = tmp_path / "set" / "shard-00000.tar"
    flip(path, path.read_bytes().index(b"IDAT") + 30)
    succeed("train", "vqgan", tmp_path / "set", "--out", tmp_path / "run", *case_of("vqgan").tiny)
    assert [*json.loads((tmp_path / "run" / "data.json").read_text())["skipped"].values()] == [DAMAGED]


def test_a_shard_of_other_content_than_its_index_ends_the_run(tmp_path: Path) -> None:
    for name, first in (("set", 0), ("other", 4)):
        folder = tmp_path / f"images-{name}"
        folder.mkdir()
        for number in range(4):
            (folder / f"{number}.png").write_bytes(png(first + number))
        succeed("data", "shard", folder, tmp_path / name)
    (tmp_path / "other" / "shard-00000.tar").replace(tmp_path / "set" / "shard-00000.tar")
    entries = list_media(tmp_path / "set", IMAGES, cache=str(tmp_path / "cache")).entries
    with pytest.raises(RunError, match=r"shard-00000.tar of .* is damaged.*; restore it"):
        entries[0].media("")
    assert check_folder(tmp_path / "set").usable == 0


# --- pipes and memory ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["a.tar", "a.parquet"])
def test_a_pipe_with_the_name_of_a_shard_is_refused(tmp_path: Path, name: str) -> None:
    (tmp_path / "set").mkdir()
    os.mkfifo(tmp_path / "set" / name)
    for data in (tmp_path / "set", tmp_path / "set" / name):
        assert "not a regular file" in error_line(quintet("data", "check", data).errors)
        outcome = quintet("train", "vqgan", data, "--out", tmp_path / "run", "--preset", "debug")
        assert "not a regular file" in error_line(outcome.errors)


PEAK = """
import sys
from pathlib import Path

from quintet.data.check import MEDIA
from quintet.data.index.listing import list_media


def peak():
    lines = Path("/proc/self/status").read_text().splitlines()
    return 1024 * int(next(line.split()[1] for line in lines if line.startswith("VmHWM")))


small, large, cache = sys.argv[1:]
sizes = []
for root in (small, large):
    before = peak()
    entries = list_media(root, MEDIA["image"].extensions, cache=cache).entries
    sizes = [len(entry.media("").content) for entry in entries]
print(peak() - before)
print(sizes)
"""


def test_large_rows_of_a_parquet_file_are_unpacked_within_the_budget(tmp_path: Path) -> None:
    row = 5 * 2**20
    for name, size in (("small", 1), ("large", row)):
        (tmp_path / name).mkdir()
        rows = [bytes([number]) * size for number in range(40)]
        table = pa.table({"image": pa.array(rows, pa.binary())})
        pq.write_table(table, tmp_path / name / "a.parquet", row_group_size=4, use_dictionary=False)
    words = [sys.executable, "-c", PEAK, tmp_path / "small", tmp_path / "large", tmp_path / "cache"]
    done = subprocess.run(words, capture_output=True, text=True, check=True)
    needed, sizes = done.stdout.splitlines()[-2:]
    assert json.loads(sizes) == [row] * 40
    assert int(needed) < READ_BUDGET_BYTES


def test_a_row_group_beyond_the_budget_is_refused_with_the_fix(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("quintet.data.index.shard_listing.READ_BUDGET_BYTES", 2**20)
    (tmp_path / "set").mkdir()
    rows = pa.array([os.urandom(2**18) for _ in range(8)], pa.binary())
    pq.write_table(pa.table({"image": rows}), tmp_path / "set" / "a.parquet")
    sentence = error_line(quintet("data", "check", tmp_path / "set").errors)
    assert "row group 0 needs 6 MB of memory, more than 1" in sentence
    assert "row_group_size" in sentence


def test_an_item_of_a_shard_that_is_too_large_is_unreadable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("quintet.data.index.shards.LARGEST_MEMBER", 60)
    succeed("data", "shard", folder_of(tmp_path / "images"), tmp_path / "set")
    report = check_folder(tmp_path / "set")
    assert report.usable == 0
    assert "that are read from a shard" in report.skipped[0][1]
