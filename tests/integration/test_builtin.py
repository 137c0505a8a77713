"""A built-in model without training, the mesh tokenizer `coordinates`, is named in place of a trained one."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
import yaml
from safetensors.torch import load_file

from contract.cases import CASES, TINY_MESH_AUTOENCODER
from helpers import error_line, quintet, succeed, tree
from quintet import CoordinateTokenizer
from quintet.media.mesh import Mesh, dequantise, quantise, read_mesh
from quintet.media.mesh_formats import read_soup
from quintet.pipelines.loading import open_pipeline


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The current folder of the tests: the name of the model must not become a folder."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


def corners(mesh: Mesh) -> set[tuple[tuple[int, ...], ...]]:
    """The faces as bins, whatever the order of vertices and faces."""
    cells = quantise(mesh.vertices, 64)[mesh.faces]
    return {tuple(sorted(map(tuple, face))) for face in cells.tolist()}


def test_codes_are_exact_to_the_bin_and_back(meshes: Path) -> None:
    succeed("encode", "coordinates:64", meshes, "--out", "codes")
    succeed("decode", "coordinates:64", "codes", "--out", "decoded")

    codes = load_file("codes/codes.safetensors")["codes"]
    rows = [json.loads(line) for line in Path("codes/items.jsonl").read_text().splitlines()]
    files = sorted(Path("decoded").glob("[!.]*"))
    assert len(rows) == len(codes) == len(files)
    lengths = set()
    for row, own, file in zip(rows, codes, files, strict=True):
        mesh = read_mesh(meshes / row["file"], bins=64)
        lengths.add(len(mesh.faces))
        # z, y, x of each corner; padding after the last face.
        expected = quantise(mesh.vertices, 64)[mesh.faces][..., ::-1].reshape(-1, 9)
        assert (own[: len(expected)].numpy() == expected).all()
        assert (own[len(expected) :] == -1).all()
        decoded = read_soup(file)
        assert corners(Mesh(decoded.vertices, decoded.faces)) == corners(mesh)
        assert np.allclose(dequantise(quantise(decoded.vertices, 64), 64), decoded.vertices)
    assert max(lengths) == codes.shape[1]
    assert len(lengths) > 1


def test_it_is_evaluated_sampled_and_exported_like_a_trained_one(meshes: Path) -> None:
    succeed("eval", "coordinates", "--data", meshes, "--out", "eval.json")
    succeed("sample", "coordinates", "--data", meshes, "--num", 2, "--out", "out")
    succeed("export", "coordinates:16", "hub")
    for name in ("coordinates:16", "hub"):
        succeed("encode", name, meshes, "--out", f"codes of {name}")

    metrics = json.loads(Path("eval.json").read_text())
    assert metrics["coordinate_exact"] == 1
    assert Path("out/reconstructions.png").is_file()
    assert tree(Path("codes of hub")) == tree(Path("codes of coordinates:16"))
    assert CoordinateTokenizer.from_pretrained("hub").bins == 16
    assert not Path("coordinates").exists()


def test_a_folder_of_that_name_is_named_by_its_path() -> None:
    succeed("export", "coordinates:16", "./coordinates")
    assert open_pipeline("coordinates").model.bins == 128
    assert open_pipeline("./coordinates").model.bins == 16
    assert open_pipeline(Path("coordinates")).model.bins == 16


def test_a_run_names_it_and_keeps_a_copy(meshes: Path) -> None:
    tiny = [word for word in CASES["mesh-transformer"].tiny if not word.startswith("tokenizer=")]
    words = ("--tokenizer", "coordinates:24", "--out", "run", *tiny, "train.steps=2")
    succeed("train", "mesh-transformer", meshes, *words)

    assert yaml.safe_load(Path("run/config.yaml").read_text())["tokenizer"] == "coordinates:24"
    copy = open_pipeline("run/tokenizer")
    assert isinstance(copy.model, CoordinateTokenizer)
    assert copy.model.bins == 24
    # Resuming, sampling and exporting use the copy.
    frozen = open_pipeline("run").frozen["tokenizer"]
    assert frozen.reference == str(Path("run/tokenizer"))
    assert torch.equal(frozen.model.centres, copy.model.centres)
    succeed("resume", "run", "train.steps=3")
    succeed("export", "run", "hub")
    assert open_pipeline("hub").frozen["tokenizer"].digest == frozen.digest


@pytest.mark.parametrize(
    ("words", "mentions"),
    [
        ("eval coordinates --data {meshes}", ("coordinates has no run folder", "--out")),
        ("eval coordinates --out eval.json", ("has no training data", "--data")),
        ("sample coordinates", ("has no training data", "--data")),
        ("encode coordinates:many {meshes}", ("model.bins", "'many'")),
        ("encode coordinates:1 {meshes}", ("model.bins", "2")),
        ("encode coordinates: {meshes}", ("model.bins",)),
        ("encode coordinate {meshes}", ("coordinate does not exist",)),
        ("resume coordinates", ("coordinates does not exist",)),
        ("train mesh-autoencoder {meshes} --init coordinates", ("--init coordinates", "without trained weights")),
        ("train mesh-autoencoder {meshes} model.kind=coordinates", ("cannot be trained", "--tokenizer coordinates")),
        ("train mesh-transformer {meshes} --preset debug", ("--tokenizer coordinates",)),
        ("train muse {meshes} --tokenizer coordinates", ("image tokenizer", "mesh-autoencoder")),
    ],
)
def test_mistakes(words: str, mentions: tuple[str, ...], meshes: Path, here: Path) -> None:
    tiny = TINY_MESH_AUTOENCODER if "train mesh-autoencoder" in words else ()
    outcome = quintet(*words.replace("{meshes}", str(meshes)).split(), *tiny)

    sentence = error_line(outcome.errors)
    assert outcome.code == 2
    for mention in mentions:
        assert mention in sentence
    assert "unexpected" not in sentence
    assert tree(here) == {}
