"""Every recipe: vectors of files and texts, and finding files by words; or a clear word that it has none."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from helpers import error_line, quintet, succeed, tree
from quintet import registry
from quintet.codes import file_loader
from quintet.pipelines.base import Embedder, as_embedder
from quintet.pipelines.loading import open_pipeline

WORDS = ("a low note", "a fast rhythm of a drum", "ünï")
SPACES = [name for name, entry in registry.RECIPES.items() if issubclass(entry.pipeline_class(), Embedder)]
"""The recipes that put media and texts into one space."""

in_a_space = pytest.mark.parametrize("recipe", SPACES, indirect=True)


def vectors(file: Path) -> dict[str, np.ndarray[Any, Any]]:
    with np.load(file, allow_pickle=False) as held:
        return dict(held)


@pytest.fixture
def clips(data: Path, tmp_path: Path) -> Path:
    """Five files without captions, in two folders, and two unreadable ones."""
    folder = tmp_path / "clips"
    (folder / "more").mkdir(parents=True)
    files = [path for path in sorted(data.rglob("*")) if path.suffix in (".wav", ".flac", ".png", ".glb", ".obj")][:5]
    assert len(files) == 5
    for number, path in enumerate(files):
        shutil.copy(path, folder / ("more" if number > 2 else ".") / f"clip {number}{path.suffix}")
    (folder / f"broken{files[0].suffix}").write_bytes(b"nothing of the kind")
    (folder / f"empty{files[0].suffix}").touch()
    return folder


@pytest.mark.parametrize("recipe", [name for name in registry.RECIPES if name not in SPACES], indirect=True)
def test_a_recipe_without_embeddings_says_so(recipe: str, finished: Path, data: Path, tmp_path: Path) -> None:
    before = tree(finished)
    out = tmp_path / "embeddings.npz"
    for words in (
        ("embed", finished, "--audio", data, "--out", out),
        ("embed", finished, "--text", "words", "--out", out),
        ("search", finished, data, "--text", "words"),
    ):
        refused = quintet(*words)
        assert refused.code == 2
        assert f"recipe '{recipe}' has no embeddings" in error_line(refused.errors)
    assert not out.exists()
    assert tree(finished) == before


def test_a_recipe_with_embeddings_exists() -> None:
    assert SPACES


@in_a_space
def test_vectors_of_files_and_texts(recipe: str, finished: Path, clips: Path, tmp_path: Path) -> None:
    out = tmp_path / "new" / "embeddings.npz"
    texts = [word for text in WORDS for word in ("--text", text)]
    outcome = succeed("embed", finished, "--audio", clips, *texts, "--out", out)

    held = vectors(out)
    assert held.keys() == {"audio", "files", "text", "texts"}
    assert [re.sub(r"\.\w+$", "", name) for name in held["files"]] == [
        *("clip 0", "clip 1", "clip 2", "more/clip 3", "more/clip 4")
    ]
    assert held["texts"].tolist() == list(WORDS)
    assert held["audio"].dtype == held["text"].dtype == np.float32
    assert held["audio"].shape == (5, held["text"].shape[1])
    for name in ("audio", "text"):
        np.testing.assert_allclose(np.linalg.norm(held[name], axis=1), 1, rtol=1e-5)

    assert f"5 files and 3 texts embedded: {out}" in outcome.output
    assert f'next: quintet search {finished} {clips} --text "…"' in outcome.output
    left_out = [line for line in outcome.errors.splitlines() if line.startswith("skipped: ")]
    assert len(left_out) == 2
    assert any(re.match(r"skipped: broken\.\w+ \(.+\)", line) for line in left_out)
    assert any(re.match(r"skipped: empty\.\w+ \(empty file\)", line) for line in left_out)
    assert "embedded 6 of 6" in outcome.errors
    assert [path.name for path in out.parent.iterdir()] == [out.name]

    keys = {"data.allow_missing_captions": True, "data.path": str(clips), "data.validation_path": str(clips)}
    embedder = as_embedder(open_pipeline(finished)).with_keys(keys)
    loader, _ = file_loader(embedder)
    with embedder.inference():
        own = embedder.embed_batch(loader.single(4)).float()
        words = embedder.embed_texts(list(WORDS)).float()
    assert loader.dataset.name(4) == held["files"][3]
    torch.testing.assert_close(own[0], torch.from_numpy(held["audio"][3]), rtol=0, atol=0)
    torch.testing.assert_close(words, torch.from_numpy(held["text"]), rtol=0, atol=0)


@in_a_space
def test_an_exported_model_and_one_file_give_the_same_vectors(
    recipe: str, finished: Path, clips: Path, tmp_path: Path
) -> None:
    succeed("export", finished, tmp_path / "hub")
    one = next(path for path in clips.iterdir() if path.stem == "clip 1")
    succeed("embed", finished, "--audio", clips, "--out", tmp_path / "run.npz")
    succeed("embed", tmp_path / "hub", "--audio", clips, "--out", tmp_path / "hub.npz")
    outcome = succeed("embed", finished, "--audio", one, "--out", tmp_path / "one.npz")
    of_run, of_hub, of_one = (vectors(tmp_path / f"{name}.npz") for name in ("run", "hub", "one"))
    assert all(np.array_equal(of_run[name], of_hub[name]) for name in of_run)
    assert of_run["text"].shape == (0, of_run["audio"].shape[1])
    assert of_run["texts"].shape == (0,)
    assert of_one["files"].tolist() == [one.name]
    assert np.array_equal(of_one["audio"][0], of_run["audio"][1])
    assert "skipped" not in outcome.errors


@in_a_space
def test_search_ranks_files_by_words(recipe: str, finished: Path, clips: Path, tmp_path: Path) -> None:
    texts = ("--text", WORDS[0], "--text", WORDS[1])
    succeed("embed", finished, "--audio", clips, *texts, "--out", tmp_path / "all.npz")
    held = vectors(tmp_path / "all.npz")
    scores = held["audio"] @ held["text"].T

    outcome = succeed("search", finished, clips, *texts, "--top", 3)
    listed = json.loads(succeed("search", finished, clips, *texts, "--top", 3, "--json").output)

    assert [each["text"] for each in listed] == list(WORDS[:2])
    for column, each in enumerate(listed):
        best = np.argsort(-scores[:, column])[:3]
        assert [row["file"] for row in each["found"]] == held["files"][best].tolist()
        np.testing.assert_allclose([row["score"] for row in each["found"]], scores[best, column], atol=1e-6)
        for number, row in enumerate(each["found"], start=1):
            line = rf"^ *{number} +{row['score']:.4f}  {re.escape(row['file'])}$"
            assert re.search(line, outcome.output, re.MULTILINE)
    assert "skipped: broken" in outcome.errors
    assert f"next: quintet embed {finished} --audio {clips} --out embeddings.npz" in outcome.output
    assert len(json.loads(succeed("search", finished, clips, *texts, "--json").output)[0]["found"]) == 5


@in_a_space
def test_an_evaluation_prints_the_next_command(recipe: str, finished: Path, data: Path, tmp_path: Path) -> None:
    outcome = succeed("eval", finished, "--out", tmp_path / "eval.json", 'eval.zero_shot_labels=["no such word"]')
    assert f'next: quintet search {finished} {data} --text "…"' in outcome.output
    assert "no caption contains any of eval.zero_shot_labels" in outcome.errors
    assert "zero_shot_accuracy" not in outcome.output


@in_a_space
def test_inputs_that_cannot_be_embedded_are_refused(recipe: str, finished: Path, clips: Path, tmp_path: Path) -> None:
    out = tmp_path / "embeddings.npz"
    out.write_bytes(b"mine")
    note = tmp_path / "note.txt"
    note.write_text("no sound")
    broken = next(path for path in clips.iterdir() if path.stem == "broken")
    for words, mention in (
        (("embed", finished, "--out", tmp_path / "new.npz"), "--audio FOLDER, --text TEXT, or both"),
        (("embed", finished, "--text", "words", "--out", out), f"{out} exists already"),
        (("embed", finished, "--text", " ", "--out", tmp_path / "new.npz"), "--text is empty"),
        (("embed", finished, "--audio", tmp_path / "gone", "--out", tmp_path / "new.npz"), "gone does not exist"),
        (("embed", finished, "--audio", note, "--out", tmp_path / "new.npz"), f"no usable file in {note}"),
        (("embed", finished, "--audio", broken, "--out", tmp_path / "new.npz"), f"no file of {broken} can be read"),
        (("embed", finished, "--text", "words", "--out", note / "new.npz"), "cannot write"),
        (("search", finished, clips, "--text", ""), "--text is empty"),
        (("search", finished, clips), "--text"),
        (("search", finished, clips, "--text", "words", "--top", 0), "--top"),
        (("search", tmp_path / "gone", clips, "--text", "words"), "gone does not exist"),
    ):
        refused = quintet(*words)
        assert refused.code == 2, words
        assert mention in error_line(refused.errors), words
        assert "unexpected" not in refused.errors
    assert out.read_bytes() == b"mine"
    assert not (tmp_path / "new.npz").exists()
    assert not list(tmp_path.glob(".*"))
