"""Parsing of metadata files as people write them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from quintet.data.index.captions import (
    Metadata,
    captions_of,
    folder_caption,
    parse_csv,
    parse_jsonl,
    read_caption,
    read_metadata,
)


def files_and_texts(metadata: Metadata) -> list[tuple[str, tuple[str, ...]]]:
    return [(row.file, row.texts) for row in metadata.rows]


def test_jsonl_rows_are_parsed() -> None:
    line = {"file_name": "a.png", "text": "a cat", "split": "train", "objects": [{"shape": "circle"}]}
    metadata = parse_jsonl(json.dumps(line).encode() + b"\n")
    (row,) = metadata.rows
    assert (row.line, row.file, row.texts, row.split) == (1, "a.png", ("a cat",), "train")
    assert row.extra == {"objects": [{"shape": "circle"}]}
    assert metadata.columns == ["file_name", "text", "split", "objects"]
    assert metadata.skipped == []


def test_csv_rows_are_parsed() -> None:
    metadata = parse_csv(b'file_name,text,split,source\na.png,"a cat, asleep",val,web\n\nb.png,two\n')
    assert files_and_texts(metadata) == [("a.png", ("a cat, asleep",)), ("b.png", ("two",))]
    assert (metadata.rows[0].split, metadata.rows[0].extra) == ("val", {"source": "web"})
    assert (metadata.rows[1].split, metadata.rows[1].line) == (None, 4)
    assert metadata.columns == ["file_name", "text", "split", "source"]


def test_malformed_json_lines_are_named_and_skipped() -> None:
    deep = b"[" * 100_000
    data = b'{"file_name": "a.png", "text": "x"\n[1]\n{"text": "no file"}\n{"file_name": 7}\n\n' + deep + b"\n"
    metadata = parse_jsonl(data + b'{"file_name": "b.png", "text": "y"}')
    assert files_and_texts(metadata) == [("b.png", ("y",))]
    assert [line for line, _ in metadata.skipped] == [1, 2, 3, 4, 6]
    assert metadata.skipped[2][1] == "no file_name"


def test_malformed_csv_lines_are_named_and_skipped() -> None:
    long = b"c.png," + b"x" * 200_000
    metadata = parse_csv(b"file_name,text\na.png,red, round\n,nothing\n" + long + b"\nb.png,blue\n")
    assert files_and_texts(metadata) == [("b.png", ("blue",))]
    assert [line for line, _ in metadata.skipped] == [2, 3, 4]
    assert metadata.skipped[0][1].startswith("3 fields where the header has 2; quote")


def test_a_csv_without_the_column_names_its_columns() -> None:
    metadata = parse_csv(b"image,caption\na.png,a cat\n")
    assert metadata.rows == []
    assert metadata.skipped == [(1, "no column file_name: the first line names image, caption")]
    assert parse_csv(b"").skipped == [(1, "no column file_name: the first line names nothing")]


@pytest.mark.parametrize("delimiter", [";", "\t"])
def test_other_csv_separators_are_read(delimiter: str) -> None:
    metadata = parse_csv(f"file_name{delimiter}text\na.png{delimiter}a cat, asleep\n".encode())
    assert files_and_texts(metadata) == [("a.png", ("a cat, asleep",))]


@pytest.mark.parametrize("end", ["\n", "\r\n", "\r"])
@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16"])
def test_line_ends_and_byte_order_marks(end: str, encoding: str) -> None:
    lines = ["file_name,text", "a.png,café", "b.png,東京", ""]
    assert files_and_texts(parse_csv(end.join(lines).encode(encoding))) == [("a.png", ("café",)), ("b.png", ("東京",))]
    rows = [json.dumps({"file_name": "a.png", "text": "caf\u00e9 \u2028 x"}, ensure_ascii=False), ""]
    assert files_and_texts(parse_jsonl(end.join(rows).encode(encoding))) == [("a.png", ("café \u2028 x",))]


def test_each_line_that_is_not_utf8_is_decoded_separately() -> None:
    data = b"file_name,text\na.png," + "café".encode("latin-1") + b"\nb.png," + "東京".encode() + b"\n"
    metadata = parse_csv(data)
    assert files_and_texts(metadata) == [("a.png", ("café",)), ("b.png", ("東京",))]
    assert metadata.notes == ["some lines are not UTF-8 and were read as Latin-1"]


@pytest.mark.parametrize(
    ("value", "captions"),
    [
        ("  a cat\n", ("a cat",)),
        (["one", "two", " ", None], ("one", "two")),
        (None, ()),
        ("", ()),
        (7, ("7",)),
        (float("nan"), ()),
        ({"en": "cat"}, ()),
        ("half \ud800 pair", ("half ? pair",)),
    ],
)
def test_values_of_the_text_column(value: object, captions: tuple[str, ...]) -> None:
    assert captions_of(value) == captions


def test_a_text_file_holds_one_caption_per_line(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_bytes(b"\xef\xbb\xbfa cat\r\n\r\n asleep \r\n")
    (tmp_path / "b.txt").write_bytes(b"caf\xe9")
    (tmp_path / "large.txt").write_bytes(b"x" * 10_000_000)
    assert read_caption(tmp_path / "a.txt") == ("a cat", "asleep")
    assert read_caption(tmp_path / "b.txt") == ("café",)
    assert len(read_caption(tmp_path / "large.txt")[0]) == 65536
    assert read_caption(tmp_path / "missing.txt") == ()


def test_folder_names_as_captions() -> None:
    assert folder_caption("red_circle-on__the-left") == "red circle on the left"


def test_the_reader_goes_by_the_extension(tmp_path: Path) -> None:
    (tmp_path / "metadata.csv").write_text("file_name,text\na.png,x\n")
    (tmp_path / "metadata.jsonl").write_text('{"file_name": "b.png"}\n')
    assert files_and_texts(read_metadata(tmp_path / "metadata.csv")) == [("a.png", ("x",))]
    assert files_and_texts(read_metadata(tmp_path / "metadata.jsonl")) == [("b.png", ())]
    assert read_metadata(tmp_path / "missing.csv").skipped == [(0, "cannot be opened: No such file or directory")]


def check_valid(metadata: Metadata) -> None:
    for row in metadata.rows:
        assert row.file
        assert row.line >= 1
        for text in (*row.texts, row.split or "", *metadata.columns):
            text.encode("utf-8")
    assert all(reason for _, reason in metadata.skipped)


@settings(max_examples=200, deadline=None)
@given(st.binary(max_size=300))
def test_random_bytes_never_crash_the_readers(data: bytes) -> None:
    check_valid(parse_jsonl(data))
    check_valid(parse_csv(data))
    check_valid(parse_csv(b"file_name,text\n" + data))


JSON_SCALARS = (
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(st.characters(exclude_categories=()), max_size=8)
)
JSON_VALUES = JSON_SCALARS | st.lists(JSON_SCALARS, max_size=3) | st.just({"nested": ["value"]})


@settings(max_examples=80, deadline=None)
@given(st.dictionaries(st.sampled_from(["file_name", "text", "split", "x"]), JSON_VALUES), st.binary(max_size=4))
def test_random_objects_never_crash_the_reader(fields: dict[str, object], junk: bytes) -> None:
    check_valid(parse_jsonl(json.dumps(fields).encode() + junk + b"\n"))
