"""The simulation of a training step, the arithmetic of a plan, and the refusal of what cannot fit."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from quintet import config as configs
from quintet import registry
from quintet.errors import UsageError
from quintet.training.planning.building import planned_task
from quintet.training.planning.devices import DEVICES, GIB, find_device
from quintet.training.planning.fitting import check_memory, refuse_too_large
from quintet.training.planning.plan import Plan, make_plan, measure_costs
from quintet.training.planning.simulation import PlannedTensor, Simulation
from quintet.training.planning.step import PlannedEngine, SimulatedTraining
from quintet.training.task import Task

MB = 2**20


def settings_of(recipe: str = "muse", preset: str = "small", **keys: Any) -> Any:
    changes = {name.replace("__", "."): value for name, value in keys.items()}
    return configs.build(registry.find(recipe).config_class(), preset=preset, overrides=changes)


def plan_of(device: str = "h100", devices: int = 1, **keys: Any) -> Plan:
    settings = settings_of(**keys)
    return make_plan(settings, planned_task(settings, "small"), DEVICES[device], devices)


@pytest.fixture
def simulation() -> Simulation:
    return Simulation(torch.device("cuda", 0))


# --- the simulation ---------------------------------------------------------------------------------------------


def test_tensors_have_the_planned_device_and_no_memory_of_it(simulation: Simulation) -> None:
    with simulation:
        big = torch.empty(2**40, device="cuda:0")
        assert big.device == torch.device("cuda", 0)
        assert (big + 1).device == torch.device("cuda", 0)
        assert simulation.memory == 2**42
        assert simulation.peak == 2**43
        del big
    assert simulation.memory == 0


def test_views_and_operations_in_place_need_no_memory(simulation: Simulation) -> None:
    with simulation:
        x = torch.empty(256, 4096, device="cuda:0")
        y = x.view(4096, 256).t()
        y.add_(1)
        y.transpose_(0, 1)
        assert y.shape == (4096, 256)
        assert simulation.peak == 4 * MB


def test_integers_keep_their_contents_so_that_masks_give_real_shapes(simulation: Simulation) -> None:
    with simulation:
        codes = torch.arange(10, device="cuda:0")
        vectors = torch.empty(10, 3, device="cuda:0")
        assert isinstance(codes, PlannedTensor)
        assert vectors[codes > 6].shape == (3, 3)
        assert (codes % 2 == 0).nonzero().shape == (5, 1)
        assert int(codes.sum()) == 45
        assert codes[:3].tolist() == [0, 1, 2]


def test_a_mask_that_depends_on_weights_is_an_error(simulation: Simulation) -> None:
    with simulation:
        vectors = simulation.planned(torch.zeros(10, 3))
        with pytest.raises(NotImplementedError, match="depend on the weights"):
            vectors[vectors[:, 0] > 0]


def test_gradients_and_flops_of_a_linear_layer(simulation: Simulation) -> None:
    layer = nn.Linear(512, 1024, bias=False)
    simulation.place(layer)
    with simulation:
        x = torch.empty(64, 512, device="cuda:0", requires_grad=True)
        layer(x).sum().backward()
    assert layer.weight.grad is not None
    assert layer.weight.grad.shape == (1024, 512)
    assert simulation.flops == {torch.float32: 3 * 2 * 64 * 512 * 1024}


def test_attention_keeps_nothing_that_is_quadratic_in_the_tokens(simulation: Simulation) -> None:
    with simulation:
        q, k, v = (torch.empty(1, 4, 8192, 64, device="cuda:0", requires_grad=True) for _ in range(3))
        # With dropout: without it, a kernel of the CPU that keeps nothing quadratic would take its place.
        out = F.scaled_dot_product_attention(q, k, v, dropout_p=0.1)
        assert simulation.peak < 5 * 8 * MB
        out.sum().backward()
    assert simulation.flops[torch.float32] == 4 * 8192 * 8192 * 64 * 4 * (1 + 2.5)


def test_bf16_computes_products_in_bf16_and_norms_in_fp32() -> None:
    settings = settings_of(engine__precision="bf16")
    planned = SimulatedTraining(planned_task(settings, "small"), "cuda", "bf16").measure(4)
    assert planned.flops.keys() == {torch.bfloat16}


def test_a_layer_norm_under_autocast_is_kept_in_fp32_as_on_cuda(simulation: Simulation) -> None:
    with simulation, PlannedEngine(simulation, "bf16").autocast():
        x = torch.empty(8, 16, device="cuda:0", dtype=torch.bfloat16)
        assert F.layer_norm(x, (16,)).dtype == torch.float32
        assert F.linear(x.float(), torch.empty(4, 16, device="cuda:0")).dtype == torch.bfloat16
    assert not torch.is_autocast_enabled("cuda")


def test_activation_checkpointing_needs_less_memory_and_more_flops() -> None:
    plain, recomputed = (
        measure_costs(planned_task(settings_of(engine__activation_checkpointing=on), "small"), "cuda", "bf16")
        for on in (False, True)
    )
    assert recomputed.activations.per_sample < 0.7 * plain.activations.per_sample
    assert sum(recomputed.flops.values()) > 1.1 * sum(plain.flops.values())


def test_double_precision_doubles_the_state() -> None:
    single, double = (
        SimulatedTraining(planned_task(settings_of(preset="debug"), "debug"), "cpu", precision)
        for precision in ("fp32", "fp64")
    )
    assert double.state.weights == pytest.approx(2 * single.state.weights, rel=0.01)
    assert double.measure(4).flops.keys() == {torch.float64}


# --- the plan -----------------------------------------------------------------------------------------------------


def test_the_state_of_adamw_lion_and_without_ema() -> None:
    adamw = plan_of(optim__name="adamw").costs.state
    lion = plan_of(optim__name="lion", ema__enabled=False).costs.state
    assert adamw.weights == pytest.approx(4 * adamw.parameters, rel=0.01)
    assert adamw.gradients == 4 * adamw.trained
    assert adamw.optimizer == pytest.approx(8 * adamw.trained, rel=0.01)
    assert adamw.ema == adamw.weights
    assert lion.optimizer == pytest.approx(4 * lion.trained, rel=0.01)
    assert lion.ema == 0
    assert adamw.checkpoint == adamw.weights + adamw.ema + adamw.optimizer


def test_a_batch_that_does_not_fit_is_accumulated() -> None:
    whole = plan_of()
    assert whole.grad_accum_steps == 1
    batch = whole.config.train.batch_size
    room = int((whole.memory(batch // 4) + whole.memory(batch // 2)) / 2)
    small = replace(whole, device=replace(whole.device, kind="cpu", memory=int(room / 0.94)))
    assert batch // 4 <= small.largest_micro_batch < batch // 2
    assert small.grad_accum_steps == 4
    assert small.memory(batch // 4) <= small.device.usable


def test_grad_accum_steps_of_the_configuration_are_kept_if_they_suffice() -> None:
    assert plan_of(train__grad_accum_steps=2).grad_accum_steps == 2


def test_fsdp_divides_the_state_and_ddp_adds_buckets() -> None:
    one = plan_of(optim__name="adamw")
    ddp = plan_of(optim__name="adamw", devices=4)
    fsdp = plan_of(optim__name="adamw", devices=4, engine__fsdp=True)
    assert ddp.parts["weights"] == one.parts["weights"]
    assert ddp.parts["gradient buckets"] == one.parts["gradients"]
    assert fsdp.parts["optimizer state"] == one.parts["optimizer state"] // 4
    assert fsdp.memory(1) < ddp.memory(1)


def test_more_devices_and_faster_devices_take_less_time() -> None:
    slow = plan_of("t4", train__batch_size=4096)
    fast, many = replace(slow, device=DEVICES["h100"]), replace(slow, devices=8)
    assert fast.seconds_per_step()[0] < fast.seconds_per_step()[1] < slow.seconds_per_step()[0]
    assert many.flops_per_step == slow.flops_per_step
    assert many.seconds_per_step()[1] < slow.seconds_per_step()[1]


def test_a_contrastive_loss_computes_twice_if_it_accumulates() -> None:
    settings = settings_of("mulan", "debug")
    once, accumulated = (
        sum(measure_costs(planned_task(settings, "debug"), "cuda", "fp32", accumulates).flops.values())
        for accumulates in (False, True)
    )
    assert accumulated > 1.2 * once


def test_a_device_is_found_by_its_name_and_an_unknown_one_is_not() -> None:
    assert find_device("H100") is DEVICES["h100"]
    with pytest.raises(UsageError, match=r"unknown --device '4900'; did you mean '4090'\?"):
        find_device("4900")


# --- train refuses what cannot fit ----------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def task() -> Task[Any]:
    settings = settings_of("vqgan", "small", train__batch_size=4096)
    return registry.find("vqgan").task_class()(settings)


def test_a_batch_that_cannot_fit_is_refused_with_the_key_that_helps(task: Task[Any]) -> None:
    with pytest.raises(UsageError, match=r"micro-batches of 4096 samples need .* use train.grad_accum_steps=8 \(now 1"):
        refuse_too_large(task, "a GPU", 2 * GIB, world_size=1)


def test_more_devices_share_the_batch(task: Task[Any]) -> None:
    refuse_too_large(task, "a GPU", 2 * GIB, world_size=8)


def test_what_may_fit_is_not_refused(task: Task[Any]) -> None:
    refuse_too_large(task, "a GPU", 80 * GIB, world_size=1)


def test_a_model_that_cannot_fit_is_refused_with_the_keys_that_help(task: Task[Any]) -> None:
    with pytest.raises(UsageError, match=r"does not fit on a GPU: a micro-batch of one sample .* ema.enabled=false"):
        refuse_too_large(task, "a GPU", 8 * MB, world_size=1)


def test_the_check_draws_no_random_numbers(task: Task[Any]) -> None:
    before = torch.get_rng_state()
    refuse_too_large(task, "a GPU", 80 * GIB, world_size=1)
    assert torch.equal(torch.get_rng_state(), before)


def test_nothing_is_refused_on_a_cpu() -> None:
    settings = settings_of("vqgan", "small", train__batch_size=2**40, engine__device="cpu")
    check_memory(registry.find("vqgan").task_class()(settings))


def test_a_family_without_an_example_trains_unplanned(task: Task[Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(type(task), "example_item")
    refuse_too_large(task, "a GPU", 8 * MB, world_size=1)
