"""Every recipe: the run folder, exact resumption, metrics, export, codes."""

from __future__ import annotations

import json
import shutil
import subprocess
from importlib import import_module
from pathlib import Path

import pytest
import torch
import yaml
from safetensors.torch import load_file

from contract.cases import CASES, Case, Train
from helpers import copied, error_line, metrics, quintet, state, step_folder, steps_saved, succeed, tensor_hashes, tree
from quintet import registry
from quintet.codes import file_loader
from quintet.pipelines.base import as_tokenizer
from quintet.pipelines.loading import open_pipeline
from quintet.runs import task_in


def test_every_recipe_has_a_case() -> None:
    assert CASES.keys() == registry.RECIPES.keys()


def test_the_debug_preset_trains_as_it_is(recipe: str, case: Case, data: Path, tmp_path: Path) -> None:
    succeed("train", recipe, data, "--out", tmp_path / "run", "--preset", "debug", *case.links)
    assert state(tmp_path / "run")["status"] == "finished"


# --- the folder ---------------------------------------------------------------------------------------------------


def test_a_run_folder_has_the_documented_layout(recipe: str, finished: Path) -> None:
    config = yaml.safe_load((finished / "config.yaml").read_text())
    assert (config["recipe"], config["train"]["steps"]) == (recipe, 12)

    status = state(finished)
    assert (status["status"], status["step"], status["steps"]) == ("finished", 12, 12)
    assert status["best"]["metric"] == registry.find(recipe).task_class().traits.best[0]
    assert {"heartbeat", "pid", "host"} <= status.keys()

    rows = metrics(finished)
    assert [row["step"] for row in rows if "train/lr" in row] == [*range(1, 13)]
    assert any(name.startswith("validation/") for row in rows for name in row)

    record = json.loads((finished / "data.json").read_text())
    assert record["fingerprint"]
    assert record["train"]
    assert not {*record["train"]} & {*record["validation"]}
    assert record["skipped"] == {}

    assert (finished / "log.txt").read_text()
    assert (finished / "lock").exists()
    for folder in sorted((finished / "samples").iterdir()):
        described = [json.loads(line)["file"] for line in (folder / "samples.jsonl").read_text().splitlines()]
        assert {path.name for path in folder.iterdir()} == {*described, "samples.jsonl"}
    assert [path.name for path in sorted((finished / "samples").iterdir())] == ["step-00000006", "step-00000012"]


def test_checkpoints_are_complete_and_readable_without_quintet(recipe: str, finished: Path) -> None:
    checkpoints = finished / "checkpoints"
    assert steps_saved(finished) == [4, 8, 12]
    assert (checkpoints / "latest").read_text() == "step-00000012\n"
    assert (checkpoints / (checkpoints / "best").read_text().strip()).is_dir()
    made = task_in(finished, registry.read_config(finished / "config.yaml"))
    for step in steps_saved(finished):
        folder = step_folder(finished, step)
        subprocess.run(["sha256sum", "--check", "--strict", "--quiet", "SHA256SUMS"], cwd=folder, check=True)
        listed = {line.split("  ")[1] for line in (folder / "SHA256SUMS").read_text().splitlines() if "  " in line}
        assert listed == tree(folder).keys() - {"SHA256SUMS"}
        assert listed == {
            *("meta.json", "config.yaml"),
            *(f"{name}.safetensors" for name in made.modules),
            *(f"ema/{name}.safetensors" for name in made.averaged),
            *(f"optim/{phase.name}.{suffix}" for phase in made.phases for suffix in ("safetensors", "json")),
        }
        meta = json.loads((folder / "meta.json").read_text())
        assert (meta["recipe"], meta["step"]) == (recipe, step)
        assert meta["items_seen"] == step * made.config.train.batch_size


# --- resuming -----------------------------------------------------------------------------------------------------


HOW = [
    (recipe, how)
    for recipe, case in CASES.items()
    for how in ("", "train.grad_accum_steps=2", "engine.precision=bf16", *case.resumed)
]


@pytest.mark.parametrize(("recipe", "how"), HOW, indirect=["recipe"])
def test_two_halves_equal_an_uninterrupted_run(how: str, train: Train, tmp_path: Path) -> None:
    words = ("optim.decay_steps=12", *how.split())
    whole = train(tmp_path / "whole", *words)
    parts = train(tmp_path / "parts", *words, "train.steps=6")
    succeed("resume", parts, "train.steps=12")

    assert tensor_hashes(parts, 12) == tensor_hashes(whole, 12)
    assert figures_after(parts, 6) == figures_after(whole, 6)


def test_every_command_works_with_a_run_in_bf16(case: Case, train: Train, data: Path, tmp_path: Path) -> None:
    run = train(tmp_path / "run", "engine.precision=bf16", "train.steps=2", "eval.every=2")
    succeed("eval", run)
    succeed("sample", run, "--num", 2, "--out", tmp_path / "samples")
    if case.tokenizer:
        succeed("encode", run, data, "--out", tmp_path / "codes")
        succeed("decode", run, tmp_path / "codes", "--out", tmp_path / "decoded")
    if state(run)["recipe"] == "mulan":
        succeed("search", run, data, "--text", "a flute")


def figures_after(run: Path, step: int) -> list[dict[str, object]]:
    """The rows of metrics.jsonl without what no two runs have in common."""
    return [
        {name: value for name, value in row.items() if "time" not in name and "rate" not in name}
        for row in metrics(run)
        if row["step"] > step
    ]


def test_accumulation_does_not_change_the_step(case: Case, train: Train, tmp_path: Path) -> None:
    if case.additive is None:
        pytest.skip("its loss is a mean over tokens whose number differs between micro-batches")
    words = (*case.additive, "engine.precision=fp64")
    once = train(tmp_path / "once", *words)
    twice = train(tmp_path / "twice", *words, "train.grad_accum_steps=2")
    for name in tensor_hashes(once, 12):
        ours, theirs = (load_file(step_folder(run, 12) / name) for run in (once, twice))
        torch.testing.assert_close(ours, theirs, rtol=1e-9, atol=1e-9, msg=lambda text, name=name: f"{name}: {text}")


# --- looking ------------------------------------------------------------------------------------------------------


def test_evaluation_is_repeatable_and_flat(recipe: str, finished: Path, tmp_path: Path) -> None:
    run = copied(finished, tmp_path / "run")
    first = succeed("eval", run)
    written = (run / "eval.json").read_bytes()
    second = succeed("eval", run)

    assert (run / "eval.json").read_bytes() == written
    assert first.output == second.output
    figures = json.loads(written)
    assert all(type(value) in (int, float) for value in figures.values())
    assert registry.find(recipe).task_class().traits.best[0] in figures
    averaged = {name for name in figures if not name.startswith("live/")}
    # Generated media are judged for the EMA weights only.
    assert {f"live/{name}" for name in averaged} >= figures.keys() - averaged
    assert {name: value for name, value in tree(run).items() if name != "eval.json"} == tree(finished)


def test_an_exported_model_gives_the_same_metrics(recipe: str, finished: Path, tmp_path: Path) -> None:
    hub = tmp_path / "hub"
    succeed("export", finished, hub)
    # Away from its run, as on another machine.
    hub = Path(shutil.move(hub, tmp_path / "moved"))
    succeed("eval", finished, "--out", tmp_path / "run.json")
    succeed("eval", hub, "--out", tmp_path / "hub.json")

    of_run, of_hub = (json.loads((tmp_path / f"{name}.json").read_text()) for name in ("run", "hub"))
    assert of_hub == {name: value for name, value in of_run.items() if not name.startswith("live/")}

    entry = registry.find(recipe)
    module = entry.pipeline_class().exported
    names = [name for name in entry.models if name == json.loads((hub / "config.json").read_text())["class"]]
    model_class = getattr(import_module(entry.public_names()[names[0]]), names[0])
    model = model_class.from_pretrained(hub)
    assert not model.training
    torch.testing.assert_close(
        model.state_dict(), load_file(step_folder(finished, 12) / "ema" / f"{module}.safetensors"), rtol=0, atol=0
    )
    assert f"# {names[0]}" in (hub / "README.md").read_text()


def test_codes_make_the_round_trip(case: Case, finished: Path, data: Path, tmp_path: Path) -> None:
    codes, decoded = tmp_path / "codes", tmp_path / "decoded"
    if not case.tokenizer:
        refused = quintet("encode", finished, data, "--out", codes)
        assert refused.code == 2
        assert "not a tokenizer" in error_line(refused.errors)
        return
    succeed("encode", finished, data, "--out", codes)
    succeed("decode", finished, codes, "--out", decoded)

    rows = [json.loads(line) for line in (codes / "items.jsonl").read_text().splitlines()]
    saved = load_file(codes / "codes.safetensors")["codes"]
    assert len(rows) == len(saved) == len(list(decoded.glob("[!.]*")))

    keys = {"data.path": str(data), "data.validation_path": str(data)}
    tokenizer = as_tokenizer(open_pipeline(finished)).with_keys(keys)
    loader, _ = file_loader(tokenizer)
    for row in rows[:3]:
        batch = loader.single(row["row"])
        assert batch.names == (row["file"],)
        with tokenizer.inference():
            own = tokenizer.encode_batch(batch).int()
            # Items of other lengths lie in the same tensor.
            assert torch.equal(own, saved[row["row"]][None, : own.shape[1]])
            assert (saved[row["row"]][own.shape[1] :] == -1).all()
            (artifact,) = tokenizer.decode_files(saved[row["row"]][None].long(), "again")
        artifact.write(tmp_path / artifact.file)
        (file,) = decoded.glob(f"{row['row']:05d}-*")
        assert file.read_bytes() == (tmp_path / artifact.file).read_bytes()
