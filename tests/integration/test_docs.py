"""What the pages say is true: the README's commands run, and the families of docs/new-family.md train and resume."""

from __future__ import annotations

import re
import shlex
import sys
import types
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.torch import load_file, save_file

from contract import cases
from contract.cases import Case
from helpers import error_line, quintet, succeed, tensor_hashes
from quintet import cli, registry
from quintet.errors import UsageError
from quintet.runs import open_link, open_trained

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
def page(monkeypatch: pytest.MonkeyPatch) -> dict[str, Case]:
    """The families of docs/new-family.md, installed for one test exactly as the page writes them; their cases."""
    registered: dict[str, registry.RecipeEntry] = {}
    tried: dict[str, Case] = {}
    for file, code in re.findall(r"```python\n# ([\w/.]+)\n(.*?)```", NEW_FAMILY, re.DOTALL):
        if file == "recipes.py":
            registered |= eval("{" + code + "}", vars(registry))
        elif file == "tests/contract/cases.py":
            tried |= eval("{" + code + "}", vars(cases))
        else:
            *folders, name = file.removesuffix(".py").split("/")
            _install(monkeypatch, ".".join(("quintet", *folders)), name, compile(code, file, "exec"))
    monkeypatch.setattr(registry, "RECIPES", {**registry.RECIPES, **registered})
    assert registered.keys() == tried.keys()
    return tried


def _install(monkeypatch: pytest.MonkeyPatch, package: str, name: str, code: types.CodeType) -> None:
    folder = sys.modules.get(package) or types.ModuleType(package)
    folder.__path__ = []
    monkeypatch.setitem(sys.modules, package, folder)
    module = types.ModuleType(f"{package}.{name}")
    monkeypatch.setitem(sys.modules, module.__name__, module)
    exec(code, module.__dict__)


@pytest.mark.parametrize("recipe", ["blur", "caption-palette"])
def test_a_family_of_the_page_trains_resumes_exactly_and_exports(
    recipe: str, page: dict[str, Case], pictures: Path, tmp_path: Path
) -> None:
    entry, tiny = registry.find(recipe), page[recipe].tiny
    assert entry.config_class().PRESETS.keys() == {"debug", "small", "base"}
    assert entry.family == recipe.replace("-", "_")
    straight, halves, hub = (tmp_path / name for name in ("straight", "halves", "hub"))
    succeed("train", recipe, pictures, "--out", straight, *tiny)
    succeed("train", recipe, pictures, "--out", halves, *tiny, "optim.horizon=12", "train.steps=4")
    succeed("resume", halves, "train.steps=12")
    assert tensor_hashes(straight, 12) == tensor_hashes(halves, 12)
    next_command = succeed("eval", straight).output
    succeed("export", straight, hub)
    if not page[recipe].links:
        succeed("sample", hub, "--out", tmp_path / "out")
        assert (tmp_path / "out" / "sharpened.png").exists()
        return
    assert "--text" in next_command
    for place in (straight, hub):
        asked = ("--text", "a red circle", "--num", 2, "--out", tmp_path / "out" / place.name)
        succeed("sample", place, *asked)
        assert error_line(quintet("sample", place, "--negative", "grey", *asked).errors).endswith("takes no --negative")
    drawn = [(tmp_path / "out" / place.name / "001.png").read_bytes() for place in (straight, hub)]
    assert drawn[0] == drawn[1]


def test_the_trainers_of_the_page(page: dict[str, Case], pictures: Path, tmp_path: Path) -> None:
    brief = {"train.steps": 1, "train.batch_size": 4, "data.workers": 0, "log.trackers": []}
    blur, palette = (
        getattr(import_module(f"quintet.families.{name.replace('-', '_')}.trainer"), registry.find(name).trainer)
        for name in page
    )
    link = open_link(str(cases.GOLDEN / "vqgan-format-1" / "hub"))
    for trainer in (
        blur(data=pictures, out=tmp_path / "blur", config=brief),
        palette(tokenizer=link, data=pictures, out=tmp_path / "palette", config=brief),
    ):
        trainer.train()
        trainer.close()
        assert trainer.step == 1
    weights = tmp_path / "palette" / "tokenizer" / "model.safetensors"
    save_file({name: tensor * 2 for name, tensor in load_file(weights).items()}, weights)
    with pytest.raises(UsageError, match="tokenizer_hash="):
        open_trained(tmp_path / "palette")
