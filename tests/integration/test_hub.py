"""Models on the hub: pushed, opened, recorded by commit and hash, and refused if they changed or are pickles."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from contract.cases import TINY_MUSE
from helpers import TINY, error_line, quintet, succeed, train_tiny
from hub_server import Hub, serving
from quintet import VQGanVAE
from quintet.pipelines.loading import open_pipeline
from quintet.registry import read_config

constants = pytest.importorskip("huggingface_hub.constants")

NAME = "user/name"


@pytest.fixture(autouse=True)
def _online(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only to the server of a test. Tests of frozen encoders forbid the hub for the whole process."""
    monkeypatch.delenv("HF_HUB_OFFLINE", raising=False)
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    """An empty hub and an empty cache."""
    with serving() as (hub, address):
        monkeypatch.setenv("HF_ENDPOINT", address)
        monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "cache"))
        yield hub


@pytest.fixture
def commit(hub: Hub, trained: Path, tmp_path: Path) -> str:
    """The commit of a tokenizer on the hub."""
    succeed("export", trained, tmp_path / "exported")
    return hub.commit(NAME, read_files(tmp_path / "exported"))


def read_files(folder: Path) -> dict[str, bytes]:
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_a_pushed_model_is_the_model(hub: Hub, trained: Path) -> None:
    outcome = succeed("export", trained, "--push", NAME)
    commit = hub.newest(NAME)
    assert f"pushed: hub:{NAME}@{commit}" in outcome.output
    names = {path.rpartition(".")[2] for path in hub.repositories[NAME][commit]}
    assert names == {"safetensors", "json", "md", "SHA256SUMS"}
    assert open_pipeline(f"hub:{NAME}").digest == open_pipeline(trained).digest
    assert VQGanVAE.from_pretrained(f"hub:{NAME}@{commit}").config == open_pipeline(trained).config.model


def test_runs_record_commit_and_hash(hub: Hub, commit: str, pictures: Path, tmp_path: Path) -> None:
    start = ("--init", f"hub:{NAME}@main", "train.steps=1")
    train_tiny(pictures, tmp_path / "tuned", *start)
    init = str(read_config(tmp_path / "tuned" / "config.yaml").init)
    assert init.startswith(f"hub:{NAME}@{commit}#")

    words = [word for word in TINY_MUSE if not word.startswith("tokenizer=")]
    run = tmp_path / "muse"
    command = ("train", "muse", pictures, "--tokenizer", f"hub:{NAME}", "--out", run, *words, "train.steps=1")
    succeed(*command)
    assert read_config(run / "config.yaml").tokenizer == init  # type: ignore[attr-defined]
    assert (run / "tokenizer" / "model.safetensors").is_file()

    # The known commit needs no network, and a run not even the cache.
    hub.requests.clear()
    assert open_pipeline(init).reference == init
    shutil.rmtree(tmp_path / "cache")
    succeed("sample", run, "--text", "a red circle", "--num", 1, "--out", tmp_path / "out")
    assert not hub.requests


def test_changed_files_at_the_same_commit_are_refused(hub: Hub, commit: str, tmp_path: Path) -> None:
    origin = open_pipeline(f"hub:{NAME}").origin
    assert origin is not None
    reference = origin.reference
    files = hub.repositories[NAME][commit]
    settings = json.loads(files["config.json"])
    files["config.json"] = json.dumps({**settings, "step": 99}).encode()
    shutil.rmtree(tmp_path / "cache")
    outcome = quintet("export", reference, tmp_path / "again")
    assert outcome.code == 2
    assert f"hub:{NAME}@{commit} does not have the files that were recorded" in error_line(outcome.errors)


REFUSED = [
    ("hub:user/nothing", "hub:user/nothing does not exist, or you may not read it"),
    (f"hub:{NAME}@v2", f"hub:{NAME}@v2 does not exist: the repository has no such revision"),
    ("hub:user", "hub:user is not of the form hub:USER/NAME"),
    ("hub:user/pickles", "hub:user/pickles has no safetensors weights, only pytorch_model.bin, and quintet reads no p"),
]


@pytest.mark.parametrize(("reference", "expected"), REFUSED, ids=[reference for reference, _ in REFUSED])
def test_what_cannot_be_opened_is_one_sentence(
    reference: str, expected: str, hub: Hub, commit: str, pictures: Path, tmp_path: Path
) -> None:
    hub.commit("user/pickles", {"config.json": b"{}", "pytorch_model.bin": b"\x80\x04."})
    run = tmp_path / "run"
    outcome = quintet("train", "vqgan", pictures, "--out", run, *TINY, "--init", reference)
    assert outcome.code == 2
    assert expected in error_line(outcome.errors)
    assert not any("pytorch_model.bin" in request for request in hub.requests)


def test_without_a_network_the_hub_is_one_sentence(
    trained: Path, pictures: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with serving() as (_, address):
        pass  # nobody listens there any more
    monkeypatch.setenv("HF_ENDPOINT", address)
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "cache"))
    for words, use in (
        (("train", "vqgan", pictures, "--out", tmp_path / "run", *TINY, "--init", f"hub:{NAME}"), "read"),
        (("export", trained, "--push", NAME), "write"),
    ):
        outcome = quintet(*words)
        assert outcome.code == 1
        assert f"the hub cannot be reached to {use} hub:{NAME}" in error_line(outcome.errors)


def test_a_repository_of_somebody_else_is_one_sentence(hub: Hub, trained: Path) -> None:
    hub.is_writable = False
    outcome = quintet("export", trained, "--push", NAME)
    assert outcome.code == 2
    assert f"hub:{NAME} may not be written by you" in error_line(outcome.errors)
    for words in (("export", trained), ("export", trained, "--push", "name")):
        assert quintet(*words).code == 2
