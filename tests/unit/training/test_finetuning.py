"""Patterns over parameter names, learning rates by depth, and adapters of linear layers."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn
from toy import ToyTask, toy_config

from quintet.common.weights.lora import merged
from quintet.config import EMAConfig, OptimConfig, OptimizerConfig
from quintet.errors import UsageError
from quintet.nn.lora import LoRALinear, add_adapters
from quintet.nn.transformer import Transformer
from quintet.training.finetuning import choose_parameters, matches, rate_factors
from quintet.training.micro_batch import state_sizes
from quintet.training.optim import make_optimizer, named_parameters, set_learning_rate
from quintet.training.patience import message
from quintet.training.state import EMA, Progress, TrainingState


@pytest.mark.parametrize(
    ("pattern", "name", "expected"),
    [
        ("text_encoder", "maskgit.text_encoder.embedding.weight", True),
        ("maskgit.text_encoder", "maskgit.text_encoder.embedding.weight", True),
        ("text_enc", "maskgit.text_encoder.embedding.weight", False),
        ("*.attention.to_out", "maskgit.blocks.0.attention.to_out.weight", True),
        ("blocks.[0-3]", "maskgit.blocks.2.norm.weight", True),
        ("blocks.[0-3]", "maskgit.blocks.20.norm.weight", False),
        ("maskgit", "maskgit.to_logits.bias", True),
    ],
)
def test_a_pattern_is_a_dotted_prefix_with_wildcards(pattern: str, name: str, expected: bool) -> None:
    assert matches([pattern], name) is expected


def test_rates_fall_with_each_block_below_the_output() -> None:
    model = nn.Sequential(nn.Embedding(4, 8), Transformer(8, 2, 1, head_dim=8), nn.Linear(8, 4))
    config = OptimConfig(layer_decay=0.5, lr_scale={"*.bias": 0.1})  # type: ignore[arg-type]
    factors = rate_factors(config, {"model": model})
    assert factors["model.0.weight"] == 0.5**3
    assert factors["model.1.blocks.0.attention.to_out.weight"] == 0.5**2
    assert factors["model.1.blocks.1.attention.to_out.weight"] == 0.5
    assert "model.2.weight" not in factors
    assert factors["model.2.bias"] == 0.1


@pytest.mark.parametrize("name", ["adamw", "lion", "muon"])
def test_each_parameter_has_the_rate_of_its_factor(name: str) -> None:
    model = Transformer(8, 2, 1, head_dim=8)
    parameters = named_parameters({"model": model}, ["model"])
    slow = "model.blocks.0.attention.to_out.weight"
    config = OptimizerConfig(name=name, lr=1.0, muon_lr=1.0)  # type: ignore[arg-type]
    optimizer = make_optimizer(config, parameters, factors={slow: 0.25})
    set_learning_rate(optimizer, 2.0)
    rates = {id(each): group["lr"] for group in optimizer.param_groups for each in group["params"]}
    assert {key: rates[id(each)] for key, each in parameters.items()} == {
        key: 0.5 if key == slow else 2.0 for key in parameters
    }


def test_a_merged_layer_computes_what_the_adapted_one_does() -> None:
    torch.manual_seed(0)
    layer = nn.Linear(6, 4)
    adapted = LoRALinear(layer, rank=2, seed=0)
    x = torch.randn(3, 6)
    assert torch.equal(adapted(x), layer(x))
    nn.init.normal_(adapted.lora_b)
    plain = nn.Linear(6, 4)
    plain.load_state_dict({key: value.detach() for key, value in merged(adapted.state_dict()).items()})
    torch.testing.assert_close(plain(x), adapted(x))
    assert not torch.equal(layer(x), adapted(x))


def test_adapters_depend_on_seed_and_name_alone() -> None:
    models = [Transformer(8, 2, 1, head_dim=8) for _ in range(3)]
    for model, seed in zip(models, (1, 1, 2), strict=True):
        assert add_adapters(model, 2, seed) == 8
    first, second, other = (model.state_dict()["blocks.1.feed_forward.to_out.lora_a"] for model in models)
    assert torch.equal(first, second)
    assert not torch.equal(first, other)
    assert not torch.equal(first, models[0].state_dict()["blocks.0.feed_forward.to_out.lora_a"])


def test_the_moving_average_shares_weights_that_are_not_trained() -> None:
    model = nn.Linear(3, 2)
    model.weight.requires_grad_(False)
    ema = EMA(EMAConfig(), {"model": model}, ["model"], share_frozen=True)
    averaged = ema.modules["model"]
    assert averaged.weight is model.weight
    assert averaged.bias is not model.bias
    with torch.no_grad():
        model.bias.add_(1)
    ema.update(0)
    torch.testing.assert_close(averaged.bias, model.bias - 0.1)  # type: ignore[arg-type]


def test_adapters_of_an_earlier_training_are_refused() -> None:
    task = ToyTask(toy_config(train__lora=1))
    choose_parameters(task)
    for config in (task.config, toy_config()):
        task.config = config
        with pytest.raises(UsageError, match="this toy has the adapters of an earlier training; save it with"):
            choose_parameters(task)


@pytest.mark.parametrize("keys", [{}, {"train__lora": 1}, {"train__freeze": ["body"]}], ids=str)
def test_the_search_for_micro_batches_leaves_room_for_the_state_of_the_run(keys: dict[str, object]) -> None:
    task = ToyTask(toy_config(**keys))
    choose_parameters(task)
    sizes = state_sizes(task)
    state = TrainingState(task)
    assert state.ema is not None
    live = {id(parameter) for module in task.modules.values() for parameter in module.parameters()}
    copies = [each for each in state.ema.modules["net"].parameters() if id(each) not in live]
    trained = [each for phase in state.phases for each in phase.parameters.values()]
    assert sum(sizes) == 4 * sum(each.numel() for each in [*copies, *trained, *trained])


def test_a_run_whose_validations_were_never_finite_names_no_best_checkpoint() -> None:
    said = message(ToyTask(toy_config(train__patience=2)), Progress(step=4, best_age=2), Path("run"))
    assert "validations (train.patience=2), and in none of them was it finite; continue with" in said
