"""Muse: what is masked and dropped in training, what fits which tokenizer, and what a text becomes."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch

from contract.cases import GOLDEN, TINY_MUSE
from contract.worlds import make_recipe
from helpers import error_line, quintet, succeed
from quintet.core.batch import Batch
from quintet.core.draw import Draw
from quintet.core.evaluate import looking
from quintet.core.recipe import Request
from quintet.errors import UsageError
from quintet.families.muse.recipe import MuseRecipe
from quintet.nn.maskgit import MaskGit, TokenCritic
from quintet.runs import open_link

TOKENIZER = GOLDEN / "vqgan-format-1" / "hub"


@pytest.fixture
def recipe(pictures: Path) -> MuseRecipe:
    made = make_recipe("muse", pictures, TINY_MUSE)
    assert isinstance(made, MuseRecipe)
    return made


def batch_of(recipe: MuseRecipe, items: range, epoch: int = 0) -> Batch:
    source = recipe.sources().train
    draws = [Draw(0, [epoch], [item]) for item in items]
    fields = recipe.collate([source.load(item, draw) for item, draw in zip(items, draws, strict=True)])
    return Batch(fields, tuple(source.name(item) for item in items), Draw(0, [epoch] * len(items), list(items)))


def test_the_share_of_dropped_texts_is_what_the_key_says(recipe: MuseRecipe) -> None:
    recipe.config = recipe.config.changed({"loss.drop_text": 0.3})  # type: ignore[assignment]
    batch = batch_of(recipe, range(20))
    dropped = 0
    for epoch in range(100):
        drawn = Batch(batch.fields, batch.names, Draw(0, [epoch] * 20, list(range(20))))
        output = recipe.forward(recipe.modules, drawn, step=0)
        dropped += int((~output["conditioning"]["text_mask"].any(1)).sum())
    assert dropped / 2000 == pytest.approx(0.3, abs=0.03)


def test_only_masked_tokens_are_hidden_and_only_they_are_asked_for(recipe: MuseRecipe) -> None:
    seen: list[torch.Tensor] = []
    hook = recipe.maskgit.register_forward_pre_hook(lambda module, arguments: seen.append(arguments[0]))
    output = recipe.forward(recipe.modules, batch_of(recipe, range(6)), step=0)
    hook.remove()
    hidden, codes = output["hidden"], output["codes"]
    assert torch.equal(seen[0] == recipe.maskgit.mask_id, hidden)
    assert torch.equal(seen[0][~hidden], codes[~hidden])
    assert hidden.any(1).all()
    assert output["logits"].shape == (int(hidden.sum()), recipe.maskgit.mask_id)


def test_the_same_seed_draws_the_same_pictures_and_another_does_not(recipe: MuseRecipe) -> None:
    def drawn(seed: int, texts: list[str]) -> torch.Tensor:
        with looking(recipe.modules):
            return recipe._draw(recipe.modules, texts, Draw(seed, [0] * len(texts), range(len(texts))))

    texts = ["a red circle", "two blue squares", "a green star on the left"]
    assert torch.equal(drawn(1, texts), drawn(1, texts))
    assert not torch.equal(drawn(1, texts), drawn(2, texts))


def test_what_is_generated_is_named_with_its_text_seed_and_settings(recipe: MuseRecipe) -> None:
    with looking(recipe.modules):
        grid, *single = recipe.generate(recipe.modules, Request(["a red circle", "a blue star"], num=2, seed=7))
    assert grid.file == "grid.png"
    assert [artifact.about["text"] for artifact in single] == ["a red circle"] * 2 + ["a blue star"] * 2
    assert {artifact.about["seed"] for artifact in single} == {7}
    assert single[0].about["settings"]["guidance"] == 3.0


def test_a_tokenizer_that_does_not_fit_is_named_beside_the_key(pictures: Path) -> None:
    for key, value in {"model.grid": "[8,8]", "model.num_codes": "77"}.items():
        with pytest.raises(UsageError, match=rf"{key}=.*but the tokenizer .*hub has"):
            make_recipe("muse", pictures, (*TINY_MUSE, f"{key}={value}"))


def test_two_models_with_the_same_weights_have_the_same_digest(tmp_path: Path) -> None:
    copy = shutil.copytree(TOKENIZER, tmp_path / "copy")
    original, copied, changed = (open_link(str(folder)) for folder in (TOKENIZER, copy, copy))
    next(changed.model.parameters()).data += 1
    assert original.digest == copied.digest != changed.digest


def test_public_models_are_made_from_keywords() -> None:
    keys: dict[str, Any] = {"grid": (2, 3), "num_codes": 5, "dim": 16, "depth": 1, "heads": 2, "text": "none"}
    tokens = torch.tensor([[0, 1, 2, 3, 4, 5]])
    assert MaskGit(**keys)(tokens, {}).shape == (1, 6, 5)
    assert TokenCritic(**keys)(tokens, {}).shape == (1, 6)
    with pytest.raises(UsageError, match=r"model\.grid and model\.num_codes"):
        MaskGit(dim=16)


# --- what a person may get wrong ------------------------------------------------------------------------------------


def words(data: Path, out: Path, *more: object) -> tuple[object, ...]:
    return ("train", "muse", data, "--out", out, *TINY_MUSE, *more)


def test_no_tokenizer(pictures: Path, tmp_path: Path) -> None:
    outcome = quintet("train", "muse", pictures, "--out", tmp_path / "run", "--preset", "debug")
    assert outcome.code == 2
    assert "--tokenizer" in error_line(outcome.errors)
    assert not (tmp_path / "run").exists()


def test_a_tokenizer_of_another_family(pictures: Path, tmp_path: Path) -> None:
    other = GOLDEN / "muse-format-1" / "hub"
    outcome = quintet(*words(pictures, tmp_path / "run", "--tokenizer", other))
    assert outcome.code == 2
    assert f"{other} is of recipe 'muse'" in error_line(outcome.errors)


def test_missing_captions_are_counted_and_can_be_allowed(pictures: Path, tmp_path: Path) -> None:
    data = shutil.copytree(pictures, tmp_path / "data")
    rows = [json.loads(line) for line in (data / "metadata.jsonl").read_text().splitlines()]
    for row in rows[:3]:
        row["text"] = ""
    (data / "metadata.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    outcome = quintet(*words(data, tmp_path / "run", "data.empty_captions=false"))
    assert outcome.code == 2
    assert "pictures have no caption" in error_line(outcome.errors)
    assert "data.empty_captions=true" in error_line(outcome.errors)
    succeed(*words(data, tmp_path / "run", "data.empty_captions=true"))
    succeed(*words(data, tmp_path / "none", "model.text=none"))


def test_long_captions_are_cut_and_said_once(pictures: Path, tmp_path: Path) -> None:
    outcome = succeed(*words(pictures, tmp_path / "run", "model.text_length=12"))
    assert outcome.errors.count("are cut") == 1


def test_guidance_without_dropped_texts_is_said(pictures: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    succeed(*words(pictures, run, "loss.drop_text=0"))
    outcome = succeed("sample", run, "--text", "a red circle", "--num", 1, "--out", tmp_path / "out")
    assert outcome.errors.count("warning: drawn without guidance") == 1
    assert quintet("sample", run, "model.dim=3", "--text", "x", "--out", tmp_path / "out").code == 2


def test_text_for_a_model_without_text(pictures: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    succeed(*words(pictures, run, "model.text=none"))
    outcome = quintet("sample", run, "--text", "a red circle", "--out", tmp_path / "out")
    assert outcome.code == 2
    assert "trained without text" in error_line(outcome.errors)


def test_text_for_a_tokenizer(trained: Path, tmp_path: Path) -> None:
    outcome = quintet("sample", trained, "--text", "a red circle", "--out", tmp_path / "out")
    assert outcome.code == 2
    assert "not a generator" in error_line(outcome.errors)


def test_a_moved_run_needs_neither_tokenizer_nor_cache(
    pictures: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tokenizer = shutil.copytree(TOKENIZER, tmp_path / "tokenizer")
    succeed(*words(pictures, tmp_path / "run", "--tokenizer", tokenizer))
    shutil.rmtree(tokenizer)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "another cache"))
    run = (tmp_path / "run").rename(tmp_path / "moved")
    succeed("resume", run, "train.steps=14")
    succeed("sample", run, "--text", "a red circle", "--num", 2, "--out", tmp_path / "out")
    assert {path.name for path in (tmp_path / "out").iterdir()} == {"grid.png", "000.png", "001.png", "samples.jsonl"}
