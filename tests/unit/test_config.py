"""Run configurations: YAML round trips, overrides, precedence, and one-sentence error messages."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from types import NoneType, UnionType
from typing import Annotated, Any, ClassVar, Literal, Union, get_args, get_origin

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import BaseModel

from quintet import config as configs
from quintet.config import RunConfig, build, describe, parse_overrides, refuse_changes
from quintet.config.tree import to_yaml
from quintet.errors import UsageError
from quintet.families.vqgan.config import VQGanConfig
from quintet.registry import RECIPES


def overridden(*arguments: str) -> VQGanConfig:
    """As on the command line."""
    return build(VQGanConfig, overrides=parse_overrides(arguments))


def complaint(*arguments: str) -> str:
    with pytest.raises(UsageError) as caught:
        overridden(*arguments)
    message = str(caught.value)
    assert "\n" not in message
    return message


# --- any valid configuration ------------------------------------------------------------------------------------


def values_of(annotation: Any, bounds: dict[str, Any]) -> st.SearchStrategy[Any]:
    """Valid values of a key, generated from its annotation and bounds."""
    if get_origin(annotation) is Annotated:
        annotation, *notes = get_args(annotation)
        bounds = bounds or bounds_of([each for note in notes for each in getattr(note, "metadata", [note])])
    origin, arguments = get_origin(annotation), get_args(annotation)
    if origin is Literal:
        return st.sampled_from(arguments)
    if origin in (Union, UnionType):
        return st.one_of([values_of(argument, bounds) for argument in arguments])
    if origin is tuple and arguments[-1] is Ellipsis:
        return st.lists(values_of(arguments[0], {}), max_size=3).map(tuple)
    if origin is tuple:
        return st.tuples(*(values_of(argument, {"gt": 0, "lt": 1}) for argument in arguments))
    kinds = {bool: st.booleans(), NoneType: st.none(), str: TEXTS, int: integers(bounds), float: floats(bounds)}
    return kinds[annotation]


def integers(bounds: dict[str, Any]) -> st.SearchStrategy[int]:
    step = bounds.get("multiple_of", 1)
    low = bounds.get("ge", bounds.get("gt", -1) + 1)
    return st.integers(-(-int(low) // step), int(bounds.get("le", 10**6)) // step).map(lambda value: value * step)


def floats(bounds: dict[str, Any]) -> st.SearchStrategy[float]:
    low, high = bounds.get("ge", bounds.get("gt", 0)), bounds.get("lt", bounds.get("le", 1e12))
    ordinary = st.floats(low, high, exclude_min="gt" in bounds, exclude_max="lt" in bounds)
    return st.one_of(ordinary, st.sampled_from([1e-05, 3e-4, 0.1, 1e-300]))


TEXTS = st.text(st.characters(codec="utf-8"), max_size=30) | st.sampled_from(
    [
        "1e-5",
        "null",
        "yes",
        "2024-01-01",
        "# no comment",
        "a: b",
        "- x",
        " led by a space",
        "Ü 漢字 🙂",
        "C:\\x",
        "0x1F",
    ]
)


def sections_of(schema: type[BaseModel]) -> st.SearchStrategy[dict[str, Any]]:
    fields: dict[str, st.SearchStrategy[Any]] = {}
    for name, field in schema.model_fields.items():
        if isinstance(field.annotation, type) and issubclass(field.annotation, BaseModel):
            fields[name] = sections_of(field.annotation)
            continue
        fields[name] = values_of(field.annotation, bounds_of(field.metadata))
    return st.fixed_dictionaries(fields)


def bounds_of(metadata: list[Any]) -> dict[str, Any]:
    return {
        key: getattr(each, key)
        for each in metadata
        for key in ("ge", "gt", "le", "lt", "multiple_of")
        if getattr(each, key, None) is not None
    }


@st.composite
def vqgan_configs(draw: st.DrawFn) -> VQGanConfig:
    tree = draw(sections_of(VQGanConfig))
    factor = 2 ** draw(st.integers(1, 5))
    sides = st.integers(1, 40).map(lambda codes: codes * factor)
    tree["model"]["layers"] = factor.bit_length() - 1
    tree["model"]["image_size"] = draw(sides | st.tuples(sides, sides))
    tree["model"]["pretrained_config"] = draw(st.sampled_from([None, "{}"]))
    ends = draw(st.lists(st.integers(0, 2**40), unique=True).map(sorted))
    tree["optim"]["decay_extensions"] = [*pairwise(ends)]
    tree["optim"]["amsgrad"] &= tree["optim"]["name"] in ("adam", "adamw")
    micro_batches = tree["train"]["grad_accum_steps"]
    tree["train"]["batch_size"] = (1 if micro_batches == "auto" else micro_batches) * draw(st.integers(1, 64))
    return configs.validate(VQGanConfig, tree)


@settings(max_examples=20, deadline=None, derandomize=True)
@given(config=vqgan_configs())
def test_yaml_round_trip_is_lossless(config: VQGanConfig, tmp_path_factory: pytest.TempPathFactory) -> None:
    file = tmp_path_factory.mktemp("round") / "config.yaml"
    file.write_text(config.to_yaml(), encoding="utf-8")
    assert build(VQGanConfig, file=file) == config


@settings(max_examples=12, deadline=None, derandomize=True)
@given(config=vqgan_configs())
def test_commented_yaml_has_the_same_values(config: VQGanConfig) -> None:
    assert yaml.safe_load(describe(config)) == config.model_dump(mode="json")


@pytest.mark.parametrize("name", ["a\x85b", "\xa0", "\u2003wide\u2003", " ", "\t"])
def test_names_with_odd_spaces_survive_yaml(name: str) -> None:
    config = VQGanConfig().changed({"log.name": name})
    assert yaml.safe_load(config.to_yaml()) == config.model_dump(mode="json")
    assert yaml.safe_load(describe(config)) == config.model_dump(mode="json")


def test_a_very_long_path_does_not_break_the_commented_yaml() -> None:
    config = VQGanConfig().changed({"data.path": "/data/" + "long name/" * 200})
    assert yaml.safe_load(describe(config)) == config.model_dump(mode="json")


def test_commented_yaml_describes_every_key_with_its_choices() -> None:
    lines = describe(VQGanConfig()).splitlines()
    assert all("  # " in line for line in lines)
    assert any(
        line.startswith("  name: adamw  # Optimizer;") and line.endswith("| adamw, adam, lion, muon") for line in lines
    )


@pytest.mark.parametrize(
    ("recipe", "preset"),
    [(name, preset) for name in RECIPES for preset in (*RECIPES[name].config_class().PRESETS, None)],
)
def test_every_preset_of_every_recipe_is_valid(recipe: str, preset: str | None) -> None:
    schema = RECIPES[recipe].config_class()
    config = build(schema, preset=preset)
    assert config.recipe == recipe
    assert config.preset == preset
    assert yaml.safe_load(describe(config)) == config.model_dump(mode="json")
    flat = configs.flatten(config.model_dump(mode="json"))
    for key, value in schema.PRESETS.get(preset or "", {}).items():
        assert flat[key] == value, key


def test_every_recipe_has_the_presets_the_command_line_offers() -> None:
    for entry in RECIPES.values():
        assert {"debug", "small", "base"} <= set(entry.config_class().PRESETS)


def test_every_frozen_key_needs_a_hash_key() -> None:
    with pytest.raises(TypeError, match="needs the keys tokenizer_hash"):

        class WithoutHash(RunConfig):
            FROZEN_KEYS: ClassVar = ("tokenizer",)
            tokenizer: str | None = None


# --- overrides ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("argument", "value"),
    [
        ("train.steps=100", 100),
        ("train.steps=1e4", 10_000),
        ("train.steps=10_000", 10_000),
        ("optim.lr=3e-4", 3e-4),
        ("optim.lr=1E-05", 1e-5),
        ("optim.lr=2.5e+1", 25.0),
        ("optim.lr=1", 1.0),
        ("optim.betas=[0.9, 0.95]", (0.9, 0.95)),
        ("optim.betas=[9e-1,0.95]", (0.9, 0.95)),
        ("optim.max_grad_norm=null", None),
        ("optim.max_grad_norm=~", None),
        ("optim.max_grad_norm=", None),
        ("model.image_size=[64, 128]", (64, 128)),
        ("log.trackers=[]", ()),
        ("log.trackers=[wandb]", ("wandb",)),
        ("log.name='2024'", "2024"),
        ('log.name="1e-5"', "1e-5"),
        ("log.name=a = b", "a = b"),
        ("data.path=/data/with=sign", "/data/with=sign"),
        ("ema.enabled=false", False),
        (" train.steps =7", 7),
    ],
)
def test_overrides_are_typed(argument: str, value: Any) -> None:
    key = argument.partition("=")[0].strip()
    section, name = key.split(".")
    parsed = getattr(getattr(overridden(argument), section), name)
    assert parsed == value
    assert type(parsed) is type(value)


def test_numbers_in_a_file_are_parsed_as_on_the_command_line(tmp_path: Path) -> None:
    file = tmp_path / "config.yaml"
    file.write_text("train: {steps: 1e4}\noptim: {lr: 3e-4}\n", encoding="utf-8")
    config = build(VQGanConfig, file=file)
    assert (config.train.steps, config.optim.lr) == (10_000, 3e-4)


@pytest.mark.parametrize("argument", ["train.steps", "=3", "  =3", "--steps"])
def test_not_an_override(argument: str) -> None:
    assert "key=value" in complaint(argument)


@pytest.mark.parametrize("text", ["[1, 2", "'open", "{a", "2024-99-99", "[" * 1000, "&a [*a]", "\x00"])
def test_a_value_that_is_not_yaml_names_its_key(text: str) -> None:
    assert complaint(f"data.path={text}").startswith("data.path")


def test_the_later_source_wins(tmp_path: Path) -> None:
    file = tmp_path / "config.yaml"
    file.write_text("train: {steps: 2, seed: 2, batch_size: 4}\ntrain.max_nonfinite_steps: 2\n", encoding="utf-8")
    overrides = parse_overrides(["train.steps=3"])
    default, preset = build(VQGanConfig), build(VQGanConfig, preset="debug")
    merged = build(VQGanConfig, preset="debug", file=file, overrides=overrides)
    assert (default.train.steps, preset.train.steps, merged.train.steps) == (10_000, 20, 3)
    assert (merged.train.batch_size, preset.train.batch_size) == (4, 8)
    assert (merged.train.seed, merged.train.max_nonfinite_steps) == (2, 2)
    assert merged.model.dim == preset.model.dim == 16
    assert merged.data.flip is default.data.flip


def test_unknown_preset_names_the_known_ones() -> None:
    with pytest.raises(UsageError, match="unknown preset 'big'; known: debug, small, base"):
        build(VQGanConfig, preset="big")


def test_changed_leaves_the_original_alone() -> None:
    config = VQGanConfig()
    assert config.changed({"train.steps": 5}).train.steps == 5
    assert config.train.steps == 10_000
    assert type(config.changed({})) is VQGanConfig


# --- mistakes -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("argument", "nearest"),
    [
        ("train.step=3", "train.steps"),
        ("trian.steps=3", "train.steps"),
        ("batch_size=3", "train.batch_size"),
        ("steps=3", "train.steps"),
        ("lr=3e-4", "optim.lr"),
        ("image_size=64", "model.image_size"),
        ("model.img_size=64", "model.image_size"),
        ("optim.discriminator.max_grad_nrom=1", "optim.discriminator.max_grad_norm"),
        ("ema.decays=0.9", "ema.decay"),
        ("optimizer.lr=1", "optim.lr"),
    ],
)
def test_unknown_key_names_the_nearest(argument: str, nearest: str) -> None:
    key = argument.partition("=")[0]
    message = complaint(argument)
    assert f"unknown key '{key}'" in message
    assert f"did you mean '{nearest}'?" in message


def test_a_key_without_a_similar_key_gets_no_hint() -> None:
    message = complaint("qqqqqq.zzzzzz=1")
    assert "unknown key 'qqqqqq.zzzzzz'" in message
    assert "did you mean" not in message


def test_a_very_deep_key_is_an_unknown_key() -> None:
    assert "unknown key" in complaint("a." * 1000 + "b=1")


@pytest.mark.parametrize(
    ("argument", "key"),
    [
        ("train.steps=-1", "train.steps"),
        ("train.steps=0", "train.steps"),
        ("train.steps=many", "train.steps"),
        ("train.steps=1.5", "train.steps"),
        ("train.steps=null", "train.steps"),
        ("train.steps={a: 1}", "train.steps"),
        ("train=5", "train"),
        ("optim.lr=0", "optim.lr"),
        ("optim.lr=.nan", "optim.lr"),
        ("optim.lr=.inf", "optim.lr"),
        ("optim.name=sgd", "optim.name"),
        ("optim.betas=[0.9]", "optim.betas"),
        ("optim.betas=[0.9, 2]", "optim.betas"),
        ("data.validation_fraction=1", "data.validation_fraction"),
        ("ema.decay=1", "ema.decay"),
        ("engine.precision=fp8", "engine.precision"),
        ("log.trackers=[paper]", "log.trackers"),
        ("model.channels=2", "model.channels"),
        ("train.seed=99999999999999999999", "train.seed"),
    ],
)
def test_wrong_values_name_their_key(argument: str, key: str) -> None:
    assert complaint(argument).startswith(key)


def test_an_invalid_image_size_is_reported_by_its_key() -> None:
    message = complaint("model.image_size=large")
    assert message.startswith("model.image_size:")
    assert "model.image_size.int" not in message


@pytest.mark.parametrize(
    ("size", "layers", "nearest"),
    [
        ("65", 3, "64"),
        ("[64, 100]", 3, "[64, 96]"),
        ("3", 2, "4"),
        ("0", 2, "4"),
        ("-8", 3, "8"),
        ("[30, 34]", 4, "32"),
    ],
)
def test_image_size_not_divisible_names_the_nearest(size: str, layers: int, nearest: str) -> None:
    message = complaint(f"model.image_size={size}", f"model.layers={layers}")
    assert "model.image_size=" in message
    assert f"2^model.layers = {2**layers}" in message
    assert f"the nearest valid size is {nearest}" in message
    overridden(f"model.image_size={nearest}", f"model.layers={layers}")


@pytest.mark.parametrize("sizes", ["32", "[32, 48]", "[8, 256]"])
def test_divisible_sizes_are_accepted(sizes: str) -> None:
    assert overridden(f"model.image_size={sizes}").model.grid[0] >= 1


def test_batch_not_divisible_by_micro_batches() -> None:
    assert complaint("train.batch_size=10", "train.grad_accum_steps=4") == (
        "train.batch_size=10 is not divisible by train.grad_accum_steps=4"
    )


@pytest.mark.parametrize(
    "text",
    ["", "- 1\n- 2\n", "just text", "a: [1", "{" * 1000, "a: &a {b: *a}", "x: 2024-99-99", "a: 1\n\ta: 2", "\x00"],
    ids=["empty", "list", "text", "broken", "deep", "cycle", "no date", "tab", "null byte"],
)
def test_a_file_without_a_yaml_mapping_is_named(tmp_path: Path, text: str) -> None:
    file = tmp_path / "config.yaml"
    file.write_text(text, encoding="utf-8")
    with pytest.raises(UsageError) as caught:
        build(VQGanConfig, file=file)
    assert str(file) in str(caught.value)
    assert "\n" not in str(caught.value)


def test_unreadable_files_are_named(tmp_path: Path) -> None:
    (tmp_path / "latin.yaml").write_bytes(b"log: {name: \xe9}")
    for file in (tmp_path, tmp_path / "missing.yaml", tmp_path / "latin.yaml"):
        with pytest.raises(UsageError, match=file.name):
            build(VQGanConfig, file=file)


def test_unknown_keys_in_a_file_are_refused(tmp_path: Path) -> None:
    file = tmp_path / "config.yaml"
    file.write_text("train: {stepps: 3}\n", encoding="utf-8")
    with pytest.raises(UsageError, match=r"did you mean 'train\.steps'"):
        build(VQGanConfig, file=file)


def test_a_file_of_another_recipe_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "config.yaml"
    file.write_text("recipe: muse\n", encoding="utf-8")
    with pytest.raises(UsageError, match=r"^recipe: "):
        build(VQGanConfig, file=file)


@pytest.mark.parametrize(
    ("recipe", "preset"), [(name, preset) for name in RECIPES for preset in RECIPES[name].config_class().PRESETS]
)
def test_a_preset_reaches_every_step_that_it_names(recipe: str, preset: str) -> None:
    assert build(RECIPES[recipe].config_class(), preset=preset).unreached_keys() == {}


@pytest.mark.parametrize("recipe", RECIPES)
def test_a_key_that_names_a_step_after_the_end_is_reported(recipe: str) -> None:
    config = build(RECIPES[recipe].config_class(), preset="debug", overrides={"train.steps": 10})
    plain = {"optim.warmup_steps": 0, "ema.start": 0, "ema.every": 1}
    adversarial = hasattr(getattr(config, "loss", None), "discriminator_start")
    plain |= {"loss.discriminator_start": 2, "loss.discriminator_ramp": 8} if adversarial else {}
    assert config.changed(plain).unreached_keys() == {}
    late = {"optim.warmup_steps": 10, "ema.start": 10, "ema.every": 10}
    late |= {"loss.discriminator_start": 10, "loss.discriminator_ramp": 9} if adversarial else {}
    for key, value in late.items():
        assert config.changed({**plain, key: value}).unreached_keys().keys() == {key}


@pytest.mark.parametrize("recipe", ["muse", "phenaki"])
def test_codebook_smoothing_replaces_label_smoothing_by_itself(recipe: str, tmp_path: Path) -> None:
    schema = RECIPES[recipe].config_class()
    smoothed: Any = build(schema, preset="debug", overrides={"loss.codebook_smoothing": 0.5})
    assert smoothed.loss.label_smoothing == 0
    assert build(schema, preset="debug", overrides={"loss.codebook_smoothing": 0}).loss.label_smoothing == 0.1  # type: ignore[attr-defined]
    (tmp_path / "config.yaml").write_text(smoothed.to_yaml(), encoding="utf-8")
    assert build(schema, file=tmp_path / "config.yaml") == smoothed
    for both in ({"loss.codebook_smoothing": 0.5, "loss.label_smoothing": 0.1}, {"loss.label_smoothing": 0.2}):
        with pytest.raises(UsageError, match=r"leave out loss\.label_smoothing"):
            build(schema, file=tmp_path / "config.yaml", overrides=both)


EXTREMES = (10**30, 2**63, 2**63 - 1, 1e30, 1e12, 1e-320)


@pytest.mark.parametrize("recipe", RECIPES)
def test_an_extreme_number_is_refused_or_can_be_written_and_read_again(recipe: str) -> None:
    plain = build(RECIPES[recipe].config_class(), preset="debug")
    kept = 0
    for key, old in configs.flatten(plain.model_dump(mode="json")).items():
        if isinstance(old, bool | str):
            continue
        for value in EXTREMES:
            try:
                changed = plain.changed({key: [value] * len(old) if isinstance(old, list) else value})
            except UsageError:
                continue
            written = configs.flatten(changed.model_dump(mode="json"))[key]
            assert parse_overrides([f"{key}={to_yaml(written, default_flow_style=True)}"]) == {key: written}
            kept += 1
    assert kept


@pytest.mark.parametrize(
    "argument",
    ["engine.threads=100000", "train.epochs=1e30", "train.steps=1e30", "data.num_workers=1000000", "optim.lr=1e30"],
)
def test_a_number_that_would_crash_later_is_refused(argument: str) -> None:
    assert argument.partition("=")[0] in complaint(argument)


# --- resuming -----------------------------------------------------------------------------------------------------

CHANGES: dict[str, Any] = {
    "data.flip": False,
    "train.batch_size": 32,
    "train.seed": 1,
    "train.epochs": 3.0,
    "optim.lr": 1e-3,
    "optim.decay_steps": 5,
    "optim.discriminator.lr": 1e-3,
    "ema.decay": 0.5,
    "model.dim": 32,
    "loss.lecam": 0.1,
    "init": "runs/other",
    "data.split_seed": 1,
}


@pytest.mark.parametrize(("key", "value"), CHANGES.items())
def test_a_resumed_run_refuses_keys_that_change_its_results(key: str, value: Any) -> None:
    old = VQGanConfig()
    with pytest.raises(UsageError) as caught:
        refuse_changes(old, old.changed({key: value, "train.steps": 77}))
    before = configs.flatten(old.model_dump(mode="json"))[key]
    assert f"{key}: {before!r} -> {value!r}" in str(caught.value)
    assert "train.steps" not in str(caught.value)
    assert "--init" in str(caught.value)


def test_a_resumed_run_may_change_other_keys() -> None:
    old = VQGanConfig()
    allowed = {
        "train.steps": 77,
        "train.minutes": 5.0,
        "train.grad_accum_steps": 2,
        "log.every": 1,
        "log.trackers": [],
        "eval.every": 7,
        "eval.batches": None,
        "sample.every": 7,
        "sample.num": 3,
        "checkpoint.every": 7,
        "checkpoint.keep": 1,
        "engine.precision": "bf16",
        "engine.world_size": 2,
        "engine.threads": 1,
    }
    refuse_changes(old, old.changed(allowed))
    assert configs.differences(old, old.changed(allowed)).keys() == allowed.keys()


OTHER_VALUES = (
    None,
    False,
    True,
    1,
    2,
    3,
    8,
    16,
    32,
    0.25,
    "changed",
    "{}",
    [0.1, 0.2],
    [],
    [[1, 2]],
    ["a"],
    [["a", 0.5]],
)


def with_another_value(config: RunConfig, key: str) -> RunConfig | None:
    """The configuration with another valid value of one key; None for a key with only one valid value."""
    for value in (*OTHER_VALUES, *_choices(describe(config), key)):
        try:
            changed = config.changed({key: value})
        except UsageError:
            continue
        if changed != config:
            return changed
    return None


def _choices(described: str, key: str) -> list[str]:
    """The choices that `describe` lists for the last part of a key."""
    line = next(line for line in described.splitlines() if line.strip().startswith(key.rsplit(".", 1)[-1] + ":"))
    return line.rsplit("|", 1)[-1].strip().split(", ")


def test_resumable_keys_are_exactly_these() -> None:
    old = VQGanConfig()
    refused = set()
    for key in configs.keys(VQGanConfig):
        new = with_another_value(old, key)
        assert (new is None) == (key == "recipe"), key
        try:
            refuse_changes(old, new or old)
        except UsageError:
            refused.add(key)
    sections = ("log", "eval", "sample", "checkpoint", "engine")
    allowed = {
        *(
            "recipe",
            "train.steps",
            "train.minutes",
            "train.grad_accum_steps",
            "train.max_nonfinite_steps",
            "train.max_rollbacks",
            "train.patience",
        ),
        *("data.path", "data.validation_path", "data.num_workers", "data.memory_megabytes", "data.cache_dir"),
    }
    everything = set(configs.keys(VQGanConfig)) - allowed
    assert refused == {key for key in everything if key.split(".")[0] not in sections}


def test_a_data_path_becomes_absolute_and_a_url_is_unchanged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert configs.data_path("photos") == str(tmp_path.resolve() / "photos")
    assert configs.data_path("s3://bucket/date=2024/set") == "s3://bucket/date=2024/set"


def test_a_number_that_is_too_large_is_named_as_such() -> None:
    with pytest.raises(UsageError, match=r"train\.seed: '9+' is too large a number"):
        parse_overrides(["train.seed=" + "9" * 30])
