"""The moving average of the weights equals a plain loop, ramp, start and interval included."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from quintet.config import EMAConfig
from quintet.training.state import EMA


def module() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(3, 2), nn.BatchNorm1d(2)).double()


def move(live: nn.Module, step: int) -> None:
    """What a training step would do: other weights, other buffers."""
    with torch.no_grad():
        for tensor in (*live.parameters(), *live.buffers()):
            tensor.copy_(torch.randn(tensor.shape, generator=torch.Generator().manual_seed(step)) * 10)


def plain_average(config: EMAConfig, steps: int) -> dict[str, Tensor]:
    """Step by step, weight by weight."""
    live = module()
    average = {name: value.clone() for name, value in live.state_dict().items()}
    for step in range(steps):
        move(live, step)
        if step < config.start:
            decay = 0.0
        else:
            number, rest = divmod(step - config.start, config.every)
            if rest:
                continue
            decay = min(config.decay, (1 + number) / (10 + number))
        for name, value in live.state_dict().items():
            is_buffer = name in dict(live.named_buffers())
            average[name] = value.clone() if is_buffer else decay * average[name] + (1 - decay) * value
    return average


@pytest.mark.parametrize(("start", "every"), [(0, 1), (5, 1), (0, 3), (4, 5)])
@pytest.mark.parametrize("steps", [1, 5, 40])
def test_average_equals_a_plain_loop(start: int, every: int, steps: int) -> None:
    config = EMAConfig(decay=0.8, start=start, every=every)
    live = module()
    average = EMA(config, {"net": live}, ["net"])
    for step in range(steps):
        move(live, step)
        average.update(step)
    expected = plain_average(config, steps)
    for name, value in average.modules["net"].state_dict().items():
        torch.testing.assert_close(value, expected[name], rtol=0, atol=1e-12, msg=name)


def test_the_ramp_rises_to_the_decay_and_stays() -> None:
    average = EMA(EMAConfig(decay=0.9), {}, [])
    assert average.decay(0) == 0.1
    assert average.decay(10) == 11 / 20
    decays = [average.decay(step) for step in range(200)]
    assert decays == sorted(decays)
    assert decays[-1] == 0.9


def test_before_the_start_the_average_is_a_copy() -> None:
    live = module()
    average = EMA(EMAConfig(start=3), {"net": live}, ["net"])
    for step in range(3):
        move(live, step)
        average.update(step)
        own = average.modules["net"].state_dict()
        assert all(torch.equal(value, own[name]) for name, value in live.state_dict().items())


def test_the_average_is_apart_from_the_live_weights() -> None:
    live = module()
    average = EMA(EMAConfig(), {"net": live, "other": nn.Linear(1, 1)}, ["net"])
    before = {name: value.clone() for name, value in average.modules["net"].state_dict().items()}
    move(live, 0)
    after = average.modules["net"].state_dict()
    assert all(torch.equal(value, before[name]) for name, value in after.items())
    assert list(average.modules) == ["net"]


def test_the_average_is_for_looking_only() -> None:
    live = module().train()
    average = EMA(EMAConfig(), {"net": live}, ["net"])
    assert not any(part.training for part in average.modules["net"].modules())
    assert not any(parameter.requires_grad for parameter in average.modules["net"].parameters())
    assert live.training
    assert all(parameter.requires_grad for parameter in live.parameters())


def test_modules_without_buffers_are_averaged_too() -> None:
    live = nn.Linear(2, 2)
    average = EMA(EMAConfig(), {"net": live}, ["net"])
    move(live, 0)
    average.update(0)
    assert not torch.equal(average.modules["net"].weight, live.weight)  # type: ignore[arg-type]
