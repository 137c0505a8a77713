"""A small run of each format, kept in the repository: what it took to read it once, it takes for ever.

If a test here fails, the reader is wrong, not the golden run. See make_golden.py for a new recipe or a new format.
"""

from __future__ import annotations

import json
from importlib import import_module
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from contract.cases import GOLDEN
from faults.conftest import Ledger
from helpers import copied, state, step_folder, steps_saved, succeed
from quintet import registry
from quintet.common.weights import checkpoint

CLOSE = 0.02
"""Share by which figures may differ: other processors round differently, and a code may tip over."""


@pytest.fixture(params=sorted(path.name for path in GOLDEN.iterdir()))
def golden(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """A copy of a golden folder."""
    return copied(GOLDEN / request.param, tmp_path / request.param)


def test_every_recipe_has_a_golden_run_of_the_current_format() -> None:
    names = {path.name for path in GOLDEN.iterdir()}
    assert {f"{recipe}-format-{checkpoint.FORMAT}" for recipe in registry.RECIPES} <= names


def figures_of(path: Path) -> dict[str, float]:
    return dict(json.loads(path.read_text()))


def test_it_gives_the_same_metrics(golden: Path, ledger: Ledger) -> None:
    expected = figures_of(golden / "run" / "eval.json")
    for model in ("run", "hub"):
        succeed("eval", golden / model, "--data", golden / "data", "--out", golden / f"{model}.json")
        found = figures_of(golden / f"{model}.json")
        # An exported model has no live weights. It may generate other media than the run, because older exports lack
        # auxiliary modules. Metrics that do not depend on generated media also exist for the live weights.
        compared = {name: value for name, value in expected.items() if model == "run" or f"live/{name}" in expected}
        assert {name: found[name] for name in compared} == pytest.approx(compared, rel=CLOSE, abs=CLOSE)
    ledger("golden", 2)


def test_it_is_gone_on_with(golden: Path, ledger: Ledger) -> None:
    run = golden / "run"
    (last,) = steps_saved(run)
    # By force: some day another version will do it.
    outcome = succeed("resume", run, f"data.path={golden / 'data'}", f"train.steps={last + 2}", "--force")
    assert f"resumed from {step_folder(run, last)}" in outcome.errors
    assert (state(run)["status"], state(run)["step"]) == ("finished", last + 2)
    ledger("golden", 1)


def test_it_is_loaded_in_python(golden: Path, ledger: Ledger) -> None:
    settings = json.loads((golden / "hub" / "config.json").read_text())
    names = registry.find(settings["recipe"]).public_names()
    model = getattr(import_module(names[settings["class"]]), settings["class"]).from_pretrained(golden / "hub")
    torch.testing.assert_close(model.state_dict(), load_file(golden / "hub" / "model.safetensors"), rtol=0, atol=0)
    ledger("golden", 1)


def test_its_codes_are_read_and_reproduced(golden: Path, ledger: Ledger) -> None:
    if not (golden / "codes").exists():
        return  # not a tokenizer
    succeed("decode", golden / "hub", golden / "codes", "--out", golden / "decoded")
    succeed("encode", golden / "hub", golden / "data", "--out", golden / "again")
    before, after = (load_file(golden / folder / "codes.safetensors")["codes"] for folder in ("codes", "again"))
    assert (before == after).float().mean() > 1 - CLOSE
    assert len(list((golden / "decoded").glob("[!.]*"))) == len(before)
    ledger("golden", 2)


def test_it_seeds_a_new_run(golden: Path, ledger: Ledger) -> None:
    recipe = json.loads((golden / "hub" / "config.json").read_text())["recipe"]
    names = registry.find(recipe).config_class().FROZEN_KEYS
    links = [f"{name}={golden / 'run' / name}" for name in names if (golden / "run" / name).is_dir()]
    tiny = ("--config", golden / "run" / "config.yaml", "train.steps=1", *links)
    for start in ("run", "hub"):
        succeed("train", recipe, golden / "data", "--init", golden / start, "--out", golden / f"from-{start}", *tiny)
    ledger("golden", 2)
