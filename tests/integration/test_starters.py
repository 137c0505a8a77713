"""Starter models: opened by name wherever a model is named, listed, refused if damaged, and part of the package."""

from __future__ import annotations

import shutil
import socket
import tomllib
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from contract.cases import TINY_MUSE
from helpers import TINY, error_line, quintet, succeed
from quintet import MusePipeline, VQGanVAE
from quintet.common.weights import checkpoint, starters
from quintet.pipelines.loading import open_pipeline
from quintet.registry import read_config

REPOSITORY = Path(__file__).parents[2]
TOKENIZER, GENERATOR = "starter:image-tokenizer", "starter:emoji"
LIMIT = 80_000_000
"""Bytes of all starter models together."""


@pytest.fixture
def models(trained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with one starter model, an image tokenizer. Whoever opens a connection fails."""

    def refuse(*_: object) -> None:
        raise AssertionError("a starter model needs no network")

    folder = tmp_path / "models"
    monkeypatch.setattr(starters, "root", lambda: folder)
    monkeypatch.setattr(socket.socket, "connect", refuse)
    publish(trained, folder / "image-tokenizer")
    return folder


def publish(run: Path, folder: Path) -> None:
    """Export a run in bf16 as a starter model."""
    pipeline = open_pipeline(run)
    contents = pipeline.contents({}, torch.bfloat16)
    about = {"recipe": pipeline.recipe, "summary": "for tests", "licenses": ["MIT"], "figures": {"psnr": 12.345}}
    contents.json[starters.ABOUT] = about
    checkpoint.write_folder(folder, contents)


def test_a_model_is_trained_on_a_starter_and_becomes_one(models: Path, pictures: Path, tmp_path: Path) -> None:
    tokenizer = open_pipeline(TOKENIZER)
    assert next(tokenizer.model.parameters()).dtype == torch.float32
    words = [word for word in TINY_MUSE if not word.startswith("tokenizer=")]
    run = tmp_path / "muse"
    succeed("train", "muse", pictures, "--tokenizer", TOKENIZER, "--out", run, *words, "train.steps=1")
    config = read_config(run / "config.yaml")
    assert config.tokenizer == tokenizer.origin.reference  # type: ignore[attr-defined,union-attr]
    assert config.tokenizer.startswith(f"{TOKENIZER}#")  # type: ignore[attr-defined]

    publish(run, models / "emoji")
    out = tmp_path / "out"
    succeed("sample", GENERATOR, "--text", "a red heart", "--num", 1, "--out", out)
    assert (out / "samples.jsonl").is_file()
    images = MusePipeline.from_pretrained(GENERATOR)(["a red heart"], num=2, seed=0)
    assert images.shape == (2, 3, 16, 16)
    shutil.rmtree(models / "image-tokenizer")  # a generator contains its tokenizer
    assert torch.equal(MusePipeline.from_pretrained(GENERATOR)(["a red heart"], num=2, seed=0), images)


def test_a_run_starts_from_a_starter_and_records_its_hash(models: Path, pictures: Path, tmp_path: Path) -> None:
    succeed("train", "vqgan", pictures, "--out", tmp_path / "run", *TINY, "--init", TOKENIZER, "train.steps=1")
    init = read_config(tmp_path / "run" / "config.yaml").init
    assert init == open_pipeline(TOKENIZER).origin.reference  # type: ignore[union-attr]
    assert VQGanVAE.from_pretrained(init).config == open_pipeline(TOKENIZER).config.model


def test_other_commands_take_the_name(models: Path, pictures: Path, tmp_path: Path) -> None:
    succeed("eval", TOKENIZER, "--data", pictures, "--out", tmp_path / "eval.json")
    succeed("encode", TOKENIZER, pictures, "--out", tmp_path / "codes")
    succeed("decode", TOKENIZER, tmp_path / "codes", "--out", tmp_path / "decoded")
    succeed("export", TOKENIZER, tmp_path / "exported")
    assert open_pipeline(tmp_path / "exported").digest == open_pipeline(TOKENIZER).digest
    outcome = quintet("eval", TOKENIZER, "--data", pictures)
    assert outcome.code == 2
    assert f"{TOKENIZER} has no run folder" in error_line(outcome.errors)


def test_starters_are_listed(models: Path) -> None:
    output = succeed("models").output
    for expected in (TOKENIZER, "for tests", "vqgan", "MB", "MIT", "psnr 12.3"):
        assert expected in output
    shutil.rmtree(models)
    assert "this installation has no starter models" in succeed("models").output


UNKNOWN = {
    "starter:image-tokeniser": f"does not exist; the nearest is {TOKENIZER}",
    "starter:": f"does not exist; the nearest is {TOKENIZER}",
    "starter:../models/image-tokenizer": f"does not exist; the nearest is {TOKENIZER}",
    f"{TOKENIZER}@4": f"does not exist; the nearest is {TOKENIZER}",
    f"{TOKENIZER}#{'0' * 64}": "is not the model that was recorded",
}


@pytest.mark.parametrize("reference", UNKNOWN)
def test_an_unknown_starter_is_one_sentence(reference: str, models: Path, tmp_path: Path) -> None:
    for words in (("export", reference, tmp_path / "out"), ("sample", reference, "--out", tmp_path / "out")):
        outcome = quintet(*words)
        assert outcome.code == 2
        assert UNKNOWN[reference] in error_line(outcome.errors)


def test_without_starters_the_error_says_so(models: Path, tmp_path: Path) -> None:
    shutil.rmtree(models)
    outcome = quintet("export", TOKENIZER, tmp_path / "out")
    assert outcome.code == 2
    assert f"{TOKENIZER} does not exist: this installation has no starter models" in error_line(outcome.errors)


DAMAGE = {
    "one bit": lambda folder: flip_bit(folder / "model.safetensors"),
    "no weights": lambda folder: (folder / "model.safetensors").unlink(),
    "no hashes": lambda folder: (folder / checkpoint.MANIFEST).unlink(),
    "another card": lambda folder: (folder / "README.md").write_text("# Other licences\n"),
    "another description": lambda folder: (folder / "starter.json").write_text("{}"),
}


@pytest.mark.parametrize("damage", DAMAGE)
def test_a_damaged_starter_is_refused_by_hash(damage: str, models: Path, pictures: Path, tmp_path: Path) -> None:
    DAMAGE[damage](models / "image-tokenizer")
    for words in (
        ("export", TOKENIZER, tmp_path / "out"),
        ("train", "vqgan", pictures, "--out", tmp_path / "run", *TINY, "--init", TOKENIZER),
    ):
        outcome = quintet(*words)
        assert outcome.code == 1
        assert "restore the file from the repository, or install quintet again" in error_line(outcome.errors)
    assert not (tmp_path / "run").exists()


def flip_bit(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)


def test_bf16_is_stored_hashed_and_loaded_as_float32(trained: Path, tmp_path: Path) -> None:
    succeed("export", trained, tmp_path / "full")
    succeed("export", trained, tmp_path / "small", "--dtype", "bf16")
    full, small = (load_file(tmp_path / name / "model.safetensors") for name in ("full", "small"))
    assert {tensor.dtype for tensor in small.values() if tensor.is_floating_point()} == {torch.bfloat16}
    assert all(torch.equal(tensor.to(small[name].dtype), small[name]) for name, tensor in full.items())
    loaded = open_pipeline(tmp_path / "small")
    assert all(torch.equal(value, small[name].to(value)) for name, value in loaded.model.state_dict().items())
    assert loaded.dtype == torch.float32
    checkpoint.verify(tmp_path / "small")
    # Rounding again changes nothing, so models that were trained on its codes stay valid.
    succeed("export", tmp_path / "small", tmp_path / "again", "--dtype", "bf16")
    assert open_pipeline(tmp_path / "again").digest == loaded.digest
    save_file(full, tmp_path / "small" / "model.safetensors")
    outcome = quintet("export", tmp_path / "small", tmp_path / "never")
    assert outcome.code == 1
    assert "model.safetensors is damaged" in error_line(outcome.errors)


def test_metrics_are_not_written_into_a_starter(models: Path, pictures: Path, tmp_path: Path) -> None:
    folder = models / "image-tokenizer"
    outcome = quintet("eval", folder, "--data", pictures)
    assert outcome.code == 2
    assert "--out" in error_line(outcome.errors)
    succeed("eval", folder, "--data", pictures, "--out", tmp_path / "eval.json")
    succeed("models")


def test_a_list_of_damaged_starters_is_refused(models: Path) -> None:
    about = models / "image-tokenizer" / "starter.json"
    about.write_text(about.read_text(encoding="utf-8").replace("12.345", "48.0"), encoding="utf-8")
    outcome = quintet("models")
    assert outcome.code == 1
    assert "starter.json is damaged" in error_line(outcome.errors)


def test_bf16_does_not_change_a_tokenizer_inside(trained: Path, pictures: Path, tmp_path: Path) -> None:
    run = tmp_path / "muse"
    words = [word for word in TINY_MUSE if not word.startswith("tokenizer=")]
    succeed("train", "muse", pictures, "--tokenizer", trained, "--out", run, *words, "train.steps=1")
    succeed("export", run, tmp_path / "small", "--dtype", "bf16")
    inside = open_pipeline(tmp_path / "small").frozen["tokenizer"]
    assert inside.digest == open_pipeline(trained).digest


def test_the_committed_starters_are_sound_small_and_in_the_wheel() -> None:
    names = starters.names()
    assert starters.root() == REPOSITORY / "models"
    assert names
    for name in names:
        folder = starters.fetch(f"starter:{name}").folder
        card = (folder / "README.md").read_text(encoding="utf-8")
        assert checkpoint.hash_file(folder / "model.safetensors") in card
        assert all(license in card for license in starters.read(name).licenses)
        assert (REPOSITORY / "models" / "build" / f"{name}.sh").is_file()
        assert open_pipeline(f"starter:{name}").recipe == starters.read(name).recipe
        assert not any(b'"/' in path.read_bytes() for path in folder.rglob("*.json"))
    assert sum(starters.read(name).size for name in names) <= LIMIT
    project = tomllib.loads((REPOSITORY / "pyproject.toml").read_text(encoding="utf-8"))
    included = project["tool"]["hatch"]["build"]["targets"]["wheel"]["force-include"]
    assert included == {f"models/{name}": f"quintet/models/{name}" for name in names}


def test_an_installed_package_contains_its_starters(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(starters, "_PACKAGE", tmp_path / "site-packages" / "quintet")
    assert starters.names() == []
    target = tmp_path / "site-packages" / "quintet" / "models" / "image-tokenizer"
    shutil.copytree(REPOSITORY / "models" / "image-tokenizer", target)
    assert starters.fetch(TOKENIZER).folder == target
