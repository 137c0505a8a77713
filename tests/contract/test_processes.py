"""Every recipe: two processes do what one does, on the same items, also where their number changes on the way.

`QUINTET_SCALE=whole` tries all of it; without, two recipes stand for the others where that costs more processes.
`QUINTET_LAUNCHER=accelerate` has `accelerate launch` start them.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from contract import worlds
from contract.cases import CASES, case_of
from helpers import accelerate_launch, executed, made_once, metrics, step_folder, steps_saved, tensor_hashes, torchrun
from quintet import registry
from quintet.common.weights import tensor_groups

EXACT = "engine.precision=fp64"
"""In fp64 the two must agree to 1e-12 in everything, in fp32 to 1e-5 in the losses."""

LAUNCH = accelerate_launch if os.environ.get("QUINTET_LAUNCHER") == "accelerate" else torchrun

RESUMED = [*CASES] if os.environ.get("QUINTET_SCALE") == "whole" else ["vqgan", "muse"]
"""The recipes whose runs are resumed in worlds of other sizes: one with two phases and codebooks, and one in parts."""

TRAININGS = [(recipe, name) for recipe, case in CASES.items() for name in (*case.worlds, "fp32")]


def arguments(recipe: str, name: str, data: Path, out: Path) -> dict[str, Any]:
    case = case_of(recipe)
    words = (*case.tiny, *case.worlds[name], EXACT) if name in case.worlds else (*case.tiny, *case.brief)
    return {"recipe": recipe, "data": str(data), "words": words, "out": str(out)}


@pytest.fixture
def two_processes(recipe: str, data: Path, shared: Path) -> Path:
    """All trainings of a recipe in a world of two, one after the other, each in a folder of its own."""

    def train_all(folder: Path) -> None:
        folder.mkdir()
        names = [name for of, name in TRAININGS if of == recipe]
        (folder / "plan.json").write_text(json.dumps([arguments(recipe, name, data, folder / name) for name in names]))
        command = LAUNCH(2, "-m", worlds.__name__, folder / "plan.json")
        with executed(command, folder / "said", cwd=Path(__file__).parents[1]) as process:
            assert process.end() == 0, process.seen

    return made_once(shared, f"two-processes-{recipe}", train_all)


@pytest.mark.parametrize("recipe", [recipe for recipe, case in CASES.items() if "vq" in case.worlds])
def test_codes_die_and_are_revived_in_these_trainings(recipe: str, two_processes: Path) -> None:
    file = f"{registry.find(recipe).pipeline_class().exported}.safetensors"
    before, after = (load_file(step_folder(two_processes / "vq", step) / file) for step in (50, 52))
    codebooks = [name for name in before if name.endswith("cluster_size")]
    assert codebooks
    for name in codebooks:
        dead = before[name] < 0.1
        assert dead.any()
        assert (after[name][dead] > 0.1).any()


@pytest.mark.parametrize(("recipe", "name"), TRAININGS)
def test_two_processes_equal_one(recipe: str, name: str, data: Path, two_processes: Path, tmp_path: Path) -> None:
    one, two = tmp_path / "one", two_processes / name
    worlds.train(**arguments(recipe, name, data, one))

    # The same items, each by one process or the other.
    seen, first, second = (
        {tuple(each) for each in json.loads(file.read_text())}
        for file in (one / "seen-0.json", two / "seen-0.json", two / "seen-1.json")
    )
    assert seen == first | second
    assert len(first) < len(seen)
    assert len(second) < len(seen)
    assert steps_saved(one) == steps_saved(two)
    last = steps_saved(one)[-1]
    meta = [json.loads((step_folder(run, last) / "meta.json").read_text()) for run in (one, two)]
    assert meta[0]["items_seen"] == meta[1]["items_seen"]
    assert [each["world_size"] for each in meta] == [1, 2]

    # The same losses and metrics at every step.
    for ours, theirs in zip(metrics(two), metrics(one), strict=True):
        assert ours.keys() == theirs.keys()
        for key, value in theirs.items():
            if "time" not in key and "rate" not in key:
                assert ours[key] == pytest.approx(value, rel=1e-5, abs=1e-5), (ours["step"], key)

    # The same weights, EMA, codebooks and moments; with FSDP, each process has written its shard.
    if name != "fp32":
        for file in tensor_hashes(one, last):
            group = file.removesuffix(".safetensors")
            ours, theirs = (tensor_groups.read_tensors(step_folder(run, last), group) for run in (two, one))
            assert tensor_groups.is_sharded(step_folder(two, last), group) == (name == "sharded")
            torch.testing.assert_close(ours, theirs, rtol=1e-12, atol=1e-12, msg=lambda text, file=file: file + text)


STEADY = ("optim.decay_steps=12", "checkpoint.every=4", "checkpoint.keep=9")


def leg(recipe: str, data: Path, out: Path, steps: int) -> dict[str, Any]:
    made = arguments(recipe, resumed_training(recipe), data, out)
    words = (*made["words"], *STEADY, f"train.steps={steps}")
    return {**made, "words": words, "resume": steps > 4, "alone": steps == 8}


@pytest.fixture
def changing_worlds(recipe: str, data: Path, shared: Path) -> Path:
    """A run of two processes, resumed by one, resumed by two; in parts where that can be."""

    def train_all(folder: Path) -> None:
        folder.mkdir()
        plan = [leg(recipe, data, folder / "run", steps) for steps in (4, 8, 12)]
        (folder / "plan.json").write_text(json.dumps(plan))
        command = LAUNCH(2, "-m", worlds.__name__, folder / "plan.json")
        with executed(command, folder / "said", cwd=Path(__file__).parents[1]) as process:
            assert process.end() == 0, process.seen

    return made_once(shared, f"changing-worlds-{recipe}", train_all) / "run"


def resumed_training(recipe: str) -> str:
    names = case_of(recipe).worlds
    return next((name for name in ("sharded", "vq") if name in names), next(iter(names)))


@pytest.mark.parametrize("recipe", RESUMED)
def test_two_processes_then_one_then_two_equal_one(
    recipe: str, data: Path, changing_worlds: Path, tmp_path: Path
) -> None:
    one, changing = tmp_path / "one", changing_worlds
    whole = arguments(recipe, resumed_training(recipe), data, one)
    worlds.train(**{**whole, "words": (*whole["words"], *STEADY, "train.steps=12")})

    sizes = [json.loads((step_folder(changing, step) / "meta.json").read_text())["world_size"] for step in (4, 8, 12)]
    assert sizes == [2, 1, 2]

    # Every item of every step, by one process or the other, once.
    learned = [tuple(each) for file in changing.glob("learned-*.json") for each in json.loads(file.read_text())]
    expected = [tuple(each) for each in json.loads((one / "learned-12-0.json").read_text())]
    assert len(expected) == 12 * 4
    assert sorted(learned) == sorted(expected)

    for file in tensor_hashes(one, 12):
        group = file.removesuffix(".safetensors")
        ours, theirs = (tensor_groups.read_tensors(step_folder(run, 12), group) for run in (changing, one))
        torch.testing.assert_close(ours, theirs, rtol=1e-12, atol=1e-12, msg=lambda text, file=file: file + text)
