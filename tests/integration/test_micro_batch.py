"""`train.grad_accum_steps=auto` finds the largest micro-batch that fits, on a fake GPU of a few hundred kilobytes."""

from __future__ import annotations

import gc
import json
import os
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path

import pytest

from fakegpu.commands import use_device
from fakegpu.device import MODE
from helpers import (
    TINY,
    Process,
    error_line,
    forked,
    free_port,
    log_text,
    metrics,
    quintet,
    step_folder,
    succeed,
    train_tiny,
)
from quintet.cli import call, main
from quintet.common.weights import checkpoint
from quintet.registry import read_config
from quintet.training.planning import fitting

KEYS = (
    *("train.batch_size=16", "train.steps=4", "optim.decay_steps=4", "eval.every=4", "sample.every=4"),
    *("loss.discriminator_start=2", "loss.discriminator_dim=16"),
    "ema.enabled=false",  # its copies are out of the sight of the fake GPU
)
"""The discriminator begins after two steps, which then need more memory."""
KILOBYTE = 1000


def words(data: Path, out: Path, *more: object) -> list[str]:
    return [str(word) for word in ("train", "vqgan", data, "--out", out, *TINY, *KEYS, *more)]


def on_gpu(check: Callable[[], None], nccl: bool = False) -> None:
    """Call a function in a process with the fake GPU; ends the process."""
    use_device(refuse_float64=not nccl, refuse_cpu_collectives=nccl)
    code = 0
    try:
        check()
    except SystemExit as ended:
        code = int(ended.code or 0)
    except BaseException:
        traceback.print_exc()
        code = 1
    os._exit(code)


@contextmanager
def gpu(folder: Path, check: Callable[[], None]) -> Iterator[Process]:
    with forked([], folder / "said", partial(on_gpu, check)) as process:
        yield process


def peak_of(commands: Sequence[str]) -> int:
    """The largest number of bytes that are alive on the device during a command."""
    gc.collect()
    before = MODE.memory.peak = MODE.memory.used
    call(commands)
    return MODE.memory.peak - before


def train_in(memory: int, commands: Sequence[str]) -> None:
    """Run a command with so many bytes of memory, besides those that are in use already."""
    gc.collect()
    MODE.rules.memory = MODE.memory.used + memory
    call(commands)


def recorded(run: Path) -> object:
    return read_config(run / "config.yaml").train.grad_accum_steps


def tensors_of(run: Path) -> dict[str, str]:
    """The hashes of all weights and moments after the last step."""
    found = checkpoint.hashes(step_folder(run, 4))
    return {name: value for name, value in found.items() if name.endswith(".safetensors")}


def losses(run: Path) -> list[dict[str, float]]:
    measured = ("time", "rate/", "time/")
    return [
        {name: value for name, value in row.items() if not any(part in name for part in measured)}
        for row in metrics(run)
    ]


def train_with_limits(data: Path, folder: Path) -> None:
    fixed, early = folder / "fixed", folder / "early"
    whole = peak_of(words(data, fixed, "train.grad_accum_steps=4"))
    first = peak_of(words(data, early, "train.grad_accum_steps=4", "train.steps=2"))
    (folder / "peaks.json").write_text(json.dumps({"whole": whole, "first": first}))
    train_in(whole + whole // 10, words(data, folder / "auto", "train.grad_accum_steps=auto", "train.steps=2"))
    train_in(whole + whole // 10, ["resume", str(folder / "auto"), "train.steps=4", "train.grad_accum_steps=auto"])
    # Enough for every step before the discriminator begins, and for none after it.
    train_in((whole + first) // 2, words(data, folder / "late", "train.grad_accum_steps=auto"))


def test_auto_is_the_largest_micro_batch_that_fits_in_every_phase(pictures: Path, tmp_path: Path) -> None:
    with gpu(tmp_path, partial(train_with_limits, pictures, tmp_path)) as process:
        assert process.end() == 0, process.seen
    peaks = json.loads((tmp_path / "peaks.json").read_text())
    assert peaks["first"] < 0.97 * peaks["whole"]
    auto, fixed = tmp_path / "auto", tmp_path / "fixed"
    assert recorded(auto) == 4
    assert recorded(tmp_path / "late") == 8
    # The trials have changed nothing.
    assert tensors_of(auto) == tensors_of(fixed)
    assert losses(auto)[-1] == losses(fixed)[-1]
    assert read_config(step_folder(auto, 4) / "config.yaml").train.grad_accum_steps == 4
    assert log_text(auto).count("train.grad_accum_steps=auto: 4 micro-batches of 4 items") == 1
    assert "changed: train.grad_accum_steps" not in process.seen


def main_in(memory: int, commands: Sequence[str]) -> None:
    """The same, with the messages of the command line."""
    MODE.rules.memory = memory
    main(list(commands))


def test_one_item_that_does_not_fit_is_one_sentence(pictures: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    command = words(pictures, run, "train.grad_accum_steps=auto")
    with gpu(tmp_path, partial(main_in, 400 * KILOBYTE, command)) as process:
        assert process.end() == 1, process.seen
    assert "out of memory with micro-batches of 1 item (train.grad_accum_steps=auto" in error_line(process.seen)
    assert not run.exists()


def train_beside_another(commands: Sequence[str]) -> None:
    """One of two processes; only the second one has little memory."""
    if os.environ["RANK"] == "1":
        MODE.rules.memory = 850 * KILOBYTE
    call(commands)


def test_all_processes_agree_if_one_of_them_has_less_memory(pictures: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    command = words(pictures, run, "train.grad_accum_steps=auto", "engine.timeout_seconds=60")
    address = {"WORLD_SIZE": 2, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": free_port()}
    check = partial(on_gpu, partial(train_beside_another, command), nccl=True)
    with ExitStack() as stack:
        processes = [
            stack.enter_context(forked([], tmp_path / f"said-{rank}", check, RANK=rank, LOCAL_RANK=rank, **address))
            for rank in range(2)
        ]
        for process in processes:
            assert process.end() == 0, process.seen
    number = recorded(run)
    assert isinstance(number, int)
    assert number > 1
    assert f"train.grad_accum_steps=auto: {number} micro-batches of {16 // number} items" in log_text(run)
    assert metrics(run)[-1]["step"] == 4


# --- on a CPU -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("kilobytes", "expected"), [(10**6, 1), (650, 2), (300, 4)])
def test_on_a_cpu_the_plan_decides(
    kilobytes: int, expected: int, pictures: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fitting, "available_memory", lambda: kilobytes * KILOBYTE)
    train_tiny(pictures, tmp_path / "run", "train.grad_accum_steps=auto", "train.steps=4")
    assert recorded(tmp_path / "run") == expected


@pytest.mark.parametrize("value", ["0", "1.5", "all", "true"])
def test_a_wrong_number_is_refused(value: str, pictures: Path, tmp_path: Path) -> None:
    outcome = quintet("train", "vqgan", pictures, "--out", tmp_path / "run", f"train.grad_accum_steps={value}")
    assert outcome.code == 2
    assert "train.grad_accum_steps" in error_line(outcome.errors)
    assert "must be auto or an integer of 1 or more" in error_line(outcome.errors)


def test_a_budget_keeps_the_micro_batch_that_it_measured(pictures: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    tiny = [word for word in TINY if not word.startswith("train.steps")]
    succeed("train", "vqgan", pictures, "--out", run, *tiny, "--budget", "1s", "train.grad_accum_steps=auto")
    assert recorded(run) == 1
