"""What the pages say is true: the README's commands run, and the family of docs/new-family.md trains and resumes."""

from __future__ import annotations

import hashlib
import re
import shlex
import sys
import types
from pathlib import Path
from typing import Any

import pytest

from quintet import cli, recipes
from quintet.data.shapes import make_shapes

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")
NEW_FAMILY = (ROOT / "docs" / "new-family.md").read_text(encoding="utf-8")


def block_after(text: str, marker: str) -> str:
    found = re.search(re.escape(marker) + r"\s*```\w*\n(.*?)```", text, re.DOTALL)
    assert found, f"no block after {marker}"
    return found.group(1)


def test_the_commands_and_the_python_of_the_readme_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    commands = block_after(README, "<!-- commands: tested -->").splitlines()
    assert len(commands) > 8
    for command in commands:
        words = shlex.split(command, comments=True)
        assert words[0] == "quintet"
        cli.call(words[1:])
    assert len(list((tmp_path / "decoded").glob("*.png"))) == 200
    code = block_after(README, "<!-- python: tested -->").replace('out="runs/python"', 'out="runs/python", workers=0')
    names: dict[str, Any] = {}
    exec(compile(code, "README.md", "exec"), names)
    names["trainer"].close()
    assert names["vae"].encode(names["vae"].decode(names["vae"].encode(_grey()))).shape == (1, 8, 8)


def _grey() -> Any:
    import torch

    return torch.full((1, 3, 32, 32), 0.5)


def test_every_verb_of_the_readme_and_the_help_exist_in_both(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        cli.main(["--help"])
    listed = set(re.findall(r"^  (\w+) +[A-Z]", capsys.readouterr().out, re.MULTILINE)) - {"version", "demo"}
    shown = {line.split()[1] for line in block_after(README, "<!-- commands: tested -->").splitlines()}
    assert listed == shown


def test_relative_links_of_the_pages_lead_somewhere() -> None:
    for page in [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), *(ROOT / "src").rglob("README.md")]:
        prose = re.sub(r"```.*?```", "", page.read_text(encoding="utf-8"), flags=re.DOTALL)
        for target in re.findall(r"\]\((?!https?:)([^)#]+)", prose):
            assert (page.parent / target).exists(), f"{page.relative_to(ROOT)} links to {target}"


@pytest.fixture
def blur(monkeypatch: pytest.MonkeyPatch) -> None:
    """The family of docs/new-family.md, installed for one test exactly as the page writes it."""
    blocks = dict(re.findall(r"```python\n# ([\w/.]+)\n(.*?)```", NEW_FAMILY, re.DOTALL))
    package = types.ModuleType("quintet.families.blur")
    package.__path__ = []
    monkeypatch.setitem(sys.modules, "quintet.families.blur", package)
    for part in ("config", "model", "recipe", "trainer"):
        module = types.ModuleType(f"quintet.families.blur.{part}")
        monkeypatch.setitem(sys.modules, module.__name__, module)
        exec(compile(blocks[f"families/blur/{part}.py"], f"families/blur/{part}.py", "exec"), module.__dict__)
    entries = eval("{" + blocks["recipes.py"] + "}", {"RecipeEntry": recipes.RecipeEntry})
    monkeypatch.setattr(recipes, "RECIPES", {**recipes.RECIPES, **entries})


@pytest.mark.usefixtures("blur")
def test_the_family_of_the_page_trains_resumes_exactly_and_exports(tmp_path: Path) -> None:
    data = tmp_path / "data"
    make_shapes(data, num=30, size=32)
    common = ["--preset", "debug", "log.trackers=[]", "optim.horizon=6"]
    cli.call(["train", "blur", str(data), "--out", str(tmp_path / "straight"), *common])
    cli.call(["train", "blur", str(data), "--out", str(tmp_path / "halves"), *common, "train.steps=3"])
    cli.call(["resume", str(tmp_path / "halves"), "train.steps=6"])
    ends = [
        (tmp_path / run / "checkpoints" / "step-00000006" / file).read_bytes()
        for run in ("straight", "halves")
        for file in ("sharpener.safetensors", "ema/sharpener.safetensors", "optim/sharpener.safetensors")
    ]
    assert ends[:3] == ends[3:]
    cli.call(["eval", str(tmp_path / "straight")])
    cli.call(["export", str(tmp_path / "straight"), str(tmp_path / "hub")])
    cli.call(["sample", str(tmp_path / "hub"), "--out", str(tmp_path / "out")])
    assert (tmp_path / "out" / "sharpened.png").exists()


def test_the_frozen_data_generator_and_judge_are_the_ones_in_the_results() -> None:
    results = (ROOT / "docs" / "results.md").read_text(encoding="utf-8")
    for file in ("src/quintet/data/shapes.py", "src/quintet/data/shapes_judge.py"):
        digest = hashlib.sha256((ROOT / file).read_bytes()).hexdigest()
        assert f"| `{file}` | `{digest}` |" in results, f"{file} changed: that makes a new version of the data set"
