"""File names from captions."""

from __future__ import annotations

from pathlib import Path

import pytest

from quintet.media.files import caption_name

CAPTIONS = (
    *("a red circle moves left", "", "..", "../../etc/passwd", "a/b\\c", "CON", "nul.", ".hidden", "~", "-rf *"),
    *(
        "x" * 5000,
        "é" * 300,
        "日本の円" * 90,
        "new\nline\ttab\x00nul",
        'quo"te<>|?:',
        "\ud800 half",
        "   ",
        "a" * 79 + " b",
    ),
)


def test_words_are_preserved_where_possible() -> None:
    assert caption_name(7, "A red circle, moving left!", ".mp4") == "007-A-red-circle-moving-left.mp4"
    assert caption_name(1234, "日本 円", ".gif") == "1234-日本-円.gif"
    assert caption_name(3, "…", ".webp") == "003.webp"


@pytest.mark.parametrize("caption", CAPTIONS)
def test_any_caption_makes_a_file_in_its_own_folder(tmp_path: Path, caption: str) -> None:
    path = tmp_path / caption_name(0, caption, ".mp4")
    path.write_bytes(b"video")
    assert [each.name for each in tmp_path.iterdir()] == [path.name]
    assert path.name.startswith("000")
    assert not path.name.endswith("-.mp4")
    assert len(path.name.encode()) < 100


def test_no_two_are_the_same() -> None:
    names = [caption_name(number, caption, ".mp4") for number, caption in enumerate(CAPTIONS * 3)]
    assert len({name.lower() for name in names}) == len(names)
