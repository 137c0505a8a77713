"""The tables of the original trainers' keywords, their translation, and the migration page."""

from __future__ import annotations

import ast
import inspect
import re
import subprocess
import sys
import types
import warnings
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
from torch import nn
from torch.optim.lr_scheduler import StepLR

import quintet
from quintet import compat, registry
from quintet.compat import CompatibilityNotice, announce, translate
from quintet.compat.migration_page import PACKAGES, page, tables_page
from quintet.compat.rules import REQUIRED, OriginalTrainer, Rule
from quintet.compat.tables import TRAINERS
from quintet.compat.tables.shared import OWN, PARTS
from quintet.compat.translation import add_defaults, check_required, scale_to_processes
from quintet.compat.usages import modules_in, records_of
from quintet.config import RunConfig, build, keys
from quintet.errors import UsageError
from quintet.training.options import KEYS, TrainerOptions

SIGNATURES = {
    "MuLaNTrainer": "mulan dataset num_train_steps batch_size data_max_length folder lr grad_accum_every betas "
    "max_grad_norm valid_frac random_split_seed save_model_every results_folder accelerate_kwargs use_lion "
    "force_clear_prev_results",
    "SoundStormTrainer": "model num_train_steps num_warmup_steps batch_size dataset only_train_generator "
    "only_train_critic lr initial_lr grad_accum_every wd max_grad_norm valid_frac random_split_seed "
    "save_results_every save_model_every results_folder accelerate_kwargs split_batches drop_last "
    "force_clear_prev_results",
    "VQGanVAETrainer": "vae folder num_train_steps batch_size image_size lr grad_accum_every max_grad_norm "
    "discr_max_grad_norm save_results_every save_model_every results_folder valid_frac random_split_seed use_ema "
    "ema_beta ema_update_after_step ema_update_every apply_grad_penalty_every accelerate_kwargs",
    "CViViTTrainer": "vae num_train_steps batch_size folder train_on_images num_frames lr grad_accum_every wd "
    "max_grad_norm discr_max_grad_norm save_results_every save_model_every results_folder valid_frac "
    "random_split_seed use_ema ema_beta ema_update_after_step ema_update_every apply_grad_penalty_every "
    "accelerate_kwargs",
    "PhenakiTrainer": "phenaki folder train_on_images batch_size grad_accum_every num_frames sample_num_frames "
    "train_lr train_num_steps max_grad_norm ema_update_every ema_decay adam_betas wd save_and_sample_every "
    "num_samples results_folder amp fp16 split_batches convert_image_to sample_texts_file_path sample_texts dataset "
    "dataset_fields",
    "MeshAutoencoderTrainer": "model dataset num_train_steps batch_size grad_accum_every val_dataset val_every "
    "val_num_batches learning_rate weight_decay max_grad_norm ema_kwargs scheduler scheduler_kwargs "
    "accelerator_kwargs optimizer_kwargs checkpoint_every checkpoint_folder data_kwargs warmup_steps "
    "use_wandb_tracking",
    "MeshTransformerTrainer": "model dataset num_train_steps batch_size grad_accum_every learning_rate weight_decay "
    "max_grad_norm val_dataset val_every val_num_batches scheduler scheduler_kwargs ema_kwargs accelerator_kwargs "
    "optimizer_kwargs checkpoint_every checkpoint_folder data_kwargs warmup_steps use_wandb_tracking",
}
"""Keywords of the originals in their order, from the published packages."""

EVERY_TRAINER = [pytest.param(trainer, id=name) for name, trainer in TRAINERS.items()]
EVERY_RULE = [
    *(pytest.param(rule, id=f"{name}.{rule.keyword}") for name, table in TRAINERS.items() for rule in table.rules),
    *(pytest.param(rule, id=f"{name}.{rule.keyword}") for name, rules in PARTS.items() for rule in rules),
    *(pytest.param(rule, id=f"own.{rule.keyword}") for rule in OWN),
]


def all_rules(trainer: OriginalTrainer) -> list[Rule]:
    return [inner for rule in (*OWN, *trainer.rules) for inner in (rule, *rule.parts)]


def vqgan(**keywords: Any) -> compat.Translation:
    return translate("VQGanVAETrainer", keywords)


def by(trainer: str, *positional: Any, **keywords: Any) -> compat.Translation:
    return translate(trainer, keywords, positional)


# --- the table ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("trainer", EVERY_TRAINER)
def test_every_original_keyword_has_a_rule_in_the_original_order(trainer: OriginalTrainer) -> None:
    assert [rule.keyword for rule in trainer.rules] == SIGNATURES[trainer.name].split()


@pytest.mark.parametrize("rule", EVERY_RULE)
def test_rule_has_one_target_and_an_explanation(rule: Rule) -> None:
    targets = [rule.keys, rule.argument, rule.parts, rule.spread, rule.refused, rule.always]
    assert sum(bool(target) for target in targets) == 1
    assert rule.explanation.endswith(".")
    assert "|" not in rule.explanation
    assert rule.kind is not None or not rule.keys


def test_the_table_agrees_with_the_registry() -> None:
    for trainer in TRAINERS.values():
        assert registry.RECIPES[trainer.recipe].trainer == trainer.name


def test_every_key_is_in_the_schema_of_its_family() -> None:
    for entry in registry.RECIPES.values():
        if entry.trainer in TRAINERS:
            known = set(keys(entry.config_class()))
            assert {key for rule in all_rules(TRAINERS[entry.trainer]) for key in rule.keys} <= known, entry.trainer


def test_keys_outside_the_common_schema_are_those_of_families() -> None:
    common = set(keys(RunConfig))
    of_families = {key for trainer in TRAINERS.values() for rule in trainer.rules for key in rule.keys} - common
    assert of_families == {
        "data.frames",
        "loss.train_only",
        "loss.gradient_penalty_every",
        "optim.discriminator.max_grad_norm",
        "sample.frames",
        "sample.texts",
    }
    assert {key for rules in (*PARTS.values(), OWN) for rule in rules for key in rule.keys} <= common


def test_own_keywords_are_the_options_of_quintets_trainers() -> None:
    names = [rule.keyword for rule in OWN]
    assert names == ["model", *inspect.get_annotations(TrainerOptions)]
    for rule in OWN:
        if rule.keys:
            assert (rule.keys[0], rule.kind) == KEYS[rule.keyword]


@pytest.mark.parametrize("trainer", EVERY_TRAINER)
def test_compat_trainer_is_a_module_with_the_signature_of_the_original(trainer: OriginalTrainer) -> None:
    module = import_module(f"quintet.compat.{trainer.package.replace('-', '_')}")
    own, kind = getattr(quintet, trainer.name), getattr(module, trainer.name)
    assert issubclass(kind.own_class, own)
    assert issubclass(kind, nn.Module)
    assert [*inspect.signature(kind).parameters] == [*SIGNATURES[trainer.name].split(), "options"]
    assert not {rule.keyword for rule in trainer.rules} & set(inspect.signature(own).parameters) - {
        rule.keyword for rule in OWN
    }


@pytest.mark.parametrize("trainer", EVERY_TRAINER)
def test_the_original_defaults_are_accepted(trainer: OriginalTrainer) -> None:
    defaults = {rule.keyword: rule.default for rule in trainer.rules if rule.default is not REQUIRED}
    translation = translate(trainer.name, defaults)
    assert translation.arguments["results"].startswith("./")
    parts = {rule.keyword: {part.keyword: part.default for part in rule.parts} for rule in trainer.rules if rule.parts}
    translate(trainer.name, parts)


@pytest.mark.parametrize("trainer", EVERY_TRAINER)
def test_what_is_left_out_has_the_original_default(trainer: OriginalTrainer) -> None:
    written = {rule.keyword: rule.default for rule in trainer.rules if rule.default is not REQUIRED and rule.keys}
    shown = translate(trainer.name, {name: value for name, value in written.items() if value is not None})
    left_out = translate(trainer.name, {})
    with_val_dataset = {rule.only_with for rule in trainer.rules if rule.only_with}
    always = add_defaults(left_out, with_val_dataset)
    for key, value in shown.overrides.items():
        assert left_out.overrides[key] == value, key
    schema = registry.find(trainer.recipe).config_class()
    assert always.keys() <= set(keys(schema))
    build(schema, overrides={**always, **left_out.overrides})


def test_the_default_of_validation_needs_a_validation_set() -> None:
    translation = by("MeshTransformerTrainer", num_train_steps=5)
    always = add_defaults(translation, {"num_train_steps"})
    assert "eval.every" not in translation.overrides
    assert always["eval.every"] > 10**6
    with_one = by("MeshTransformerTrainer", val_dataset=[1], grad_accum_every=4)
    assert "eval.every" not in add_defaults(with_one, {"val_dataset", "grad_accum_every"})
    assert (with_one.overrides["eval.every"], with_one.overrides["eval.batches"]) == (1, 20)


def test_a_key_that_was_set_keeps_its_value() -> None:
    translation = vqgan(steps=5, config={"ema": {"decay": 0.5}})
    add_defaults(translation, {"steps", "config"})
    assert translation.overrides["ema.decay"] == 0.5
    assert translation.overrides["train.grad_accum_steps"] == 1


def test_the_batch_of_one_process_becomes_that_of_all() -> None:
    for is_total, wanted in ((False, 24), (True, 8)):
        translation = vqgan(batch_size=4, grad_accum_every=2)
        scale_to_processes(translation, is_total, 3)
        assert translation.overrides["train.batch_size"] == wanted


def test_a_number_without_a_default_is_required() -> None:
    with pytest.raises(UsageError, match="VQGanVAETrainer needs num_train_steps"):
        check_required(vqgan(batch_size=4))
    check_required(vqgan(batch_size=4, steps=5))


def test_examples_are_possible_values() -> None:
    for rule in (rule for trainer in TRAINERS.values() for rule in all_rules(trainer)):
        if rule.kind is not None and rule.kind.example[0].isdigit():
            rule.kind.accept(float(rule.kind.example))


# --- translating --------------------------------------------------------------------------------------------


def test_all_keywords_of_the_vqgan_trainer() -> None:
    model = object()
    translation = vqgan(
        vae=model,
        folder="photos",
        num_train_steps=1e4,
        batch_size=4,
        image_size=128,
        lr=1e-4,
        grad_accum_every=2,
        max_grad_norm=1,
        discr_max_grad_norm=0.5,
        save_results_every=50,
        save_model_every=500,
        results_folder="results",
        valid_frac=0.1,
        random_split_seed=7,
        use_ema=True,
        ema_beta=0.99,
        ema_update_after_step=10,
        ema_update_every=2,
        apply_grad_penalty_every=8,
        accelerate_kwargs={"mixed_precision": "bf16", "log_with": ["wandb"], "kwargs_handlers": []},
    )
    assert translation.arguments == {"model": model, "data": "photos", "image_size": 128, "results": "results"}
    assert translation.overrides == {
        "train.steps": 10_000,
        "train.batch_size": 8,
        "optim.lr": 1e-4,
        "train.grad_accum_steps": 2,
        "optim.max_grad_norm": 1.0,
        "optim.discriminator.max_grad_norm": 0.5,
        "sample.every": 50,
        "checkpoint.every": 500,
        "data.validation_fraction": 0.1,
        "data.split_seed": 7,
        "ema.enabled": True,
        "ema.decay": 0.99,
        "ema.start": 10,
        "ema.every": 2,
        "loss.gradient_penalty_every": 8,
        "engine.precision": "bf16",
        "log.trackers": ("wandb",),
    }
    config = build(registry.find("vqgan").config_class(), overrides=translation.overrides)
    assert (config.train.steps, config.train.batch_size, config.ema.decay) == (10_000, 8, 0.99)


def test_own_keywords_of_the_readme() -> None:
    settings = {"ema.decay": 0.9, "optim": {"schedule": "constant"}}
    translation = vqgan(data="photos", out="runs/tok", steps=10, batch_size=16, grad_accum_steps=4, config=settings)
    assert translation.arguments == {"data": "photos", "out": "runs/tok"}
    assert translation.overrides == {
        "train.steps": 10,
        "train.batch_size": 16,
        "train.grad_accum_steps": 4,
        "ema.decay": 0.9,
        "optim.schedule": "constant",
    }
    assert not translation.notices


def test_none_means_not_given() -> None:
    translation = vqgan(folder=None, lr=None, discr_max_grad_norm=None, accelerate_kwargs=None, steps=None)
    assert (translation.overrides, translation.arguments, translation.notices) == ({}, {}, [])


@pytest.mark.parametrize("trainer", EVERY_TRAINER)
def test_none_disables_clipping(trainer: OriginalTrainer) -> None:
    assert by(trainer.name, max_grad_norm=None).overrides == {"optim.max_grad_norm": None}


def test_counts_of_micro_batches_become_counts_of_steps() -> None:
    translation = by("MeshAutoencoderTrainer", batch_size=4, grad_accum_every=8, val_num_batches=5)
    assert translation.overrides == {"train.batch_size": 32, "train.grad_accum_steps": 8, "eval.batches": 40}
    assert translation.notices == []
    assert vqgan(grad_accum_every=2).overrides == {"train.grad_accum_steps": 2}


def test_positional_arguments() -> None:
    model, data = object(), object()
    translation = by("MeshAutoencoderTrainer", model, data, 100, 4, 2)
    assert translation.arguments == {"model": model, "data": data}
    assert translation.overrides == {"train.steps": 100, "train.batch_size": 8, "train.grad_accum_steps": 2}
    assert not by("VQGanVAETrainer", model, data="photos").notices
    with pytest.raises(UsageError, match=r"takes 1 positional argument\(s\) \(vae\)"):
        by("VQGanVAETrainer", model, "photos")
    for keyword in ("vae", "model"):
        with pytest.raises(UsageError, match="both by position and by keyword"):
            by("VQGanVAETrainer", model, **{keyword: model})


def test_values_that_are_converted() -> None:
    assert by("MuLaNTrainer", use_lion=True).overrides == {"optim.name": "lion"}
    assert by("MuLaNTrainer", use_lion=False).overrides == {"optim.name": "adam"}
    assert by("SoundStormTrainer", only_train_critic=True).overrides == {"loss.train_only": "critic"}
    assert by("SoundStormTrainer", only_train_critic=False).overrides == {}
    assert by("PhenakiTrainer", save_and_sample_every=5).overrides == {"sample.every": 5, "checkpoint.every": 5}
    assert by("PhenakiTrainer", amp=True, fp16=True).overrides == {"engine.precision": "bf16"}
    assert by("PhenakiTrainer", adam_betas=[0.5, 0.9]).overrides == {"optim.betas": (0.5, 0.9)}
    assert by("MeshAutoencoderTrainer", use_wandb_tracking=True).overrides == {"log.trackers": ("wandb",)}
    assert by("MeshAutoencoderTrainer", ema_kwargs={"beta": 0.9, "use_foreach": True}).overrides == {"ema.decay": 0.9}


def test_engine_arguments() -> None:
    translation = vqgan(accelerate_kwargs={"mixed_precision": "fp16", "cpu": True, "dynamo_backend": "INDUCTOR"})
    assert translation.overrides == {"engine.precision": "bf16", "engine.device": "cpu", "engine.compile": True}
    assert len(translation.notices) == 1
    assert "bf16" in translation.notices[0]
    enumeration = types.SimpleNamespace(value="no")
    assert vqgan(accelerate_kwargs={"mixed_precision": enumeration}).overrides == {"engine.precision": "fp32"}
    silent = vqgan(accelerate_kwargs={"split_batches": True, "cpu": False, "gradient_accumulation_steps": 1})
    assert (silent.overrides, silent.notices) == ({}, [])


def test_schedulers_by_class() -> None:
    translation = by("MeshAutoencoderTrainer", scheduler=StepLR, scheduler_kwargs={"step_size": 5})
    assert translation.arguments == {"scheduler": StepLR, "scheduler_kwargs": {"step_size": 5}}
    for keywords in ({"scheduler": "StepLR"}, {"scheduler_kwargs": 3}):
        with pytest.raises(UsageError, match="is invalid"):
            by("MeshAutoencoderTrainer", **keywords)


def test_optimizer_arguments() -> None:
    translation = by("MeshTransformerTrainer", optimizer_kwargs={"amsgrad": True, "eps": 1e-6, "fused": True})
    assert (translation.overrides, translation.notices) == ({"optim.amsgrad": True, "optim.eps": 1e-6}, [])
    for name, value in (("maximize", True), ("omit_gammas_and_betas_from_wd", False)):
        with pytest.raises(UsageError, match=rf"optimizer_kwargs\['{name}'\]={value} is refused"):
            by("MeshTransformerTrainer", optimizer_kwargs={name: value})


def test_captions_from_a_file(tmp_path: Path) -> None:
    file = tmp_path / "captions.txt"
    file.write_text("a red circle\n\na blue square\n", encoding="utf-8")
    translation = by("PhenakiTrainer", sample_texts_file_path=file)
    assert translation.overrides == {"sample.texts": ("a red circle", "a blue square")}
    with pytest.raises(UsageError, match=r"sample_texts_file_path=.*readable text file"):
        by("PhenakiTrainer", sample_texts_file_path=tmp_path / "missing.txt")


def test_clearing_results_has_no_effect() -> None:
    (notice,) = by("MuLaNTrainer", force_clear_prev_results=True).notices
    assert "nothing is ever deleted" in notice
    for value in (None, False):
        assert by("MuLaNTrainer", force_clear_prev_results=value).notices == []


def test_keyword_without_effect_is_reported_unless_it_fits() -> None:
    (notice,) = by("SoundStormTrainer", drop_last=True, split_batches=True).notices
    assert notice.startswith("drop_last=True has no effect: ")


# --- bad input ----------------------------------------------------------------------------------------------

INVALID: list[tuple[str, Any, str]] = [
    ("num_train_steps", 0, "train.steps"),
    ("num_train_steps", -5, "train.steps"),
    ("num_train_steps", "many", "train.steps"),
    ("num_train_steps", 2.5, "train.steps"),
    ("num_train_steps", float("inf"), "train.steps"),
    ("num_train_steps", True, "train.steps"),
    ("batch_size", 0, "train.batch_size"),
    ("batch_size", "16", "train.batch_size"),
    ("lr", -1, "optim.lr"),
    ("lr", 0, "optim.lr"),
    ("lr", float("nan"), "optim.lr"),
    ("lr", "3e-4", "optim.lr"),
    ("grad_accum_every", 0, "train.grad_accum_steps"),
    ("max_grad_norm", 0, "optim.max_grad_norm"),
    ("discr_max_grad_norm", -0.5, "optim.discriminator.max_grad_norm"),
    ("save_results_every", 0, "sample.every"),
    ("save_model_every", -1, "checkpoint.every"),
    ("valid_frac", 1.5, "data.validation_fraction"),
    ("valid_frac", 1, "data.validation_fraction"),
    ("valid_frac", -0.1, "data.validation_fraction"),
    ("random_split_seed", -1, "data.split_seed"),
    ("use_ema", "yes", "ema.enabled"),
    ("ema_beta", 2, "ema.decay"),
    ("ema_beta", 1.0, "ema.decay"),
    ("ema_update_after_step", -1, "ema.start"),
    ("ema_update_every", 0, "ema.every"),
    ("apply_grad_penalty_every", 0, "loss.gradient_penalty_every"),
    ("steps", 0, "train.steps"),
    ("num_workers", -1, "data.num_workers"),
    ("lr_schedule", 3e-4, "lr_schedule"),
]


@pytest.mark.parametrize(("keyword", "value", "key"), INVALID)
def test_invalid_value_names_keyword_key_and_fix(keyword: str, value: Any, key: str) -> None:
    with pytest.raises(UsageError) as caught:
        vqgan(**{keyword: value})
    message = str(caught.value)
    assert f"{keyword}={value!r}" in message
    assert key in message
    assert f"for example {keyword}=" in message
    assert "\n" not in message


@pytest.mark.parametrize(
    ("keyword", "value", "message"),
    [
        ("accelerate_kwargs", 3, "expected a dictionary"),
        ("config", "train.steps=3", "expected a dictionary"),
        (
            "accelerate_kwargs",
            {"mixed_precision": "fp8"},
            r"accelerate_kwargs\['mixed_precision'\]='fp8'.*engine\.prec",
        ),
        ("accelerate_kwargs", {"log_with": "all"}, r"log\.trackers.*'trackio'"),
        ("accelerate_kwargs", {"mixed_precison": "no"}, "did you mean 'mixed_precision'"),
        ("accelerate_kwargs", {"fsdp_plugin": object()}, "refused: distributed training"),
        ("accelerate_kwargs", {"gradient_accumulation_steps": 4}, "refused: use the trainer's"),
    ],
)
def test_dictionaries_are_checked_entry_by_entry(keyword: str, value: Any, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        vqgan(**{keyword: value})


def test_a_contrastive_batch_needs_two_items() -> None:
    with pytest.raises(UsageError, match=r"batch_size=1 .*train\.batch_size.*at least 2"):
        by("MuLaNTrainer", batch_size=1)


@pytest.mark.parametrize(
    ("keyword", "near"),
    [("num_train_step", "num_train_steps"), ("learning_rate", "lr"), ("val_dataset", "validation"), ("datas", "data")],
)
def test_an_unknown_keyword_names_the_nearest(keyword: str, near: str) -> None:
    with pytest.raises(UsageError, match=f"no keyword '{keyword}'; did you mean '{near}'"):
        vqgan(**{keyword: 1})


def test_unknown_keyword_without_a_near_match_lists_all() -> None:
    with pytest.raises(UsageError, match=r"it has model, data, .*accelerate_kwargs"):
        vqgan(xyzzy=1)


def test_two_keywords_for_one_key_must_agree() -> None:
    with pytest.raises(UsageError, match=r"num_train_steps and steps both set train\.steps"):
        vqgan(num_train_steps=10, steps=20)
    with pytest.raises(UsageError, match=r"steps and config both set train\.steps"):
        vqgan(steps=10, config={"train": {"steps": 20}})
    with pytest.raises(UsageError, match="folder and dataset both set data"):
        by("PhenakiTrainer", folder="a", dataset=object())
    with pytest.raises(UsageError, match=r"both set loss\.train_only"):
        by("SoundStormTrainer", only_train_generator=True, only_train_critic=True)
    assert vqgan(num_train_steps=10, steps=10).overrides == {"train.steps": 10}


def test_unknown_trainer_is_an_error_that_lists_the_known_ones() -> None:
    with pytest.raises(UsageError, match="unknown trainer 'GanTrainer'; known: MuLaNTrainer"):
        translate("GanTrainer", {})


# --- the notice ---------------------------------------------------------------------------------------------


def test_one_notice_for_the_call_at_the_callers_line() -> None:
    translation = vqgan(num_train_steps=10, folder="photos", accelerate_kwargs={"project_dir": "elsewhere"})
    # Called from inside the package, as by a trainer.
    module = types.ModuleType("quintet.families.some")
    exec("def construct(announce, translation):\n    announce(translation)", module.__dict__)
    with pytest.warns(CompatibilityNotice) as caught:
        module.construct(announce, translation)
    (warning,) = caught
    assert warning.filename == __file__
    message = str(warning.message)
    assert message.startswith("VQGanVAETrainer: accelerate_kwargs['project_dir']='elsewhere' has no effect: ")
    assert "num_train_steps" not in message
    assert message.endswith("(see docs/migration.md)")


def test_keywords_that_only_have_another_name_cause_no_notice() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        announce(vqgan(steps=10, data="photos", batch_size=2, lr=1e-4))
        announce(by("SoundStormTrainer", object(), batch_size=2))
        announce(vqgan(num_train_steps=10, folder="photos", batch_size=2, grad_accum_every=2))


# --- the page -----------------------------------------------------------------------------------------------


def test_the_pages_in_the_documentation_are_up_to_date() -> None:
    folder = Path(__file__).parents[2] / "docs"
    for name, text in (("migration.md", page()), ("migration-tables.md", tables_page())):
        assert (folder / name).read_text(encoding="utf-8") == text, "run `make migration`"


NOTICES = ("notify", "notices.append")


def noticed_names(package: str) -> set[str]:
    """The arguments that the warnings of a package name: words with an underscore in the text of a notice."""
    names: set[str] = set()
    for file in (Path(compat.__file__).parent / package).glob("*.py"):
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call) and ast.unparse(node.func) in NOTICES:
                texts = [each.value for each in ast.walk(node) if isinstance(each, ast.Constant)]
                names.update(re.findall(r"[a-z]+(?:_[a-z0-9]+)+", " ".join(map(str, texts))))
    return names


@pytest.mark.parametrize("package", PACKAGES)
def test_the_page_has_every_subject_of_a_warning(package: str) -> None:
    section = page().split(f"### {package}\n")[1].split("\n### ")[0]
    assert not [name for name in noticed_names(package.replace("-", "_")) if name not in section]
    joined = " ".join(section.split())
    for trainer in TRAINERS.values():
        if trainer.package == package:
            assert all(f"`{rule.keyword}`" in joined for rule in trainer.rules if rule.always or rule.refused)


def test_the_page_has_every_refusal_that_was_executed() -> None:
    joined = " ".join(page().split())
    refusals = [row for module in modules_in() for row in records_of(module) if row.refusal]
    assert len(refusals) > 20
    for row in refusals:
        assert row.refusal.removeprefix(f"{row.name}: ") in joined


def test_the_pages_name_every_trainer_keyword_and_file() -> None:
    text = tables_page()
    for trainer in TRAINERS.values():
        section = text.split(f"### {trainer.name}\n")[1].split("\n##")[0]
        assert all(f"| `{rule.keyword}` |" in section for rule in trainer.rules)
    for name in ("VQGanVAE", "MuLaN", "SoundStorm", "Phenaki", "CViViT", "MeshAutoencoder", "MeshTransformer"):
        assert f"`{name}`" in page().split("## Old weights")[1]


def test_the_module_prints_the_page_without_torch() -> None:
    code = (
        "import runpy, sys; runpy.run_module('quintet.compat', run_name='__main__'); sys.exit('torch' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == page()
