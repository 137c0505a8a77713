"""Every recipe: a folder that is not trained on is used completely, whatever its `split` column says."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from helpers import copied, error_line, quintet, succeed
from quintet import registry
from quintet.pipelines.base import Embedder, Tokenizer


def relabelled(data: Path, target: Path, split: str, num: int = 6) -> Path:
    """A copy of the first items, all of one split."""
    folder = copied(data, target)
    rows = [json.loads(line) for line in (folder / "metadata.jsonl").read_text(encoding="utf-8").splitlines()]
    for row in rows[num:]:
        (folder / row["file_name"]).unlink()
    lines = [json.dumps({**row, "split": split}) + "\n" for row in rows[:num]]
    (folder / "metadata.jsonl").write_text("".join(lines), encoding="utf-8")
    return folder


@pytest.mark.parametrize("split", ["withheld", "validation"])
def test_every_command_uses_all_items(recipe: str, finished: Path, data: Path, tmp_path: Path, split: str) -> None:
    folder = relabelled(data, tmp_path / "folder", split)
    pipeline = registry.find(recipe).pipeline_class()
    outcome = succeed("eval", finished, "--data", folder, "--out", tmp_path / "eval.json")
    assert "6 items)" in outcome.output
    succeed("sample", finished, "--data", folder, "--num", 2, "--out", tmp_path / "out")
    assert (tmp_path / "out" / "samples.jsonl").exists()
    if issubclass(pipeline, Tokenizer):
        assert "6 items encoded" in succeed("encode", finished, folder, "--out", tmp_path / "codes").output
    if issubclass(pipeline, Embedder):
        assert "(of 6 files)" in succeed("search", finished, folder, "--text", "a note").output
        assert "6 files" in succeed("embed", finished, "--audio", folder, "--out", tmp_path / "e.npz").output


def test_training_on_it_is_refused(pictures: Path, tmp_path: Path) -> None:
    folder = relabelled(pictures, tmp_path / "folder", "withheld")
    for keys in ((), (f"data.validation_path={folder}",)):
        refused = quintet("train", "vqgan", folder, "--preset", "debug", *keys, "--out", tmp_path / "run")
        assert refused.code == 2
        assert "no training item is left" in error_line(refused.errors)
        assert "withheld" in error_line(refused.errors)
    assert not (tmp_path / "run").exists()


def test_shards_of_another_split_are_used_completely(trained: Path, pictures: Path, tmp_path: Path) -> None:
    folder = relabelled(pictures, tmp_path / "folder", "test")
    succeed("data", "shard", folder, tmp_path / "shards")
    assert "6 items encoded" in succeed("encode", trained, tmp_path / "shards", "--out", tmp_path / "codes").output
    outcome = succeed("eval", trained, "--data", tmp_path / "shards", "--out", tmp_path / "eval.json")
    assert "6 items)" in outcome.output
