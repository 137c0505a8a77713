"""What every generator asks of its tokenizer and its captions, and says when it cannot have it; by the command."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import pytest

from contract.cases import GOLDEN, Case
from helpers import error_line, quintet, succeed, tree
from quintet import registry

GENERATORS = [name for name, entry in registry.RECIPES.items() if entry.config_class().OPTIONS is not None]


@dataclass(frozen=True)
class Captions:
    """A data set whose captions do not suffice."""

    missing: str
    """`some` of them, or `all`."""
    keys: tuple[str, ...]
    """That ask for captions."""
    said: str
    """The refusal, as a regular expression."""
    fixes: tuple[str, ...]
    """Keys that the refusal names; the same data is trained on with any of them."""


@dataclass(frozen=True)
class GeneratorCase:
    """What differs from generator to generator."""

    tokenizer: str
    """The recipe of its tokenizers; golden exports of all others are refused."""
    captions: Captions
    text_length: str | None
    """The key of the longest text, in bytes; None: there is none, because a frozen model reads the texts."""
    drop: str
    """The key of the probability that training drops the conditioning."""


NEEDS_CAPTIONS = Captions(
    "some",
    ("data.allow_missing_captions=false",),
    r"([1-9]\d*) of ([1-9]\d*) (images|clips|meshes) have no caption, for example \S+; ",
    ("data.allow_missing_captions=true", "model.text=none"),
)
ABOUT: Mapping[str, GeneratorCase] = {
    "muse": GeneratorCase("vqgan", NEEDS_CAPTIONS, "model.text_length", "loss.cond_drop_prob"),
    "phenaki": GeneratorCase("cvivit", NEEDS_CAPTIONS, "model.text_length", "loss.cond_drop_prob"),
    # It is conditioned on MuLaN embeddings of clips. Captions are optional: loss.caption_cond_prob embeds the captions
    # of those clips that have one.
    "soundstorm": GeneratorCase(
        "audio-codec",
        Captions(
            "all", ("loss.caption_cond_prob=0.5",), r"no clip has one; leave it at 0", ("loss.caption_cond_prob=0",)
        ),
        None,
        "loss.cond_drop_prob",
    ),
    "mesh-transformer": GeneratorCase("mesh-autoencoder", NEEDS_CAPTIONS, "model.text_length", "loss.cond_drop_prob"),
}

SHORT = ("train.steps=2", "eval.every=2", "sample.every=2", "checkpoint.every=2")

FOREIGN = [
    (recipe, other)
    for recipe in GENERATORS
    for other in registry.RECIPES
    if recipe not in ABOUT or other != ABOUT[recipe].tokenizer
]

every_generator = pytest.mark.parametrize("recipe", GENERATORS, indirect=True)


@pytest.fixture
def about(recipe: str) -> GeneratorCase:
    if recipe not in ABOUT:
        pytest.fail(f"recipe '{recipe}' generates but has no entry in tests/contract/test_generators.py")
    return ABOUT[recipe]


def refusal(*words: object) -> str:
    outcome = quintet(*words)
    assert outcome.code == 2, outcome.errors
    return error_line(outcome.errors)


# --- tokenizers ---------------------------------------------------------------------------------------------------


@every_generator
def test_no_tokenizer_is_refused_with_the_option(recipe: str, case: Case, data: Path, tmp_path: Path) -> None:
    others = [word for word in case.tiny if not word.startswith("tokenizer=")]
    assert "--tokenizer RUN" in refusal("train", recipe, data, "--out", tmp_path / "run", *others)
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(("recipe", "other"), FOREIGN, indirect=["recipe"])
def test_a_model_that_is_no_tokenizer_of_its_media_is_refused(
    recipe: str, other: str, case: Case, data: Path, tmp_path: Path
) -> None:
    hub = GOLDEN / f"{other}-format-1" / "hub"
    sentence = refusal("train", recipe, data, "--out", tmp_path / "run", *case.tiny, "--tokenizer", hub)
    assert f"{recipe} needs a" in sentence
    assert f"{hub} is " in sentence
    assert f"of recipe '{other}'" in sentence
    assert not (tmp_path / "run").exists()


# --- captions -----------------------------------------------------------------------------------------------------


def without_captions(data: Path, folder: Path, missing: str) -> Path:
    """A copy of a data set, of which every third caption or all of them are empty."""
    shutil.copytree(data, folder)
    rows = [json.loads(line) for line in (folder / "metadata.jsonl").read_text().splitlines()]
    for row in rows[:: 1 if missing == "all" else 3]:
        row["text"] = ""
    (folder / "metadata.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return folder


@every_generator
def test_missing_captions_are_refused_with_the_fix_and_can_be_allowed(
    recipe: str, case: Case, about: GeneratorCase, data: Path, tmp_path: Path
) -> None:
    captions = about.captions
    folder = without_captions(data, tmp_path / "data", captions.missing)
    words = ("train", recipe, folder, *case.tiny, *SHORT, *captions.keys)
    sentence = refusal(*words, "--out", tmp_path / "run")
    found = re.search(captions.said, sentence)
    assert found, sentence
    if captions.missing == "some":
        assert int(found[1]) < int(found[2])
        assert all(fix in sentence for fix in captions.fixes)
    assert not (tmp_path / "run").exists()
    for number, fix in enumerate(captions.fixes):
        succeed(*words, fix, "--out", tmp_path / f"fixed-{number}")


@pytest.mark.parametrize(
    "recipe", [name for name in GENERATORS if name not in ABOUT or ABOUT[name].text_length], indirect=True
)
def test_long_texts_are_truncated_with_one_warning(
    recipe: str, case: Case, about: GeneratorCase, data: Path, tmp_path: Path
) -> None:
    run = tmp_path / "run"
    trained = succeed("train", recipe, data, "--out", run, *case.tiny, *SHORT, f"{about.text_length}=12")
    assert (
        trained.errors.count("captions have more than 10 bytes and are truncated (model.text_length), for example '")
        == 1
    )
    for text, times in (("ten bytes!", 0), ("ten bytes and more", 1)):
        outcome = succeed("sample", run, "--text", text, "--num", 2, "--out", tmp_path / "out")
        assert outcome.errors.count("warning: prompt truncated to 10 bytes (model.text_length): ") == times


# --- guidance -----------------------------------------------------------------------------------------------------


@every_generator
def test_guidance_without_condition_dropout_warns_and_is_disabled(
    recipe: str, case: Case, about: GeneratorCase, data: Path, tmp_path: Path
) -> None:
    run = tmp_path / "run"
    succeed("train", recipe, data, "--out", run, *case.tiny, *SHORT, f"{about.drop}=0")
    for scale, times in ((3, 1), (1, 0)):
        words = ("sample", run, f"sample.guidance_scale={scale}", "--text", "two words", "--num", 2)
        outcome = succeed(*words, "--out", tmp_path / str(scale))
        assert outcome.errors.count("warning: generating without guidance") == times
        assert outcome.errors.count(f"{about.drop}=0") == times
    asked, plain = tree(tmp_path / "3"), tree(tmp_path / "1")
    assert asked.keys() == plain.keys()
    assert [file for file in asked if asked[file] != plain[file]] == ["samples.jsonl"]  # it tells the settings
