"""`make prove`: commands that exist, and records that are compared with the commits of their code."""

from __future__ import annotations

import importlib
import json
import re
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).parents[2]
NAMES = ("prove", "proofs", "side_by_side")


@pytest.fixture
def prove(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    for name in NAMES:
        monkeypatch.delitem(sys.modules, name, raising=False)
    module = importlib.import_module("prove")
    for name in NAMES:
        monkeypatch.setitem(sys.modules, name, sys.modules[name])
    return module


def git(folder: Path, *words: str) -> str:
    identity = ("-c", "user.name=a", "-c", "user.email=a@example.org", "-c", "commit.gpgsign=false")
    command = ["git", "-C", str(folder), *identity, *words]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()


def commit(folder: Path, file: str, text: str) -> str:
    (folder / file).parent.mkdir(parents=True, exist_ok=True)
    (folder / file).write_text(text, encoding="utf-8")
    git(folder, "add", "--all")
    git(folder, "commit", "--quiet", "--message", file)
    return git(folder, "rev-parse", "HEAD")


def write_record(folder: Path, name: str, *rows: dict[str, object]) -> None:
    path = folder / "benchmarks" / "results" / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")


def test_every_proof_names_code_scripts_and_targets_that_exist(prove: ModuleType) -> None:
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text("utf-8"), re.MULTILINE))
    for proof in prove.PROOFS:
        missing = [source for source in proof.sources if not (ROOT / source).exists()]
        assert missing == [], proof.name
        words = proof.command.split()
        if words[0] == "make":
            assert words[1] in targets, proof.command
        else:
            files = [word for word in words if word.endswith(".py")]
            assert files, proof.command
            assert all((ROOT / file).is_file() for file in files), proof.command
    names = [proof.name for proof in prove.PROOFS]
    assert len(names) == len(set(names))


def test_a_record_is_stale_after_a_commit_of_its_code_alone(prove: ModuleType, tmp_path: Path) -> None:
    git(tmp_path, "init", "--quiet")
    measured = commit(tmp_path, "code/model.py", "1")
    proof = prove.Proof("speed", "true", 1, ("code",), "speed.json")
    assert prove.state(proof, tmp_path) == "missing"
    write_record(tmp_path, "speed.json", {"commit": measured})
    commit(tmp_path, "docs/page.md", "other")
    assert prove.state(proof, tmp_path) == "current"
    commit(tmp_path, "code/model.py", "2")
    assert prove.state(proof, tmp_path) == "older than 1 commit of its code"
    write_record(tmp_path, "speed.json", {"commit": "0" * 40})
    assert prove.state(proof, tmp_path).startswith("of an unknown commit")


def test_the_newest_row_of_the_same_kind_counts(prove: ModuleType, tmp_path: Path) -> None:
    write_record(
        tmp_path,
        "runs.jsonl",
        {"medium": "image", "commit": "first"},
        {"medium": "image", "commit": "second"},
        {"medium": "mesh", "commit": "third"},
    )
    results = tmp_path / "benchmarks" / "results"
    proof = prove.Proof("demo", "true", 1, (), "runs.jsonl", {"medium": "image"})
    assert prove.recorded_commit(proof, results) == "second"
    rows = [{"proof": "tests", "commit": each, "exit_code": code} for each, code in (("good", 0), ("bad", 1))]
    write_record(tmp_path, "proofs.jsonl", *rows)
    assert prove.recorded_commit(prove.Proof("tests", "true", 1, ()), results) == "good"


def test_only_proofs_that_fit_together_are_run_and_current_ones_are_not(prove: ModuleType, tmp_path: Path) -> None:
    git(tmp_path, "init", "--quiet")
    write_record(tmp_path, "known.json", {"commit": commit(tmp_path, "code.py", "1")})
    proofs = [
        prove.Proof("long", "true", 50, ("code.py",)),
        prove.Proof("short", "true", 5, ("code.py",)),
        prove.Proof("known", "true", 1, ("code.py",), "known.json"),
        prove.Proof("middle", "true", 20, ("code.py",)),
    ]
    assert [proof.name for proof in prove.fitting(proofs, 60, tmp_path)] == ["short", "middle"]
    assert prove.fitting(proofs, 0, tmp_path) == []
