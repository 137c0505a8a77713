"""Former names of keys: stored configurations are read with them; the command line and Python name the present key."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from helpers import quintet
from quintet import registry
from quintet.config import build, keys, migrated, parse_overrides
from quintet.config.aliases import KEYS, VALUES, renamed
from quintet.errors import UsageError
from quintet.families.vqgan.model import VQGanVAE

SCHEMAS = dict(registry.config_classes())


@pytest.mark.parametrize(("former", "present"), KEYS.items())
def test_every_former_key_leads_to_a_key_of_some_recipe(former: str, present: str) -> None:
    owners = [recipe for recipe, schema in SCHEMAS.items() if renamed(former, set(keys(schema))) == present]
    assert owners


def test_values_are_translated_for_former_keys_only() -> None:
    assert VALUES.keys() <= KEYS.keys()


@pytest.mark.parametrize("recipe", SCHEMAS)
def test_a_configuration_in_former_keys_is_the_same_configuration(recipe: str) -> None:
    schema = SCHEMAS[recipe]
    config = build(schema, preset="debug")
    tree = config.model_dump(mode="json")
    for former, present in KEYS.items():
        if renamed(former, set(keys(schema))) != present:
            continue
        *outer, last = present.split(".")
        section = tree
        for name in outer:
            section = section[name]
        if last not in section:
            continue  # two former keys became this one, and the other is back already
        value = section.pop(last)
        written = {new: old for old, new in VALUES.get(former, {}).items()}
        *outer, last = former.split(".")
        section = tree
        for name in outer:
            section = section[name]
        section[last] = written.get(value, value) if isinstance(value, bool) else value
    assert not set(KEYS.values()) & set(_dotted(tree)) - set(KEYS)
    assert schema.model_validate(migrated(schema, tree)) == config


def _dotted(tree: dict[str, object], prefix: str = "") -> list[str]:
    found: list[str] = []
    for key, value in tree.items():
        found += _dotted(value, f"{prefix}{key}.") if isinstance(value, dict) else [f"{prefix}{key}"]
    return found


def test_a_config_file_in_former_keys_is_read(tmp_path: Path) -> None:
    file = tmp_path / "old.yaml"
    file.write_text("train.accumulate: 2\nengine: {shard: full}\noptim: {horizon: 7}\n", encoding="utf-8")
    config = build(SCHEMAS["muse"], file=file)
    assert (config.train.grad_accum_steps, config.engine.fsdp, config.optim.decay_steps) == (2, True, 7)


def test_python_refuses_a_former_key_and_names_the_present_one() -> None:
    with pytest.raises(UsageError, match=r"'train\.accumulate': it was renamed to 'train\.grad_accum_steps'"):
        build(SCHEMAS["vqgan"], overrides=parse_overrides(["train.accumulate=2"]))


def test_the_command_line_refuses_a_former_key_and_names_the_present_one(tmp_path: Path) -> None:
    outcome = quintet("train", "vqgan", tmp_path, "--preset", "debug", "model.quantizer_levels=2")
    assert outcome.code == 2
    assert "unknown key 'model.quantizer_levels': it was renamed to 'model.num_quantizers'" in outcome.errors


def test_an_exported_model_with_former_keys_opens(tmp_path: Path) -> None:
    model = VQGanVAE(image_size=16, dim=8, layers=2, codebook_size=16, num_quantizers=2)
    model.save_pretrained(tmp_path / "model")
    file = tmp_path / "model" / "config.json"
    settings = json.loads(file.read_text())
    settings["model"]["quantizer_levels"] = settings["model"].pop("num_quantizers")
    file.write_text(json.dumps(settings))
    (tmp_path / "model" / "SHA256SUMS").unlink(missing_ok=True)
    assert VQGanVAE.from_pretrained(tmp_path / "model").config == model.config
