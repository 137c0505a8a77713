"""The options of `quintet sample`: those of the run's pipeline, at any position among the arguments."""

from __future__ import annotations

from pathlib import Path

import pytest

from contract.cases import GOLDEN
from helpers import error_line, quintet, succeed

MUSE = GOLDEN / "muse-format-1" / "hub"
PHENAKI = GOLDEN / "phenaki-format-1" / "hub"
QUICK = ("--num", "1", "sample.steps=1")


@pytest.mark.parametrize(
    "words",
    [
        (MUSE, "--text", "a red circle", *QUICK),
        ("--text", "a red circle", MUSE, *QUICK),
        ("--num=1", "--text=a red circle", "--seed", "0", MUSE, "sample.steps=1"),
        (MUSE, "sample.steps=1", "--num", "1", "--text", "a red circle", "--negative-prompt", ""),
    ],
)
def test_the_order_of_arguments_does_not_matter(words: tuple[object, ...], tmp_path: Path) -> None:
    succeed("sample", *words, "--out", tmp_path / "out")
    succeed("sample", MUSE, "--text", "a red circle", *QUICK, "--out", tmp_path / "same")
    assert (tmp_path / "out" / "000.png").read_bytes() == (tmp_path / "same" / "000.png").read_bytes()


def test_help_lists_the_options_of_the_pipeline() -> None:
    muse, phenaki = (succeed("sample", run, "--help").output for run in (MUSE, PHENAKI))
    assert "--mask" in muse
    assert "--frames" not in muse
    assert "--frames" in phenaki
    assert "--mask" not in phenaki


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ((MUSE, "--frames", "9", "--text", "x"), "'muse' does not take --frames (it takes --image, --mask"),
        ((GOLDEN / "vqgan-format-1" / "hub", "--text", "x"), "'vqgan' does not take --text: it is not a generator"),
        ((MUSE, "--foo", "1"), "No such option"),
        (("--foo", MUSE, "--text", "x"), "no such option: --foo"),
        ((MUSE, "--negative", "x"), "--negative requires --text"),
        ((PHENAKI, "--negative", "x", "--images"), "--negative requires --text"),
        ((MUSE, "--text", "x", "--num", "0"), "--num"),
        (("nowhere", "--text", "x"), "nowhere does not exist; pass the folder of a run"),
        (("hf:nobody/nothing",), "hf download"),
    ],
)
def test_wrong_options_are_one_error_message(words: tuple[object, ...], message: str, tmp_path: Path) -> None:
    outcome = quintet("sample", *words, "--out", tmp_path / "out")
    assert outcome.code == 2
    assert message in error_line(outcome.errors)
    assert not (tmp_path / "out").exists()
