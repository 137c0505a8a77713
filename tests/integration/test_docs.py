"""What the pages say is true: the README's commands run, and the families of docs/new-family.md train and resume."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.torch import load_file, save_file

from contract.cases import GOLDEN
from helpers import TWELVE_STEPS, environment, error_line, install_entry_points, quintet, succeed, tensor_hashes
from quintet import cli, registry

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")
NEW_FAMILY = (ROOT / "docs" / "new-family.md").read_text(encoding="utf-8")


def block_after(text: str, marker: str) -> str:
    found = re.search(re.escape(marker) + r"\s*```\w*\n(.*?)```", text, re.DOTALL)
    assert found, f"no block after {marker}"
    return found.group(1)


def test_the_commands_and_the_python_of_the_readme_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    run_commands("<!-- commands: tested -->")
    assert len(list((tmp_path / "decoded").glob("*.png"))) == 200
    code = block_after(README, "<!-- python: tested -->").replace('out="runs/python"', 'out="runs/python", workers=0')
    names: dict[str, Any] = {}
    exec(compile(code, "README.md", "exec"), names)
    names["trainer"].close()
    assert names["vae"].encode(names["vae"].decode(names["vae"].encode(_grey()))).shape == (1, 8, 8)


def test_the_mesh_commands_of_the_readme_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    run_commands("<!-- mesh commands: tested -->")
    made = {"000.glb", "000.obj", "001.glb", "001.obj", "sheet.png", "samples.jsonl"}
    assert {path.name for path in (tmp_path / "meshes").iterdir()} == made


def test_the_audio_commands_of_the_readme_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    run_commands("<!-- audio commands: tested -->")
    with np.load(tmp_path / "vectors.npz", allow_pickle=False) as found:
        assert found["audio"].shape == (100, 16)
        assert found["texts"].tolist() == ["slow drums"]


def test_the_shard_commands_of_the_readme_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    run_commands("<!-- shard commands: tested -->")
    written = {path.name for path in (tmp_path / "data" / "shards").iterdir()}
    assert written == {"dataset.json", "index.safetensors", "shard-00000.tar"}


def test_the_video_commands_of_the_readme_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    run_commands("<!-- video commands: tested -->")
    names = {path.suffix for path in (tmp_path / "videos").iterdir()}
    assert {".mp4", ".gif", ".png", ".jsonl"} <= names


def run_commands(marker: str) -> None:
    commands = block_after(README, marker).splitlines()
    assert len(commands) > 4
    for command in commands:
        words = shlex.split(command, comments=True)
        assert words[0] == "quintet"
        cli.call(words[1:])


def _grey() -> Any:
    import torch

    return torch.full((1, 3, 32, 32), 0.5)


def test_every_verb_of_the_readme_and_the_help_exist_in_both(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        cli.main(["--help"])
    listed = set(re.findall(r"^  (\w+) +[A-Z]", capsys.readouterr().out, re.MULTILINE)) - {"version", "demo"}
    markers = re.findall(r"<!-- [\w ]*commands: tested -->", README)
    shown = {line.split()[1] for marker in markers for line in block_after(README, marker).splitlines()}
    assert listed == shown


def test_relative_links_of_the_pages_lead_somewhere() -> None:
    for page in [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), *(ROOT / "src").rglob("README.md")]:
        prose = re.sub(r"```.*?```", "", page.read_text(encoding="utf-8"), flags=re.DOTALL)
        for target in re.findall(r"\]\((?!https?:)([^)#]+)", prose):
            assert (page.parent / target).exists(), f"{page.relative_to(ROOT)} links to {target}"


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The package of docs/new-family.md as the page writes it, found as if it were installed."""
    root = tmp_path / "package"
    for file, code in re.findall(r"```(?:python|toml)\n# ([\w/.]+)\n(.*?)```", NEW_FAMILY, re.DOTALL):
        path = root / file
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(code, encoding="utf-8")
    for family in ("blur", "palette"):
        (root / "blurlab" / family / "__init__.py").touch()
    project = tomllib.loads((root / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    install_entry_points(root, project["name"], project["entry-points"]["quintet.families"])
    monkeypatch.syspath_prepend(root)
    yield root
    for name in [name for name in sys.modules if name.split(".")[0] == "blurlab"]:
        del sys.modules[name]


BLUR = ("--preset", "debug", "model.image_size=16", "model.dim=8", *TWELVE_STEPS)
PALETTE = ("--preset", "debug", f"tokenizer={GOLDEN / 'vqgan-format-1' / 'hub'}", "model.dim=16", *TWELVE_STEPS)


@pytest.mark.parametrize(("recipe", "tiny"), [("blur", BLUR), ("caption-palette", PALETTE)])
def test_a_family_of_the_page_trains_resumes_exactly_and_exports(
    recipe: str, tiny: tuple[str, ...], package: Path, pictures: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert registry.find(recipe).config_class().PRESETS.keys() == {"debug", "small", "base"}
    assert recipe in succeed("recipes").output
    straight, halves = (tmp_path / name for name in ("straight", "halves"))
    succeed("train", recipe, pictures, "--out", straight, *tiny)
    succeed("train", recipe, pictures, "--out", halves, *tiny, "optim.decay_steps=12", "train.steps=4")
    succeed("resume", halves, "train.steps=12")
    assert tensor_hashes(straight, 12) == tensor_hashes(halves, 12)
    next_command = succeed("eval", straight).output
    monkeypatch.chdir(tmp_path)
    succeed("export", straight, "hub/blur")
    if recipe == "blur":
        succeed("sample", "hub/blur", "--out", "out")
        assert (tmp_path / "out" / "sharpened.png").exists()
        used = subprocess.run(
            [sys.executable, package / "use.py"],
            env=environment(PYTHONPATH=f"{package}:{ROOT / 'src'}"),
            capture_output=True,
            text=True,
            check=True,
        )
        assert "torch.Size([1, 3, 32, 32])" in used.stdout
        return
    assert "--text" in next_command
    for name, place in (("run", straight), ("hub", Path("hub/blur"))):
        asked = ("--text", "a red circle", "--num", 2, "--out", name)
        succeed("sample", place, *asked)
        assert "does not take --negative" in error_line(quintet("sample", place, "--negative", "grey", *asked).errors)
    drawn = [(tmp_path / name / "001.png").read_bytes() for name in ("run", "hub")]
    assert drawn[0] == drawn[1]
    refused = error_line(quintet("sample", place, "--brightness", 0, *asked).errors)
    assert refused == "error: brightness: input should be greater than 0 (got 0.0)"
    weights = straight / "tokenizer" / "model.safetensors"
    save_file({name: tensor * 2 for name, tensor in load_file(weights).items()}, weights)
    assert "tokenizer_hash=" in error_line(quintet("sample", straight, *asked).errors)
