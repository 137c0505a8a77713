"""All written files have the permissions of the user's umask, so that a colleague can read them."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest

from contract.cases import SHARDED, TINY_MUSE
from helpers import executed, succeed, torchrun, train_tiny


@pytest.fixture(params=[0o022, 0o077], ids=["022", "077"])
def umask(request: pytest.FixtureRequest) -> Iterator[int]:
    before = os.umask(request.param)
    yield request.param
    os.umask(before)


def wrong_modes(folder: Path, umask: int) -> dict[str, str]:
    """The files below a folder whose permissions do not follow the umask."""
    found = {path: path.stat() for path in (folder, *folder.rglob("*"))}
    assert len(found) > 1, f"{folder} is empty"
    return {
        str(path): oct(stat.S_IMODE(facts.st_mode))
        for path, facts in found.items()
        if stat.S_IMODE(facts.st_mode) != (0o777 if stat.S_ISDIR(facts.st_mode) else 0o666) & ~umask
    }


def test_written_files_follow_the_umask(
    umask: int, pictures: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "out"
    monkeypatch.setenv("XDG_CACHE_HOME", str(out / "cache"))
    train_tiny(pictures, out / "tokenizer", "train.steps=4", "log.trackers=[tensorboard]")
    succeed("train", "muse", pictures, "--out", out / "muse", *TINY_MUSE, "train.steps=4")
    succeed("sample", out / "muse", "--num", 2, "--text", "a circle", "--out", out / "samples")
    succeed("export", out / "tokenizer", out / "export")
    succeed("encode", out / "tokenizer", pictures, "--out", out / "codes")
    succeed("decode", out / "tokenizer", out / "codes", "--out", out / "decoded")
    succeed("data", "shard", pictures, out / "shards")
    succeed("data", "make", "shapes", out / "shapes", "--num", 4)

    assert list((out / "cache").rglob("*.npy"))
    assert list((out / "muse").rglob("*.safetensors"))
    assert wrong_modes(out, umask) == {}


def test_a_sharded_checkpoint_follows_the_umask(pictures: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    words = ("train", "muse", pictures, "--out", run, *TINY_MUSE, "train.steps=4", *SHARDED)
    with executed(torchrun(2, "-m", "quintet", *words), tmp_path / "said", umask=0o027) as process:
        assert process.end() == 0, process.seen
    assert list(run.rglob("shard-*.safetensors"))
    assert wrong_modes(run, 0o027) == {}
