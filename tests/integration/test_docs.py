"""The pages are true: the commands of the README and of docs/media run, the keys and options that they name exist, and
the families of docs/new-family.md train and resume."""

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
from quintet import config as configs
from quintet.config.options import flags_of

ROOT = Path(__file__).parents[2]
NEW_FAMILY = (ROOT / "docs" / "new-family.md").read_text(encoding="utf-8")
MEDIA = {"image": "muse", "video": "phenaki", "audio": "soundstorm", "mesh": "mesh-transformer"}
"""The page of each medium, and the generator that it trains."""
PAGES = {
    path.stem: path.read_text(encoding="utf-8")
    for path in (ROOT / "README.md", *(ROOT / "docs" / "media" / f"{medium}.md" for medium in MEDIA))
}
COMMANDS = re.compile(r"<!-- ([\w ]*)commands: tested -->\n```\n(.*?)```", re.DOTALL)


def commands(page: str, kind: str = "") -> list[str]:
    """The lines of a tested block of a page."""
    (block,) = [lines for name, lines in COMMANDS.findall(PAGES[page]) if name.strip() == kind]
    assert len(block.splitlines()) > 4
    return block.splitlines()  # type: ignore[no-any-return]


def run_commands(lines: list[str]) -> None:
    for command in lines:
        words = shlex.split(command, comments=True)
        assert words[0] == "quintet"
        cli.call(words[1:])


def test_the_commands_and_the_python_of_the_readme_and_the_image_page_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    run_commands(list(dict.fromkeys([*commands("README"), *commands("image")])))  # those that both have run once
    assert len(list((tmp_path / "drawn").glob("0*.png"))) == 4
    assert len(list((tmp_path / "decoded").glob("*.png"))) == 200
    found = re.search(r"<!-- python: tested -->\n```python\n(.*?)```", PAGES["README"], re.DOTALL)
    assert found
    code = found.group(1).replace('out="runs/python"', 'out="runs/python", num_workers=0')
    names: dict[str, Any] = {}
    exec(compile(code, "README.md", "exec"), names)
    names["trainer"].close()
    assert names["images"].shape == (4, 3, 32, 32)
    assert names["vae"].encode(names["vae"].decode(names["vae"].encode(_grey()))).shape == (1, 8, 8)


def test_the_training_loop_of_the_page_about_runs_runs() -> None:
    page = (ROOT / "docs" / "runs.md").read_text(encoding="utf-8")
    found = re.search(r"<!-- python: tested -->\n```python\n(.*?)```", page, re.DOTALL)
    assert found
    names: dict[str, Any] = {}
    exec(compile(found.group(1), "runs.md", "exec"), names)
    assert names["error"].item() > 0


def test_the_plans_of_the_page_about_scale_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    page = (ROOT / "docs" / "scale.md").read_text(encoding="utf-8")
    (block,) = [lines for name, lines in COMMANDS.findall(page) if name.strip() == "plan"]
    run_commands(block.splitlines())
    printed = capsys.readouterr().out
    assert printed.count("largest micro-batch") == 5
    # The rows of the page that do not depend on the version of torch.
    shown = re.search(r"prints:\n\n```\n(.*?)```", page, re.DOTALL)
    assert shown
    for row in ("parameters", "  weights", "  optimizer state", "checkpoint"):
        (line,) = [line for line in shown.group(1).splitlines() if line.startswith(row)]
        assert line in printed


def _grey() -> Any:
    import torch

    return torch.full((1, 3, 32, 32), 0.5)


def test_the_shard_commands_of_the_image_page_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    run_commands(commands("image", "shard"))
    written = {path.name for path in (tmp_path / "data" / "shards").iterdir()}
    assert written == {"dataset.json", "index.safetensors", "shard-00000.tar"}


def test_the_mesh_commands_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    run_commands(commands("mesh", "mesh"))
    made = {"000.glb", "000.obj", "001.glb", "001.obj", "sheet.png", "samples.jsonl"}
    assert {path.name for path in (tmp_path / "meshes").iterdir()} == made


def test_the_audio_commands_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    run_commands(commands("audio", "audio"))
    with np.load(tmp_path / "vectors.npz", allow_pickle=False) as found:
        assert found["audio"].shape == (100, 16)
        assert found["texts"].tolist() == ["slow drums"]
    made = {"000.wav", "001.wav", "spectrograms.png", "samples.jsonl"}
    assert {path.name for path in (tmp_path / "sounds-made").iterdir()} == made


def test_the_video_commands_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    run_commands(commands("video", "video"))
    names = {path.suffix for path in (tmp_path / "videos").iterdir()}
    assert {".mp4", ".gif", ".png", ".jsonl"} <= names


@pytest.mark.parametrize("page", PAGES)
def test_every_command_block_of_a_page_is_run_by_these_tests(page: str) -> None:
    blocks = re.findall(r"^```\w*\n(.*?)^```", PAGES[page], re.DOTALL | re.MULTILINE)
    shown = [line for block in blocks for line in block.splitlines() if line.startswith("quintet ")]
    assert shown == [line for _, block in COMMANDS.findall(PAGES[page]) for line in block.splitlines()]


def test_every_verb_of_the_pages_and_the_help_exist_in_both(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        cli.main(["--help"])
    listed = set(re.findall(r"^  (\w+) +[A-Z]", capsys.readouterr().out, re.MULTILINE)) - {"version", "demo"}
    blocks = [block for text in PAGES.values() for _, block in COMMANDS.findall(text)]
    assert listed == {line.split()[1] for block in blocks for line in block.splitlines()}


@pytest.mark.parametrize("page", PAGES)
def test_the_trainings_in_the_text_of_a_page_have_keys_that_exist(page: str) -> None:
    """Commands in the text are too long to be run; their recipe, preset and keys are checked."""
    prose = re.sub(r"```.*?```", "", PAGES[page], flags=re.DOTALL)
    for command in re.findall(r"`quintet (train [^`]+)`", prose):
        words = shlex.split(command)
        keys = [word for word in words if re.match(r"[a-z_.]+=", word)]
        preset = words[words.index("--preset") + 1] if "--preset" in words else None
        if words[1] in registry.RECIPES:
            schema = registry.find(words[1]).config_class()
            configs.build(schema, preset=preset, overrides=configs.parse_overrides(keys))


@pytest.mark.parametrize(("medium", "recipe"), MEDIA.items())
def test_the_page_of_a_medium_names_the_options_of_sample(medium: str, recipe: str) -> None:
    section = PAGES[medium].split("\n## Sample\n")[1].split("\n## ")[0]
    named = {option for row in re.findall(r"^\|([^|]+)\|", section, re.MULTILINE) for option in _options(row)}
    assert named == {"--text", *(flag.flags[0] for flag in flags_of(registry.find(recipe).config_class().OPTIONS))}


def _options(cell: str) -> list[str]:
    return re.findall(r"`(--[a-z-]+)", cell)


SECTIONS = "data|model|train|optim|ema|eval|sample|checkpoint|log|engine|loss"
FILES = {"data.json", "data.py", "eval.json", "log.txt", "model.safetensors"}
"""Names of files that look like keys."""


@pytest.mark.parametrize("page", ["README.md", "docs/concepts.md", "docs/runs.md", "docs/media"])
def test_the_keys_that_pages_name_exist(page: str) -> None:
    known = {key for _, schema in registry.config_classes() for key in configs.flatten(schema().model_dump())}
    for path in sorted((ROOT / page).glob("*.md")) if (ROOT / page).is_dir() else [ROOT / page]:
        text = path.read_text(encoding="utf-8")
        named = re.findall(rf"(?<![\w/.-])((?:{SECTIONS})\.[a-z_][a-z_.]*)", text)
        keys = {key.rstrip(".") for key in named} - FILES
        assert keys <= known, f"{path.name}: {sorted(keys - known)}"


def test_relative_links_of_the_pages_lead_somewhere() -> None:
    for page in [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), *(ROOT / "src").rglob("README.md")]:
        prose = re.sub(r"```.*?```", "", page.read_text(encoding="utf-8"), flags=re.DOTALL)
        for target, anchor in re.findall(r"\]\((?!https?:)([^)#]*)#?([^)]*)\)", prose):
            aim = page.parent / target if target else page
            assert aim.exists(), f"{page.relative_to(ROOT)} links to {target}"
            assert not anchor or anchor in _anchors(aim), f"{page.relative_to(ROOT)} links to {target}#{anchor}"


def _anchors(page: Path) -> set[str]:
    headings = re.findall(r"^#+ (.*)$", page.read_text(encoding="utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


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
    assert "model.safetensors is damaged" in error_line(quintet("sample", straight, *asked).errors)
    (weights.parent / "SHA256SUMS").unlink()
    assert "tokenizer_hash=" in error_line(quintet("sample", straight, *asked).errors)
