"""Every recipe on a GPU, as far as that can be tried without one: the fake device of `tests/fakegpu` refuses what a GPU
refuses, and computes what the CPU computes.

One process per recipe trains, resumes and applies a model there. Its metrics must be those of the CPU.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import asdict
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import soundfile
from PIL import Image

from contract.cases import GOLDEN, Case
from fakegpu.commands import run_all
from helpers import (
    TINY,
    Process,
    forked,
    free_port,
    log_text,
    metrics,
    step_folder,
    steps_saved,
    succeed,
    tensor_hashes,
)
from quintet import registry
from quintet.common.weights.checkpoint import read_json
from quintet.pipelines.base import Embedder, Generator, Tokenizer
from quintet.training import loss_scale
from quintet.training.state import Progress

KEYS = ("optim.decay_steps=4", "eval.every=2", "sample.every=2", "checkpoint.every=2")
FEW = ("eval.num_generated=2", "eval.batch_size=2")
WITH_ROWS = [
    name for name, entry in registry.RECIPES.items() if issubclass(entry.pipeline_class(), Generator | Embedder)
]
"""Recipes that also gather rows for their metrics; all others only add numbers."""
TOLERANCE = 1e-5
MEASURED = ("time", "rate/")
"""Parts of the names of metrics that are measured with a clock."""

FACE = "v -0.9 -0.9 -0.9\nv 0.5 -0.9 -0.9\nv -0.9 0.5 -0.9\nf 1 2 3\n"


@pytest.fixture
def inputs(data: Path, tmp_path: Path) -> dict[str, Path]:
    """Files for the options of `quintet sample`, by the names that the cases use."""
    media = [path for path in sorted(data.rglob("*")) if path.is_file() and path.parent != data]
    made = {
        path.stem: tmp_path / path
        for path in map(Path, ("mask.png", "scenes.txt", "face.obj", "cloud.xyz", "clip.wav"))
    }
    Image.fromarray(np.pad(np.full((16, 16), 255, np.uint8), ((0, 16), (0, 16)))).save(made["mask"])
    made["scenes"].write_text("a red circle\na blue square\n", encoding="utf-8")
    made["face"].write_text(FACE, encoding="utf-8")
    np.savetxt(made["cloud"], np.random.default_rng(0).normal(size=(300, 3)))
    soundfile.write(made["clip"], np.sin(np.arange(800) / 8), 8000)
    few = tmp_path / "few" / "media"
    few.mkdir(parents=True)
    for path in media[:3]:
        shutil.copy(path, few)
    return {"medium": media[0], "few": few.parent, **made}


def commands(recipe: str, case: Case, run: Path, inputs: Mapping[str, Path]) -> list[tuple[object, ...]]:
    """What can be done with a trained model of the recipe."""
    out, kind = run.with_name(f"{run.name}-out"), registry.find(recipe).pipeline_class()
    done: list[tuple[object, ...]] = [("eval", run), ("export", run, out / "export")]
    done += [
        ("sample", run, "--num", 1, "--out", out / f"sample-{number}", *(word.format(**inputs) for word in words))
        for number, words in enumerate(((), *case.samples))
    ]
    if issubclass(kind, Tokenizer):
        done.append(("encode", run, inputs["few"], "--out", out / "codes"))
        done.append(("decode", run, out / "codes", "--out", out / "decoded"))
    if issubclass(kind, Embedder):
        done.append(("embed", run, "--audio", inputs["few"], "--text", "a note", "--out", out / "vectors.npz"))
        done.append(("encode", run, inputs["few"], "--layer", 1, "--clusters", 2, "--out", out / "semantic"))
    return done


def test_a_gpu_does_what_the_cpu_does(
    recipe: str, case: Case, data: Path, inputs: Mapping[str, Path], tmp_path: Path
) -> None:
    cpu, gpu = tmp_path / "cpu", tmp_path / "gpu"
    words = ("train", recipe, data, *case.tiny, *case.brief, *KEYS, *case.on_device)
    succeed(*words, "--out", cpu)
    for each in commands(recipe, case, cpu, inputs):
        succeed(*each)

    # In two parts on the device, which must make no difference.
    there = [
        (*words, "train.steps=2", "--out", gpu),
        ("resume", gpu, "train.steps=4"),
        *commands(recipe, case, gpu, inputs),
    ]
    plan = [[str(word) for word in command] for command in there]
    with forked([], tmp_path / "said", partial(run_all, plan)) as process:
        assert process.end() == 0, process.seen

    assert steps_saved(gpu) == steps_saved(cpu) == [2, 4]
    for ours, theirs in zip(metrics(gpu), metrics(cpu), strict=True):
        assert_close(ours, theirs, f"step {theirs['step']}")
    results = [json.loads((run / "eval.json").read_text()) for run in (gpu, cpu)]
    assert_close(results[0], results[1], "eval.json")
    files = [sorted(path.relative_to(out).as_posix() for path in out.rglob("*")) for out in map(results_of, (gpu, cpu))]
    assert files[0] == files[1]


@pytest.mark.parametrize(("recipe", "keys"), [("muse", ()), ("mulan", ("train.grad_accum_steps=2",))])
def test_fp16_skips_steps_that_overflow_and_resumes_exactly(
    recipe: str, keys: tuple[str, ...], case: Case, data: Path, tmp_path: Path
) -> None:
    """With the rules of CUDA's autocast, and a first loss scale that is far too large."""
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    every = ("eval.every=12", "sample.every=12", "checkpoint.every=3")
    words = ("train", recipe, data, *case.tiny, *every, *keys, "engine.precision=fp16", "optim.decay_steps=12")
    there = [(*words, "--out", whole), (*words, "train.steps=3", "--out", parts), ("resume", parts, "train.steps=12")]
    plan = [[str(word) for word in command] for command in there]
    with forked([], tmp_path / "said", partial(run_from_large_scale, plan)) as process:
        assert process.end() == 0, process.seen

    first, last = (read_json(step_folder(parts, step), "meta") for step in (3, 12))
    assert first["bad_steps"] > 0
    assert last["loss_scale"] == LARGE_SCALE / 2 ** last["bad_steps"]
    assert last["bad_steps"] < 12
    assert last["steps_since_overflow"] > 0
    assert "the gradients overflow in fp16, step skipped; the loss scale is now" in log_text(parts)
    # The first part also validates at its end.
    names = [name for name in asdict(Progress()) if not name.startswith("best")]
    expected = read_json(step_folder(whole, 12), "meta")
    assert {name: last[name] for name in names} == {name: expected[name] for name in names}
    assert tensor_hashes(parts, 12) == tensor_hashes(whole, 12)


LARGE_SCALE = 2.0**24


def run_from_large_scale(commands: list[list[str]]) -> None:
    loss_scale.INITIAL = LARGE_SCALE
    run_all(commands)


def test_fp16_is_refused_where_a_loss_takes_gradients(pictures: Path, tmp_path: Path) -> None:
    words = ["train", "vqgan", pictures, "--out", tmp_path / "run", *TINY, "engine.precision=fp16"]
    with forked([], tmp_path / "said", partial(run_all, [[str(word) for word in words]])) as process:
        assert process.end() == 1
    assert "recipe vqgan cannot be trained in fp16" in process.seen
    assert not (tmp_path / "run").exists()


def test_a_gpu_that_emulates_bf16_is_named(pictures: Path, tmp_path: Path) -> None:
    words = ("train", "vqgan", pictures, "--out", tmp_path / "run", *TINY, "train.steps=1", "engine.precision=bf16")
    with forked([], tmp_path / "said", partial(run_all, [[str(word) for word in words]])) as process:
        assert process.end() == 0, process.seen
    assert "warning: this GPU has no bf16 instructions" in log_text(tmp_path / "run")


def test_two_gpus_train_what_one_cpu_does(recipe: str, case: Case, data: Path, tmp_path: Path) -> None:
    """The collectives of a training step, of validation and of saving are given tensors of the device only."""
    words = ("train", recipe, data, *case.tiny, *case.brief, *KEYS, "--out")
    run_two_gpus([[str(word) for word in (*words, tmp_path / "two")]], tmp_path)
    succeed(*words, tmp_path / "one")
    assert steps_saved(tmp_path / "two") == steps_saved(tmp_path / "one")
    for ours, theirs in zip(metrics(tmp_path / "two"), metrics(tmp_path / "one"), strict=True):
        assert_close(ours, theirs, f"step {theirs['step']}")


def test_two_gpus_evaluate_what_one_cpu_does(tmp_path: Path) -> None:
    processes = run_two_gpus(evaluations(tmp_path / "two"), tmp_path)
    for words in evaluations(tmp_path / "cpu"):
        succeed(*words)
    for recipe in WITH_ROWS:
        ours, theirs = (json.loads((tmp_path / by / f"{recipe}.json").read_text()) for by in ("two", "cpu"))
        assert_close(ours, theirs, recipe)
    # The first process alone writes the metrics, and prints them.
    assert "written to" in processes[0].seen
    assert "written to" not in processes[1].seen


def run_two_gpus(commands: list[list[str]], folder: Path) -> list[Process]:
    """Run commands in one group of two processes, whose backend refuses CPU tensors, as NCCL does."""
    address = {"WORLD_SIZE": 2, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": free_port()}
    run = partial(run_all, commands, refuse_float64=False, nccl=True)
    with ExitStack() as stack:
        processes = [
            stack.enter_context(
                forked([], folder / f"said-{rank}", run, **{"RANK": rank, "LOCAL_RANK": rank, **address})
            )
            for rank in range(2)
        ]
        for process in processes:
            assert process.end() == 0, process.seen
    return processes


def evaluations(out: Path) -> list[list[str]]:
    """The commands that evaluate the golden export of each recipe on its data."""
    return [
        ["eval", str(folder / "hub"), "--data", str(folder / "data"), "--out", str(out / f"{recipe}.json"), *FEW]
        for recipe in WITH_ROWS
        for folder in (GOLDEN / f"{recipe}-format-1",)
    ]


def results_of(run: Path) -> Path:
    return run.with_name(f"{run.name}-out")


def assert_close(ours: Mapping[str, float], theirs: Mapping[str, float], what: str) -> None:
    assert ours.keys() == theirs.keys()
    for key, value in theirs.items():
        if not any(part in key for part in MEASURED):
            assert ours[key] == pytest.approx(value, rel=TOLERANCE, abs=TOLERANCE), (what, key)
