"""A metadata file that cannot be used is refused with the reason: captions never come from elsewhere in silence."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from PIL import Image

from helpers import TINY, error_line, quintet, succeed
from quintet.data.index.listing import list_media
from quintet.errors import UsageError
from quintet.media.image import EXTENSIONS

pytestmark = pytest.mark.fault("unusable-metadata")

NAMES = [f"{number}.png" for number in range(6)]


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    """Images in a subfolder, whose name would become the caption of each."""
    folder = tmp_path / "photos"
    (folder / "images").mkdir(parents=True)
    for number, name in enumerate(NAMES):
        Image.new("RGB", (32, 32), (number * 40, 0, 0)).save(folder / "images" / name)
    return folder


def csv(header: str, delimiter: str = ",", caption: str = "a cat") -> str:
    return "\n".join([header, *(f"images/{name}{delimiter}{caption} {name[0]}" for name in NAMES), ""])


def rows(key: str = "file_name") -> list[dict[str, str]]:
    return [{key: f"images/{name}", "text": f"a cat {name[0]}"} for name in NAMES]


UNUSABLE = {
    "filename": ("metadata.csv", csv("filename,text"), "has no column 'file_name'; rename 'filename'"),
    "File Name": ("metadata.csv", csv("File Name,text"), "has no column 'file_name'; rename 'File Name'"),
    "image": ("metadata.csv", csv("id,image"), "has no column 'file_name'; rename 'image'"),
    "path": ("metadata.csv", csv("path;text", ";"), "has no column 'file_name'"),
    "other columns": (
        "metadata.csv",
        csv("id,author"),
        "has no column 'file_name'; its first line names id, author",
    ),
    "no header": (
        "metadata.csv",
        csv("images/x.png,a cat"),
        "has no header line; write 'file_name,text' above its first line",
    ),
    "a bar": (
        "metadata.csv",
        csv("file_name|text", "|"),
        "has no column 'file_name'; separate the columns with a comma, a semicolon or a tab",
    ),
    "an open quote": (
        "metadata.csv",
        csv("file_name,text").replace("a cat 1", '"a cat 1'),
        "has a quote in line 3 that is not closed; close it, or write a quote inside a text twice",
    ),
    "an open quote before closed ones": (
        "metadata.csv",
        csv("file_name,text", caption='a "big" cat').replace('a "big" cat 1', '"a cat 1'),
        "has a quote in line 3 that is not closed; close it, or write a quote inside a text twice",
    ),
    "an open quote in the header": (
        "metadata.csv",
        csv('"file_name,text'),
        "has a quote in line 1 that is not closed; close it, or write a quote inside a text twice",
    ),
    "an open quote in the last line": (
        "metadata.csv",
        csv("file_name,text").replace("a cat 5\n", '"a cat 5'),
        "has a quote in line 7 that is not closed; close it, or write a quote inside a text twice",
    ),
    "quotes after a backslash": (
        "metadata.csv",
        csv("file_name,text,note", caption=r'"says \"hi, you\""'),
        "has text after a closing quote in line 2; put quotes around the whole cell, and write a quote inside it twice",
    ),
    "a backslash at the end of a cut cell": (
        "metadata.csv",
        csv("file_name,text,note") + r'images/5.png,"red \",blue" now' + "\n",
        "has the separator inside quotes in line 8, but the quotes are not around the whole cell; put quotes around it",
    ),
    "text after a closing quote": (
        "metadata.csv",
        csv("file_name,text", caption='"big" cat'),
        "has text after a closing quote in line 2; put quotes around the whole cell",
    ),
    "a space before a quote": (
        "metadata.csv",
        csv("file_name,text,note").replace("a cat 3", ' "first 3, big"'),
        "has a space before a quote in line 5; remove the space",
    ),
    "a space before a quote in the header": (
        "metadata.csv",
        csv('"file_name", "text"'),
        "has a space before a quote in line 1; remove the space",
    ),
    "a separator inside quotes inside a cell": (
        "metadata.csv",
        csv("file_name;text;note", ";").replace("a cat 3", 'item "hi; you" now'),
        "has the separator inside quotes in line 5, but the quotes are not around the whole cell; put quotes around it",
    ),
    "a repeated column": (
        "metadata.csv",
        csv("file_name,text,Text,text"),
        "has the column 'text' twice; rename or remove one",
    ),
    "a repeated column of files": ("metadata.csv", csv("file_name,file_name"), "has the column 'file_name' twice"),
    "a repeated key": (
        "metadata.jsonl",
        json.dumps(rows()[0]) + '\n{"file_name": "images/1.png", "text": "a", "text": "b", "box": {"x": 1}}\n',
        "has the key 'text' twice in line 2; keep one",
    ),
    "a repeated key of files": (
        "metadata.jsonl",
        '{"file_name": "../../etc/passwd", "file_name": "images/1.png", "text": "a"}',
        "has the key 'file_name' twice in line 1; keep one",
    ),
    "single quotes": (
        "metadata.csv",
        csv("'file_name','text'"),
        'has other quotes than " around its cells; use double quotes, or none',
    ),
    "UTF-16 without a mark": ("metadata.csv", csv("file_name,text").encode("utf-16-le"), "is not UTF-8 text"),
    "UTF-32": ("metadata.csv", csv("file_name,text").encode("utf-32"), "is not UTF-8 text; save it as UTF-8"),
    "nothing": ("metadata.csv", "", "is empty; write a header line"),
    "only a header": ("metadata.csv", "file_name,text\n", "is empty; write one line per file below the header"),
    "too many fields": (
        "metadata.csv",
        csv("file_name,text", caption="red, round"),
        "has no usable line, for example line 2: 3 fields where the header has 2",
    ),
    "other files": (
        "metadata.csv",
        csv("file_name,text").replace("images/", "pictures/"),
        "names no file of its folder, for example line 2: pictures/0.png does not exist",
    ),
    "an array": ("metadata.jsonl", json.dumps(rows()), "is a JSON array; write one JSON object per line"),
    "an array of lines": (
        "metadata.jsonl",
        json.dumps(rows(), indent=1).replace("\n  ", "").replace("\n }", "}"),
        "is a JSON array; write one JSON object per line",
    ),
    "another key": (
        "metadata.jsonl",
        "\n".join(json.dumps(row) for row in rows("filename")),
        "has no key 'file_name'; rename 'filename'",
    ),
    "an object over several lines": (
        "metadata.jsonl",
        json.dumps(rows()[0], indent=1),
        "has no usable line, for example line 1: not a line of JSON",
    ),
    "UTF-16 lines": (
        "metadata.jsonl",
        json.dumps(rows()[0]).encode("utf-16-be"),
        "is not UTF-8 text; save it as UTF-8",
    ),
}


@pytest.mark.parametrize("case", UNUSABLE)
def test_metadata_that_cannot_be_used_is_refused_with_the_reason(photos: Path, case: str) -> None:
    name, content, reason = UNUSABLE[case]
    (photos / name).write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(UsageError) as refused:
        list_media(photos, EXTENSIONS)
    assert str(refused.value).startswith(f"in {photos}: {name} {reason}")


def test_each_command_that_reads_captions_refuses_it(photos: Path, tmp_path: Path, trained: Path) -> None:
    (photos / "metadata.csv").write_text(csv("filename,text"))
    reason = f"error: in {photos}: metadata.csv has no column 'file_name'; rename 'filename'"
    for words in (
        ("train", "vqgan", photos, *TINY, "--out", tmp_path / "run"),
        ("data", "shard", photos, tmp_path / "shards"),
        ("encode", trained, photos, "--out", tmp_path / "codes"),
        ("eval", trained, "--data", photos),
    ):
        outcome = quintet(*words)
        assert (outcome.code, error_line(outcome.errors)) == (2, reason)
    checked = quintet("data", "check", photos)
    assert checked.code == 1
    assert "error       metadata.csv has no column 'file_name'; rename 'filename'" in checked.output
    assert json.loads(quintet("data", "check", photos, "--json").output)["problem"].endswith("rename 'filename'")


def test_a_link_that_leads_out_of_the_folder_is_refused_as_metadata(photos: Path, tmp_path: Path) -> None:
    (tmp_path / "elsewhere.csv").write_text(csv("file_name,text"))
    (photos / "metadata.csv").symlink_to(tmp_path / "elsewhere.csv")
    with pytest.raises(UsageError, match=r"metadata\.csv cannot be used: a link that leads out of the folder"):
        list_media(photos, EXTENSIONS)


def test_metadata_of_a_folder_without_media_is_not_refused(photos: Path) -> None:
    (photos / "notes").mkdir()
    (photos / "notes" / "metadata.csv").write_text("id,author\n1,me\n")
    assert len(list_media(photos, EXTENSIONS).entries) == 6


def test_metadata_of_another_medium_is_not_refused(photos: Path) -> None:
    (photos / "a.mp4").write_bytes(b"x")
    (photos / "metadata.csv").write_text("file_name,text\na.mp4,a film\n")
    assert len(list_media(photos, EXTENSIONS).entries) == 6


def test_texts_of_several_lines_are_no_open_quotes(photos: Path) -> None:
    (photos / "metadata.csv").write_text('file_name,text\nimages/0.png,"a cat\nwith ""quotes"", asleep"\n')
    assert list_media(photos, EXTENSIONS).entries[0].text == 'a cat\nwith "quotes", asleep'


@pytest.mark.parametrize(
    "row",
    [
        'images/0.png,a 12" disc,a 3" nail',
        'images/0.png,"a 12"" disc","a 3"" nail"',
        'images/0.png,the "big" one,a "small" one',
        "images/0.png,a red dog,on grass",
        'images/0.png,"a red dog", on grass',
        "images/0.png, a red dog, on grass",
    ],
)
def test_ordinary_quotes_and_separators_are_read_without_a_note(photos: Path, row: str) -> None:
    (photos / "metadata.csv").write_text(f"file_name,text,note\n{row}\n")
    found = list_media(photos, EXTENSIONS)
    expected = row.split(",", 1)[1].rsplit(",", 1)[0].strip().removeprefix('"').removesuffix('"').replace('""', '"')
    assert found.entries[0].text == expected
    assert found.notes == ["5 of 6 files have no caption in the metadata.csv"]


def test_columns_and_nested_keys_that_are_not_read_may_repeat(photos: Path) -> None:
    (photos / "metadata.csv").write_text(csv("file_name,text,,tag,tag,"))
    assert list_media(photos, EXTENSIONS).entries[1].text == "a cat 1"
    line = '{"file_name": "images/1.png", "box": {"text": 1, "text": 2}, "text": "a dog"}\n'
    (photos / "metadata.jsonl").write_text(line)
    assert list_media(photos, EXTENSIONS).entries[1].text == "a dog"


def test_an_unquoted_comma_and_the_items_it_moves_to_another_split_are_said_before_training(
    photos: Path, tmp_path: Path
) -> None:
    lines = [f"images/{name},a cat {name[0]},train" for name in NAMES]
    lines[0] = lines[0].replace("train", "Test")
    lines[3] = "images/3.png,a red dog, on grass"
    (photos / "metadata.csv").write_text("\n".join(["file_name,text,split", *lines, ""]))
    said = succeed("train", "vqgan", photos, *TINY, "train.batch_size=2", "--out", tmp_path / "run").errors
    unused = "1 item is in the split 'on grass', which is not used for training: images/3.png"
    comma = (
        "metadata.csv: line 5 may have an unquoted comma in 'text': the next cell begins with a space; put quotes "
        "around a text that contains a comma"
    )
    assert f"note: {comma}\n" in said
    assert f"note: {unused}\n" in said
    assert "'test'" not in said
    checked = succeed("data", "check", photos).output
    assert comma in checked
    assert unused in checked


def test_items_of_many_unusual_splits_are_summed_up(photos: Path) -> None:
    lines = [f"images/{name},a cat,{'train' if name[0] == '0' else 'part ' + name[0]}" for name in NAMES]
    (photos / "metadata.csv").write_text("\n".join(["file_name,text,split", *lines, ""]))
    notes = json.loads(succeed("data", "check", photos, "--json").output)["notes"]
    assert [note for note in notes if "split" in note] == [
        *(
            f"1 item is in the split 'part {part}', which is not used for training: images/{part}.png"
            for part in (1, 2, 3)
        ),
        "2 more splits are not used for training",
    ]


@pytest.mark.parametrize(
    ("header", "note"),
    [
        ("file_name,Text", "there is no 'text'; if it holds the captions, rename 'Text' to 'text'"),
        ("file_name,text,Split", "there is no 'split'; if it holds the splits, rename 'Split' to 'split'"),
    ],
)
def test_a_column_whose_name_differs_in_case_is_said_with_the_advice_to_rename_it(
    photos: Path, header: str, note: str
) -> None:
    (photos / "metadata.csv").write_text(csv(header))
    assert f"metadata.csv: {note}" in list_media(photos, EXTENSIONS).notes


def test_a_recipe_without_captions_does_not_say_that_captions_are_missing(
    photos: Path, tmp_path: Path, trained: Path
) -> None:
    (photos / "metadata.jsonl").write_text(
        "".join(json.dumps({"file_name": f"images/{name}", "split": "train"}) + "\n" for name in NAMES)
    )
    assert "have no caption" not in succeed("train", "vqgan", photos, *TINY, "--out", tmp_path / "run").errors
    refused = quintet("train", "muse", photos, "--tokenizer", trained, "--preset", "debug", "--out", tmp_path / "muse")
    assert "note: 6 of 6 files have no caption in the metadata.jsonl" in refused.errors
    assert "6 of 6 images have no caption" in error_line(refused.errors)


def test_unused_lines_and_a_caption_column_of_another_name_are_said_before_training(
    photos: Path, tmp_path: Path
) -> None:
    (photos / "metadata.csv").write_text(csv("file_name,caption") + "images/gone.png,x\n")
    said = succeed("train", "vqgan", photos, *TINY, "--out", tmp_path / "run").errors
    assert "note: metadata.csv: there is no 'text'; if it holds the captions, rename 'caption' to 'text'" in said
    assert "lines of metadata that are not used: 1, the first in metadata.csv: line 8: images/gone.png does" in said


def test_equal_captions_are_said_before_training_and_by_the_check(photos: Path, tmp_path: Path, trained: Path) -> None:
    warning = "all 6 images have the same caption 'images': a model cannot learn what texts mean from it"
    words = ("train", "muse", photos, "--tokenizer", trained, "--preset", "debug", "model.dim=16", "train.steps=1")
    outcome = succeed(*words, "train.batch_size=2", "log.trackers=[]", "--out", tmp_path / "run")
    assert f"warning: {warning}" in outcome.errors
    assert warning.replace("images have", "image files have") in succeed("data", "check", photos).output
