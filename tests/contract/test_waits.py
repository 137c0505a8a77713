"""How often a training step waits for a GPU, counted on the fake device of `tests/fakegpu`."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from contract.cases import GOLDEN, Case
from fakegpu import device
from fakegpu.commands import run_all
from helpers import forked
from quintet.training.trainer import Trainer

STEADY = 3
"""A step that revives no codes and trains all modules."""
FLAGS = "read at training/engine.py:"
"""The read of the flags of a step."""


MORE = [
    ("muse", f"base={GOLDEN / 'muse-format-1' / 'hub'} model.self_critic=true"),
    ("muse", "model.text=words loss.random_token_prob=0.1 model.code_patch_size=[2,2]"),
    ("phenaki", "loss.frame_autoregressive=true loss.critic=true"),
    ("soundstorm", "model.self_critic=true model.self_conditioning=true loss.random_token_prob=0.1"),
    ("soundstorm", "loss.caption_cond_prob=0.5 model.condition_form=quantized loss.mask_span=3"),
    ("soundstorm", "condition=null model.text=words model.text_dim=16 data.windows=2"),
    ("mesh-transformer", "model.kind=flat loss.window_faces=16 train.grad_accum_steps=2"),
    ("mulan", "train.grad_accum_steps=2 model.audio.patch_dropout=0.5 data.word_dropout=0.5"),
    ("vqgan", "model.quantizer=vq loss.lecam=0.01"),
]
"""Further keys of a recipe that change what a step prepares."""


def test_a_training_step_waits_once_for_its_flags(recipe: str, case: Case, data: Path, tmp_path: Path) -> None:
    assert_waits_once(recipe, case, data, case.on_device, tmp_path)


@pytest.mark.parametrize(("recipe", "keys"), MORE)
def test_other_trainings_wait_no_more(recipe: str, keys: str, case: Case, data: Path, tmp_path: Path) -> None:
    assert_waits_once(recipe, case, data, keys.split(), tmp_path)


def assert_waits_once(recipe: str, case: Case, data: Path, keys: Iterable[str], tmp_path: Path) -> None:
    never = [f"{section}.every=100" for section in ("eval", "sample", "checkpoint")]
    words = ["train", recipe, data, *case.tiny, *case.brief, *never, *keys, "--out", tmp_path / "run"]
    record = partial(run_and_record, [str(word) for word in words], tmp_path / "waits.json")
    with forked([], tmp_path / "said", record) as process:
        assert process.end() == 0, process.seen
    waits = json.loads((tmp_path / "waits.json").read_text())
    further = [wait for wait in waits if not wait.startswith(FLAGS)]
    assert not further, "\n".join(["a training step must not wait:", *further])
    assert len(waits) == 1


def run_and_record(words: list[str], file: Path) -> None:
    """Train on the fake GPU, and write down the waits of one step."""
    Trainer.train_step = recorded(Trainer.train_step, file)
    run_all([words])


def recorded(train_step: Callable[[Trainer], Any], file: Path) -> Callable[[Trainer], Any]:
    def step(self: Trainer) -> Any:
        before, number = len(device.MODE.waits), self.step
        logs = train_step(self)
        if number == STEADY:
            file.write_text(json.dumps([str(wait) for wait in device.MODE.waits[before:]]))
        return logs

    return step
