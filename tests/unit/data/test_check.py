"""The report of `quintet data check`."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import soundfile
from PIL import Image

from helpers import succeed
from quintet.data import check
from quintet.data.check import check_folder
from quintet.data.index.folder import Folder, Tree
from quintet.errors import UnreadableItem, UsageError


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    generator = np.random.default_rng(0)

    def noise(width: int, height: int) -> Image.Image:
        return Image.fromarray(generator.integers(0, 256, (height, width, 3), dtype=np.uint8))

    noise(16, 8).save(tmp_path / "a.png")
    noise(32, 24).convert("L").save(tmp_path / "b.JPG", format="JPEG")
    noise(64, 48).save(tmp_path / "c.png")
    (tmp_path / "copy.png").write_bytes((tmp_path / "a.png").read_bytes())
    (tmp_path / "copy2.png").write_bytes((tmp_path / "a.png").read_bytes())
    noise(16, 16).save(tmp_path / "moving.gif", save_all=True, append_images=[noise(16, 16)])
    Image.new("RGB", (1, 1)).save(tmp_path / "dot.png")
    (tmp_path / "empty.png").touch()
    (tmp_path / "text.png").write_text("hello")
    rows = [
        {"file_name": "a.png", "text": "a first", "split": "train"},
        {"file_name": "b.JPG", "text": "a first", "split": "train"},
        {"file_name": "c.png", "text": "b " + "long " * 40, "split": "withheld"},
        {"file_name": "gone.png", "text": "x"},
    ]
    (tmp_path / "metadata.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return tmp_path


def test_the_report(folder: Path) -> None:
    report = check_folder(folder)
    assert (report.medium, report.found, report.usable) == ("image", 9, 6)
    assert report.numbers["width"] == check.Range(16, 16, 64)
    assert report.numbers["height"] == check.Range(8, 12, 48)
    assert report.words["format"] == {"PNG": 4, "JPEG": 1, "GIF, animated (first frame used)": 1}
    assert report.words["mode"] == {"RGB": 4, "L": 1, "P": 1}
    captions = report.captions
    assert (captions.source, captions.present, captions.missing, captions.distinct) == ("metadata.jsonl", 3, 3, 2)
    assert captions.longest == 201
    assert report.splits == {"train": 2, "withheld": 1}
    assert report.duplicates == [["a.png", "copy.png", "copy2.png"]]
    assert dict(report.skipped) == {
        "dot.png": "1x1 pixels, smaller than 4 on a side",
        "empty.png": "empty file",
        "metadata.jsonl": "line 4: gone.png does not exist",
        "text.png": "not a picture: the content is of no known image format",
    }
    assert report.notes == ["5 of 8 files have no caption in the metadata.jsonl"]


def test_the_report_as_json_and_as_text(folder: Path) -> None:
    report = check_folder(folder)
    parsed = json.loads(json.dumps(report.to_json()))
    assert parsed["usable"] == 6
    assert parsed["numbers"]["width"] == {"min": 16, "median": 16, "max": 64}
    assert {"file": "empty.png", "reason": "empty file"} in parsed["skipped"]
    text = "\n".join(report.lines())
    assert "9 image files found, 6 usable" in text
    assert "16 / 16 / 64 (smallest / median / largest)" in text
    assert "a.png = copy.png = copy2.png" in text
    assert "text.png: not a picture" in text
    assert "train 2, withheld 1" in text
    assert max(map(len, report.lines()[1:])) < 120


def test_no_usable_file_is_a_report_and_no_folder_an_error(tmp_path: Path) -> None:
    assert check_folder(tmp_path).usable == 0
    (tmp_path / "a.png").write_text("hello")
    report = check_folder(tmp_path)
    assert (report.found, report.usable, report.numbers) == (1, 0, {})
    assert any("captions    none" in line for line in report.lines())
    with pytest.raises(UsageError, match="does not exist"):
        check_folder(tmp_path / "missing")


def test_long_lists_are_truncated_in_the_text_only(tmp_path: Path) -> None:
    for number in range(30):
        (tmp_path / f"{number:02}.png").write_text(f"not an image {number}")
    for number in range(10):
        Image.new("RGB", (8, 8)).save(tmp_path / f"same{number}.png")
    report = check_folder(tmp_path)
    assert len(report.skipped) == 30
    assert len(report.duplicates[0]) == 10
    text = "\n".join(report.lines())
    assert "… and 10 more (--json lists all)" in text
    assert "9 files are exact copies of another file" in text
    assert "same0.png = same1.png = same2.png = 7 more" in text


def test_progress_is_reported(folder: Path) -> None:
    steps: list[tuple[int, int]] = []
    check_folder(folder, progress=lambda done, total: steps.append((done, total)))
    assert steps[-1] == (8, 8)


@pytest.mark.parametrize(("captioned", "recipe"), [(0, "audio-codec"), (1, "audio-codec"), (2, "mulan")])
def test_the_proposed_recipe_can_train_on_the_files(tmp_path: Path, captioned: int, recipe: str) -> None:
    clips = tmp_path / "clips"
    clips.mkdir()
    for number in range(2):
        soundfile.write(clips / f"{number}.wav", np.full(800, 0.1 * (number + 1)), 8000)
        if number < captioned:
            (clips / f"{number}.txt").write_text(f"sound {number}")
    assert f"next: quintet train {recipe} {clips}" in succeed("data", "check", clips).output
    packed = tmp_path / "packed"
    assert f"quintet train {recipe} {packed}" in succeed("data", "shard", clips, packed).output
    assert f"next: quintet train {recipe} {packed}" in succeed("data", "check", packed).output


def test_another_medium_is_one_entry(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def probe(path: str) -> check.Facts:
        if path.endswith("bad.wav"):
            raise UnreadableItem("not audio")
        return {"seconds": 1.5, "format": "WAV"}

    monkeypatch.setitem(check.MEDIA, "audio", check.Medium(frozenset({".wav"}), probe, "mulan"))
    (folder / "bad.wav").write_text("x")
    (folder / "good.wav").write_text("x")
    assert check_folder(folder).medium == "image"
    report = check_folder(folder, medium="audio")
    assert (report.found, report.usable, report.numbers["seconds"].median) == (2, 1, 1.5)
    assert ("bad.wav", "not audio") in report.skipped
    for number in range(12):
        (folder / f"{number}.wav").write_text("x")
    assert check_folder(folder).medium == "audio"


def test_a_folder_is_listed_once_for_all_media(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (folder / "below").mkdir()
    listed: list[str] = []
    list_one = Tree._listed

    def counted(tree: Tree, prefix: str) -> Folder:
        listed.append(prefix)
        return list_one(tree, prefix)

    monkeypatch.setattr(Tree, "_listed", counted)
    assert check.scan_medium(folder, None)[0] == "image"
    assert listed == ["", "below/"]
