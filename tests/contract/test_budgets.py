"""Every recipe: `quintet train --budget` chooses the keys of a run, records them, and stays exact."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import yaml

from contract.cases import Case
from helpers import error_line, quintet, state, succeed
from quintet import config as configs
from quintet import registry
from quintet.config import budget as budgets
from quintet.config.budget import Budget
from quintet.families.vqgan.config import VQGanConfig
from quintet.training import budget as timing
from quintet.training.pace import Pace

LENGTH = ("train.steps=", "eval.every=", "sample.every=", "checkpoint.every=")


def test_a_run_with_a_budget_prints_and_records_its_keys(recipe: str, case: Case, data: Path, tmp_path: Path) -> None:
    words = [word for word in case.tiny if not word.startswith(LENGTH)]
    output = succeed("train", recipe, data, "--out", tmp_path / "run", *words, "--budget", "1s").errors
    (line,) = [line for line in output.splitlines() if line.startswith("--budget 1s: ")]
    first = int(re.search(r" train\.steps=(\d+) ", line)[1])  # type: ignore[index]
    corrected = [int(steps) for steps in re.findall(r"^budget: .* train\.steps: \d+ -> (\d+)$", output, re.MULTILINE)]
    config = yaml.safe_load((tmp_path / "run" / "config.yaml").read_text("utf-8"))
    assert config["train"]["steps"] == [first, *corrected][-1]
    assert config["train"]["minutes"] == pytest.approx(1 / 60, abs=1e-5)
    assert config["optim"]["decay_steps"] == first
    assert [end for _, end in config["optim"]["decay_extensions"]] == [
        steps for before, steps in zip([first, *corrected], corrected, strict=False) if steps != before
    ]
    assert config["train"]["batch_size"] == 4, "the key of the command"
    assert config["checkpoint"]["every"] == -(-first // 4)
    assert state(tmp_path / "run")["steps"] == config["train"]["steps"]


@pytest.mark.parametrize("recipe", ["vqgan"], indirect=True)
def test_a_run_with_a_budget_is_reproduced_and_says_what_a_correction_drops(
    case: Case, data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Independent of the speed of this machine: 24 steps are estimated, and each correction takes away two of them.
    monkeypatch.setattr(timing, "seconds_per_step", lambda trainer, limit: 4.9)
    monkeypatch.setattr(Pace, "plan", lambda pace, step, steps: (max(step + 1, steps - 2), 5.0))
    words = [word for word in case.tiny if not word.startswith((*LENGTH, "loss.discriminator_start="))]
    words += ["--budget", "2m", "loss.discriminator_start=21"]
    output = succeed("train", "vqgan", data, "--out", tmp_path / "run", *words).errors
    config = yaml.safe_load((tmp_path / "run" / "config.yaml").read_text("utf-8"))
    assert config["optim"]["decay_extensions"][:2] == [[6, 22], [10, 20]]
    assert config["train"]["steps"] < 20
    before, after = output.split("train.steps: 22 -> 20\n")
    assert "warning: loss.discriminator_start" not in before
    assert after.count("warning: loss.discriminator_start=21, and the run ends at step 20 (train.steps)") == 1
    assert output.count("warning: loss.discriminator_start") == 1
    succeed("verify", tmp_path / "run", "--from", 0)


def test_a_budget_uses_the_preset_small_and_a_batch_that_the_data_has(tmp_path: Path) -> None:
    succeed("data", "make", "shapes", tmp_path / "data", "--num", 14, "--size", 32)
    keys = ("model.image_size=16", "model.dim=8", "loss.discriminator_dim=8", "log.trackers=[]")
    output = succeed("train", "vqgan", tmp_path / "data", "--out", tmp_path / "run", *keys, "--budget", "1.5s").errors
    config = yaml.safe_load((tmp_path / "run" / "config.yaml").read_text("utf-8"))
    preset = configs.build(VQGanConfig, preset="small")
    assert (config["preset"], config["model"]["dim"], config["optim"]["lr"]) == ("small", 8, preset.optim.lr)
    assert config["train"]["batch_size"] == 8
    assert f"--budget 1.5s: model.dim=8 train.batch_size=8 optim.lr={preset.optim.lr:g} train.steps=" in output
    fraction = preset.loss.discriminator_start / preset.train.steps
    assert config["loss"]["discriminator_start"] == pytest.approx(config["optim"]["decay_steps"] * fraction, abs=1)


@pytest.mark.parametrize("budget", ["0m", "-5m", "ten", "1e9h", "10", "999999999h", "nanh", "", "1m ", "0.5s"])
def test_a_budget_that_is_no_time_is_refused(budget: str, tmp_path: Path) -> None:
    outcome = quintet("train", "vqgan", tmp_path, f"--budget={budget}")
    assert outcome.code == 2
    assert "give a time such as 90s, 10m or 1.5h" in error_line(outcome.errors)


@pytest.mark.parametrize(
    "key", ["train.steps=5", "train.minutes=3", "train.epochs=2", "optim.decay_steps=9", "optim.scheduler=StepLR(5)"]
)
def test_a_budget_and_another_length_are_refused(key: str, tmp_path: Path) -> None:
    outcome = quintet("train", "vqgan", tmp_path, "--budget", "10m", key)
    assert outcome.code == 2
    assert f"leave out {key}, or leave out --budget" in error_line(outcome.errors)
    name, _, value = key.partition("=")
    section, _, name = name.partition(".")
    (tmp_path / "keys.yaml").write_text(f"{section}: {{{name}: {value}}}\n", "utf-8")
    outcome = quintet("train", "vqgan", tmp_path, "--budget", "10m", "--config", tmp_path / "keys.yaml")
    assert outcome.code == 2
    assert f"leave out {key}, or leave out --budget" in error_line(outcome.errors)


def test_the_keys_of_a_budget_are_valid_for_every_recipe_and_speed(recipe: str) -> None:
    config = configs.build(registry.find(recipe).config_class(), preset=budgets.PRESET)
    for seconds in (1e-4, 1.0, 1e4):
        config.changed(Budget("10m", 600.0).length_keys(config, seconds))


def test_keys_of_a_section_count_as_keys_of_the_user(tmp_path: Path) -> None:
    outcome = quintet("train", "vqgan", tmp_path, "--budget", "10m", "train={steps: 5}")
    assert outcome.code == 2
    assert "leave out train.steps=5, or leave out --budget" in error_line(outcome.errors)
    own = {"optim": {"warmup_steps": 7}}
    keys = Budget.of("10m", VQGanConfig, overrides=own).length_keys(configs.build(VQGanConfig, overrides=own), 1.0)
    assert "optim.warmup_steps" not in keys


def test_only_longer_runs_validate_before_their_last_step() -> None:
    config = configs.build(VQGanConfig, preset="small")
    keys = [Budget("", seconds).length_keys(config, 0.1) for seconds in (100.0, 1000.0)]
    assert [each["train.steps"] for each in keys] == [990, 9900]
    assert [each["eval.every"] for each in keys] == [each["sample.every"] for each in keys] == [1980, 2475]
    assert [each["checkpoint.every"] for each in keys] == [248, 2475]
    fraction = config.loss.discriminator_start / config.train.steps
    assert [each["loss.discriminator_start"] for each in keys] == [round(fraction * steps) for steps in (990, 9900)]


def test_the_first_step_is_not_timed_however_slow_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    trainer = Steps([100.0, 3.0, 5.0, 1.0])
    monkeypatch.setattr(timing, "time", trainer)
    assert timing.seconds_per_step(trainer, limit=2.0) == 3.0  # type: ignore[arg-type]
    trainer = Steps([100.0, 3.0, 5.0, 1.0])
    monkeypatch.setattr(timing, "time", trainer)
    assert timing.seconds_per_step(trainer, limit=7.0) == 4.0  # type: ignore[arg-type]


class Steps:
    """A trainer and its clock: each step takes a given time."""

    def __init__(self, seconds: list[float]) -> None:
        self.config = configs.build(VQGanConfig, overrides={"train.steps": len(seconds)})
        self.engine = self
        self._left = seconds
        self._now = 0.0

    def train_step(self) -> None:
        self._now += self._left.pop(0)

    def perf_counter(self) -> float:
        return self._now

    def any_rank(self, *flags: bool) -> list[bool]:
        return [*flags]
