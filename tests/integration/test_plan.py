"""`quintet plan`, through the real command: what it prints, what it refuses, and its memory against a real step."""

from __future__ import annotations

import importlib.util
import json
import re
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType

import pytest

from helpers import environment, error_line, quintet, succeed
from quintet import registry

BENCHMARK = Path(__file__).parents[2] / "benchmarks" / "plan.py"


@pytest.mark.parametrize("recipe", registry.RECIPES)
def test_every_recipe_is_planned_without_data_and_without_a_tokenizer(
    recipe: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    output = succeed("plan", recipe, "--preset", "debug", "--device", "a100", "--price-per-hour", "2").output
    for row in ("parameters", "weights", "gradients", "optimizer state", "EMA", "fixed", "activations"):
        assert re.search(rf"^ *{row} +\S", output, re.MULTILINE), row
    assert re.search(r"^batch +train.grad_accum_steps=1: 1 x \d+ samples per device, \d", output, re.MULTILINE)
    assert re.search(r"^time of the training .* to .* \(train.steps=20\)$", output, re.MULTILINE)
    assert re.search(r"^price +\S+ to \S+$", output, re.MULTILINE)
    assert re.search(r"^checkpoint +\d", output, re.MULTILINE)
    assert list(tmp_path.iterdir()) == []


def test_keys_and_devices_change_the_plan() -> None:
    small = ("plan", "muse", "--preset", "small", "--device", "4090")
    assert "train.grad_accum_steps=1: 1 x 8 samples per device" in succeed(*small, "--devices", "8").output
    batch = succeed(*small, "train.batch_size=65536").output
    found = re.search(r"train.grad_accum_steps=(\d+): \1 x (\d+) samples per device", batch)
    assert found
    assert int(found[1]) > 1
    assert int(found[1]) * int(found[2]) == 65536


def test_the_plan_of_this_machine_has_its_memory() -> None:
    output = succeed("plan", "vqgan", "--preset", "debug", "--device", "cpu").output
    assert re.match(r"vqgan --preset debug on 1 x cpu \(\d.* GB\), fp32\n", output)


def test_a_device_without_bf16_is_noted() -> None:
    words = ("plan", "vqgan", "--preset", "debug", "--device", "t4")
    assert "use engine.precision=auto" in succeed(*words, "engine.precision=bf16").output
    assert "note:" not in succeed(*words).output


WRONG: dict[str, tuple[Sequence[str], str]] = {
    "device": (("muse", "--device", "h10"), "unknown --device 'h10'; did you mean 'h100'? known devices: h100, a100"),
    "recipe": (("muze",), "unknown recipe 'muze'; did you mean 'muse'?"),
    "devices": (("muse", "--devices", "0"), "--devices 0 must be at least 1"),
    "uneven": (("muse", "--devices", "3"), "train.batch_size=16 is not divisible by 3 processes"),
    "price": (("muse", "--price-per-hour", "-1"), "--price-per-hour -1 must be a number of 0 or more"),
    "no number": (("muse", "--price-per-hour", "nan"), "--price-per-hour nan must be a number of 0 or more"),
    "preset": (("muse", "--preset", "huge"), "huge"),
    "no weights": (("mesh-autoencoder", "model.kind=coordinates"), "has no weights to train with these keys"),
    "batch": (("mulan", "--preset", "debug", "train.batch_size=1"), "needs train.batch_size of at least 2"),
    "key": (("muse", "model.dimm=3"), "model.dimm"),
}


@pytest.mark.parametrize("name", WRONG)
def test_bad_input_is_one_sentence(name: str) -> None:
    words, expected = WRONG[name]
    outcome = quintet("plan", *words)
    assert outcome.code == 2
    assert expected in error_line(outcome.errors)
    assert outcome.output == ""


def test_a_preset_that_cannot_fit_is_refused_after_its_figures() -> None:
    large = ("model.depth=64", "engine.activation_checkpointing=false")
    outcome = quintet("plan", "phenaki", "--preset", "base", "--device", "t4", *large)
    assert outcome.code == 2
    line = error_line(outcome.errors)
    assert "'phenaki' does not fit on t4: a micro-batch of one sample needs" in line
    assert "engine.activation_checkpointing=true" in line
    assert "largest micro-batch  0 samples" in outcome.output


def test_a_tokenizer_that_does_not_exist_is_named() -> None:
    outcome = quintet("plan", "muse", "tokenizer=nowhere")
    assert outcome.code == 2
    assert "nowhere" in error_line(outcome.errors)


def test_arguments_are_checked_before_torch_is_imported() -> None:
    code = """
import sys
from quintet.cli import call
from quintet.errors import UsageError
for words in (["--device", "x"], ["--devices", "0"], ["model.dimm=3"], ["--preset", "huge"], ["--devices", "3"]):
    try:
        call(["plan", "muse", *words])
    except UsageError:
        assert "torch" not in sys.modules, words
    else:
        raise AssertionError(words)
"""
    subprocess.run([sys.executable, "-c", code], env=environment(), check=True)


@pytest.fixture(scope="module")
def benchmark() -> ModuleType:
    spec = importlib.util.spec_from_file_location("benchmark_plan", BENCHMARK)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look their module up
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(BENCHMARK.parent))
        spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("recipe", ["phenaki", "mulan", "cvivit", "audio-codec", "mesh-transformer"])
def test_the_planned_memory_is_that_of_a_real_step_on_a_cpu(recipe: str, benchmark: ModuleType) -> None:
    """In a process of its own, by the high-water mark of the kernel; see `make bench-plan`."""
    command = [sys.executable, str(BENCHMARK), "--measure", recipe]
    result = subprocess.run(
        command, env=environment(**benchmark.ENVIRONMENT), stdout=subprocess.PIPE, check=True, text=True
    )
    planned, measured = benchmark.plan(recipe), json.loads(result.stdout.splitlines()[-1])
    assert planned["planned_bytes"] == pytest.approx(measured["measured_bytes"], rel=0.1)
    assert planned["planned_flops"] == pytest.approx(measured["counted_flops"], rel=0.1)
