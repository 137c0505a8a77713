"""Exports, linked copies and codes with flipped bits are refused by name; pipes in the place of files are too."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from contract.cases import GOLDEN
from helpers import copied, error_line, quintet, succeed

MUSE, CODEC = GOLDEN / "muse-format-1", GOLDEN / "audio-codec-format-1"


def flip(path: Path) -> None:
    """Flip a bit in the last tensor of a file: it still opens."""
    content = bytearray(path.read_bytes())
    content[-2] ^= 1
    path.write_bytes(content)


@pytest.mark.fault("flipped-cache")
@pytest.mark.parametrize("name", ["model.safetensors", "tokenizer/model.safetensors"])
def test_an_export_with_a_flipped_bit_is_refused(tmp_path: Path, name: str) -> None:
    hub = copied(MUSE / "hub", tmp_path / "hub")
    flip(hub / name)
    outcome = quintet("sample", hub, "--text", "a red circle", "--num", 1, "--out", tmp_path / "out")
    assert outcome.code != 0
    assert f"{hub / name} is damaged; export it again, or delete SHA256SUMS" in error_line(outcome.errors)


def test_an_export_may_have_other_files_and_another_readme(tmp_path: Path) -> None:
    hub = copied(MUSE / "hub", tmp_path / "hub")
    (hub / "README.md").write_text("edited by hand")
    (hub / ".gitattributes").write_text("*.safetensors filter=lfs")
    succeed("sample", hub, "--text", "a red circle", "--num", 1, "--out", tmp_path / "out")


@pytest.mark.fault("flipped-cache")
def test_a_linked_copy_with_a_flipped_bit_is_refused(tmp_path: Path) -> None:
    run = copied(MUSE / "run", tmp_path / "run")
    flip(run / "tokenizer" / "model.safetensors")
    outcome = quintet("sample", run, "--text", "a red circle", "--num", 1, "--out", tmp_path / "out")
    assert f"{run / 'tokenizer' / 'model.safetensors'} is damaged" in error_line(outcome.errors)


@pytest.mark.fault("flipped-cache")
def test_codes_with_a_flipped_bit_are_refused(sounds: Path, tmp_path: Path) -> None:
    succeed("encode", CODEC / "hub", sounds, "--out", tmp_path / "codes")
    flip(tmp_path / "codes" / "codes.safetensors")
    outcome = quintet("decode", CODEC / "hub", tmp_path / "codes", "--out", tmp_path / "out")
    assert "codes.safetensors is damaged" in error_line(outcome.errors)


def test_pipes_with_the_names_of_files_are_refused(pictures: Path, tmp_path: Path) -> None:
    pipe = tmp_path / "pipe.safetensors"
    os.mkfifo(pipe)
    train = ("train", "vqgan", pictures, "--out", tmp_path / "run", "--preset", "debug")
    phenaki = GOLDEN / "phenaki-format-1" / "hub"
    for words in (
        (*train, "--config", pipe),
        (*train, f"loss.perceptual_weights={pipe}"),
        ("sample", phenaki, "--scenes", pipe, "--out", tmp_path / "out"),
        ("sample", phenaki, "--text", "a", "--image", pipe, "--out", tmp_path / "out"),
        ("sample", pipe, "--text", "a", "--out", tmp_path / "out"),
        ("data", "check", pipe),
        ("decode", CODEC / "hub", pipe, "--out", tmp_path / "out"),
    ):
        outcome = quintet(*words)
        assert outcome.code != 0, words
        error_line(outcome.errors)


def test_a_folder_of_pipes_is_no_data(tmp_path: Path) -> None:
    folder = tmp_path / "folder"
    folder.mkdir()
    for name in ("a.png", "a.txt", "metadata.jsonl", "metadata.csv", "dataset.json", "a.obj", "a.wav", "a.mp4"):
        os.mkfifo(folder / name)
    assert "not a regular file" in quintet("data", "check", folder).output
