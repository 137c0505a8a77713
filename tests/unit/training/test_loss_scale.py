"""The loss scale of fp16: when it changes, and that gradients do not depend on it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from torch import nn

from quintet.errors import CheckpointError
from quintet.training import loss_scale
from quintet.training.state import Progress, read_progress


def test_an_overflow_halves_the_scale_and_many_good_steps_double_it() -> None:
    progress = Progress(loss_scale=1024.0)
    for _ in range(loss_scale.GROWTH_STEPS - 1):
        loss_scale.update(progress, accepted=True)
    assert progress.loss_scale == 1024
    loss_scale.update(progress, accepted=False)
    assert (progress.loss_scale, progress.steps_since_overflow) == (512, 0)
    for _ in range(loss_scale.GROWTH_STEPS):
        loss_scale.update(progress, accepted=True)
    assert progress.loss_scale == 1024


def test_the_scale_has_an_upper_limit() -> None:
    progress = Progress(loss_scale=loss_scale.LARGEST, steps_since_overflow=loss_scale.GROWTH_STEPS - 1)
    loss_scale.update(progress, accepted=True)
    assert progress.loss_scale == loss_scale.LARGEST


@pytest.mark.parametrize("accepted", [True, False])
def test_other_precisions_have_no_scale(accepted: bool) -> None:
    progress = Progress()
    loss_scale.update(progress, accepted)
    assert progress == Progress()


def test_unscaled_gradients_are_those_of_the_loss_to_the_last_bit() -> None:
    torch.manual_seed(0)
    layer, x = nn.Linear(5, 3), torch.randn(4, 5)
    expected = torch.autograd.grad(layer(x).square().mean(), [*layer.parameters()])
    (layer(x).square().mean() * 2.0**16).backward()
    loss_scale.unscale(layer.parameters(), 2.0**16)
    assert all(torch.equal(parameter.grad, own) for parameter, own in zip(layer.parameters(), expected, strict=True))


@pytest.mark.parametrize("value", [0.0, -1.0, float("inf"), "65536", True])
def test_a_checkpoint_with_an_impossible_scale_is_refused(value: object, tmp_path: Path) -> None:
    meta = json.loads(json.dumps({"step": 4, "loss_scale": value}))
    with pytest.raises(CheckpointError, match="loss_scale"):
        read_progress(tmp_path, meta)
