"""Schedules, clipping, decay, Lion, and optimizer state on its way to disk and back."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.optim import Optimizer

from quintet.config import OptimConfig, OptimizerConfig, PhaseOptimConfig
from quintet.errors import CheckpointError
from quintet.training.guard import largest_moment
from quintet.training.muon import orthogonal
from quintet.training.optim import (
    Lion,
    clip_gradients,
    gradient_norm,
    load_optimizer_tensors,
    make_optimizer,
    named_parameters,
    optimizer_tensors,
    set_learning_rate,
)
from quintet.training.schedule import learning_rate

steady = settings(deadline=None, derandomize=True, max_examples=50)
"""The same examples in every session, however busy the machine."""

# --- schedules ----------------------------------------------------------------------------------------------------


def schedule(**keys: Any) -> Callable[[int], float]:
    config = OptimConfig(**{"lr": 2e-3, "decay_steps": 100, **keys})
    return lambda step: learning_rate(config, step)


def test_a_stretched_schedule_is_the_longer_one_from_its_step_on() -> None:
    short, long, stretched = (
        schedule(decay_steps=100),
        schedule(decay_steps=200),
        schedule(decay_steps=100, decay_extensions=((100, 150), (120, 200))),
    )
    assert [stretched(step) for step in range(100)] == [short(step) for step in range(100)]
    assert stretched(110) == schedule(decay_steps=150)(110)
    assert [stretched(step) for step in range(120, 210)] == [long(step) for step in range(120, 210)]


@pytest.mark.parametrize("kind", ["constant", "cosine", "linear"])
@pytest.mark.parametrize("warmup", [1, 10, 99])
def test_warm_up_is_a_line_that_reaches_the_peak_exactly_at_its_end(kind: str, warmup: int) -> None:
    rate = schedule(schedule=kind, warmup_steps=warmup, initial_lr=1e-4)
    assert rate(warmup) == 2e-3
    rises = [rate(step + 1) - rate(step) for step in range(warmup)]
    assert rises == pytest.approx([rises[0]] * warmup)
    assert rises[0] > 0
    assert rate(0) > 1e-4


def test_cosine_decays_to_the_final_rate_at_decay_steps() -> None:
    rate = schedule(schedule="cosine", warmup_steps=20, final_lr=1e-5)
    assert rate(20) == 2e-3
    assert rate(60) == pytest.approx((2e-3 + 1e-5) / 2)
    assert rate(40) == pytest.approx(1e-5 + (2e-3 - 1e-5) * (1 + math.cos(math.pi / 4)) / 2)
    assert rate(100) == pytest.approx(1e-5, abs=1e-18)


def test_linear_falls_along_a_line() -> None:
    rate = schedule(schedule="linear", final_lr=1e-3)
    assert [rate(step) for step in (0, 25, 50, 100)] == pytest.approx([2e-3, 1.75e-3, 1.5e-3, 1e-3])


def test_constant_stays() -> None:
    rate = schedule(schedule="constant", final_lr=1e-5)
    assert {rate(step) for step in (0, 50, 100, 10_000)} == {2e-3}


@pytest.mark.parametrize("kind", ["cosine", "linear"])
def test_after_decay_steps_the_rate_is_constant(kind: str) -> None:
    rate = schedule(schedule=kind, final_lr=1e-5)
    assert [rate(step) for step in (101, 150, 200, 10**9)] == pytest.approx([rate(100)] * 4)


@steady
@given(
    kind=st.sampled_from(["constant", "cosine", "linear"]),
    warmup=st.integers(0, 300),
    decay_steps=st.integers(1, 200),
    step=st.integers(0, 500),
)
def test_rates_stay_between_their_ends(kind: str, warmup: int, decay_steps: int, step: int) -> None:
    """Also if the warm-up is longer than the schedule."""
    rate = schedule(schedule=kind, warmup_steps=warmup, decay_steps=decay_steps, initial_lr=1e-4, final_lr=1e-5)(step)
    assert 1e-5 * (1 - 1e-12) <= rate <= 2e-3


def test_a_phase_takes_the_common_keys_changed_by_its_own() -> None:
    common = OptimConfig(lr=1e-3, max_grad_norm=0.5, weight_decay=0.1, warmup_steps=5)
    own = common.for_phase(PhaseOptimConfig(lr=2e-3))
    assert (own.lr, own.max_grad_norm, own.weight_decay) == (2e-3, 0.5, 0.1)
    assert common.for_phase() == OptimizerConfig(lr=1e-3, max_grad_norm=0.5, weight_decay=0.1)


# --- which parameters ---------------------------------------------------------------------------------------------


def small_model(seed: int = 0) -> nn.Module:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Conv2d(3, 8, 3), nn.GroupNorm(2, 8), nn.ReLU(), nn.Flatten(), nn.Linear(8 * 16, 2))


def test_only_trainable_parameters_are_named_by_module_and_path() -> None:
    modules = {"net": nn.Linear(2, 2), "frozen": nn.Linear(2, 2).requires_grad_(False), "other": nn.Linear(2, 2)}
    assert list(named_parameters(modules, ["net", "frozen"])) == ["net.weight", "net.bias"]


@pytest.mark.parametrize("name", ["adamw", "adam", "lion"])
def test_vectors_are_never_decayed(name: Any) -> None:
    """Without a gradient that says otherwise, only decay moves a weight."""
    model = nn.Sequential(nn.Linear(4, 4), nn.LayerNorm(4))
    for parameter in model.parameters():
        nn.init.ones_(parameter)
    parameters = named_parameters({"net": model}, ["net"])
    optimizer = make_optimizer(OptimizerConfig(name=name, lr=0.1, weight_decay=0.5), parameters)
    for parameter in parameters.values():
        parameter.grad = torch.zeros_like(parameter)
    optimizer.step()
    moved = {name: bool((parameter != 1).any()) for name, parameter in parameters.items()}
    assert moved == {"net.0.weight": True, "net.0.bias": False, "net.1.weight": False, "net.1.bias": False}


@pytest.mark.parametrize("name", ["adamw", "lion"])
def test_decay_is_decoupled_from_the_gradient(name: Any) -> None:
    weight = nn.Parameter(torch.full((2, 2), 3.0))
    optimizer = make_optimizer(OptimizerConfig(name=name, lr=0.1, weight_decay=0.5), {"w": weight})
    weight.grad = torch.zeros_like(weight)
    optimizer.step()
    torch.testing.assert_close(weight.data, torch.full((2, 2), 3.0 * (1 - 0.1 * 0.5)))


def test_a_model_of_vectors_alone_has_an_optimizer() -> None:
    vector = nn.Parameter(torch.ones(3))
    optimizer = make_optimizer(OptimizerConfig(lr=0.1), {"v": vector})
    vector.grad = torch.ones(3)
    optimizer.step()
    assert (vector < 1).all()


def test_learning_rate_reaches_every_group() -> None:
    optimizer = make_optimizer(OptimizerConfig(), dict(small_model().named_parameters()))
    set_learning_rate(optimizer, 0.25)
    assert [group["lr"] for group in optimizer.param_groups] == [0.25, 0.25]


# --- Lion ---------------------------------------------------------------------------------------------------------


def plain_lion(
    weights: list[Tensor], gradients: list[list[Tensor]], lr: float, betas: tuple[float, float], decay: float
) -> list[Tensor]:
    """Algorithm 2 of the paper, tensor by tensor."""
    weights = [weight.clone() for weight in weights]
    moments = [torch.zeros_like(weight) for weight in weights]
    for step in gradients:
        for place, gradient in enumerate(step):
            update = torch.sign(betas[0] * moments[place] + (1 - betas[0]) * gradient)
            weights[place] = weights[place] - lr * (update + decay * weights[place])
            moments[place] = betas[1] * moments[place] + (1 - betas[1]) * gradient
    return weights


def test_lion_equals_a_plain_loop() -> None:
    generator = torch.Generator().manual_seed(0)
    shapes = [(3, 4), (2, 3, 2, 2)]
    starts = [torch.randn(shape, generator=generator, dtype=torch.float64) for shape in shapes]
    gradients = [[torch.randn(shape, generator=generator, dtype=torch.float64) for shape in shapes] for _ in range(20)]
    parameters = [nn.Parameter(start.clone()) for start in starts]
    lion = Lion(parameters, lr=0.01, betas=(0.9, 0.99), weight_decay=0.3)
    for step in gradients:
        for parameter, gradient in zip(parameters, step, strict=True):
            parameter.grad = gradient
        lion.step()
    expected = plain_lion(starts, gradients, 0.01, (0.9, 0.99), 0.3)
    for parameter, value in zip(parameters, expected, strict=True):
        torch.testing.assert_close(parameter.data, value, rtol=0, atol=1e-14)


def test_lion_passes_over_parameters_without_gradient() -> None:
    still, moving = nn.Parameter(torch.ones(2)), nn.Parameter(torch.ones(2))
    lion = Lion([still, moving], lr=0.1, betas=(0.9, 0.99), weight_decay=0.5)
    moving.grad = torch.ones(2)
    lion.step()
    assert (still == 1).all()
    assert (moving < 1).all()
    assert still not in lion.state


# --- clipping -----------------------------------------------------------------------------------------------------


def test_clipping_uses_the_norm_of_all_gradients_of_a_phase() -> None:
    parameters = {name: nn.Parameter(torch.zeros(size)) for name, size in (("a", 2), ("b", 1), ("unused", 3))}
    parameters["a"].grad = torch.tensor([3.0, 0.0])
    parameters["b"].grad = torch.tensor([4.0])
    norm = gradient_norm(parameters)
    assert norm == 5
    clip_gradients(parameters, norm, 1.0)
    torch.testing.assert_close(parameters["a"].grad, torch.tensor([0.6, 0.0]), atol=1e-5, rtol=0)
    torch.testing.assert_close(parameters["b"].grad, torch.tensor([0.8]), atol=1e-5, rtol=0)
    assert parameters["unused"].grad is None


def test_small_gradients_are_not_touched_by_clipping() -> None:
    parameters = {"a": nn.Parameter(torch.zeros(2))}
    parameters["a"].grad = torch.tensor([0.3, 0.4])
    clip_gradients(parameters, gradient_norm(parameters), 1.0)
    assert torch.equal(parameters["a"].grad, torch.tensor([0.3, 0.4]))


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -float("inf")])
def test_one_bad_number_makes_the_norm_bad(bad: float) -> None:
    parameters = {"a": nn.Parameter(torch.zeros(100)), "b": nn.Parameter(torch.zeros(1))}
    parameters["a"].grad = torch.zeros(100)
    parameters["b"].grad = torch.tensor([bad])
    assert not gradient_norm(parameters).isfinite()


def test_norms_and_clipping_need_no_foreach_kernels() -> None:
    """A device without them, as MPS is; `meta` is another, and is on every machine."""
    parameters = {"a": nn.Parameter(torch.ones(3, device="meta")), "b": nn.Parameter(torch.ones(2, 2, device="meta"))}
    for parameter in parameters.values():
        parameter.grad = torch.ones_like(parameter)
    optimizer = Lion([*parameters.values()], lr=1.0, betas=(0.9, 0.99), weight_decay=0.0)
    optimizer.step()

    clip_gradients(parameters, gradient_norm(parameters), 1.0)
    assert largest_moment(optimizer) is not None


def test_the_norm_of_nothing_is_zero() -> None:
    assert gradient_norm({"a": nn.Parameter(torch.zeros(1))}) == 0


# --- state on disk ------------------------------------------------------------------------------------------------


def take_steps(model: nn.Module, optimizer: torch.optim.Optimizer, first: int, last: int) -> None:
    dtype = next(model.parameters()).dtype
    for step in range(first, last):
        images = torch.randn(4, 3, 6, 6, generator=torch.Generator().manual_seed(step)).to(dtype)
        optimizer.zero_grad()
        model(images).square().sum().backward()
        optimizer.step()


def saved_and_loaded(tensors: dict[str, Tensor], folder: Any) -> dict[str, Tensor]:
    from quintet.common.weights import checkpoint, tensor_groups

    checkpoint.write_folder(folder, checkpoint.Contents(tensors={"optim": tensors}))
    return tensor_groups.read_tensors(folder, "optim")


@pytest.mark.parametrize("channels_last", [True, False])
@pytest.mark.parametrize("name", ["adamw", "adam", "lion"])
def test_state_restored_by_name_continues_bit_for_bit(name: Any, channels_last: bool, tmp_path: Any) -> None:
    """Fused AdamW on channels-last kernels included: contiguous moments would be silently wrong."""
    config = OptimizerConfig(name=name, lr=0.01, weight_decay=0.1)

    def fresh(seed: int) -> tuple[nn.Module, dict[str, nn.Parameter], torch.optim.Optimizer]:
        model = small_model(seed)
        if channels_last:
            model.to(memory_format=torch.channels_last)
        parameters = named_parameters({"net": model}, ["net"])
        return model, parameters, make_optimizer(config, parameters)

    model, parameters, optimizer = fresh(0)
    take_steps(model, optimizer, 0, 3)
    tensors = saved_and_loaded(optimizer_tensors(optimizer, parameters), tmp_path / "saved")
    weights = {name: parameter.detach().clone() for name, parameter in parameters.items()}
    take_steps(model, optimizer, 3, 7)

    other, other_parameters, other_optimizer = fresh(1)
    take_steps(other, other_optimizer, 90, 92)  # other moments, which loading must replace
    with torch.no_grad():
        for key, parameter in other_parameters.items():
            parameter.copy_(weights[key])
    load_optimizer_tensors(other_optimizer, other_parameters, tensors)
    take_steps(other, other_optimizer, 3, 7)
    for key, parameter in parameters.items():
        assert torch.equal(parameter, other_parameters[key]), key
    after, other_after = optimizer_tensors(optimizer, parameters), optimizer_tensors(other_optimizer, other_parameters)
    assert after.keys() == other_after.keys()
    assert all(torch.equal(after[key], other_after[key]) for key in after)


def test_state_is_found_by_name_not_by_position() -> None:
    """The same modules in another order."""
    modules = {"a": nn.Linear(2, 2), "b": nn.Linear(2, 2)}
    forth, back = named_parameters(modules, ["a", "b"]), named_parameters(modules, ["b", "a"])
    first, second = make_optimizer(OptimizerConfig(), forth), make_optimizer(OptimizerConfig(), back)
    for number, parameter in enumerate(forth.values()):
        parameter.grad = torch.full_like(parameter, number + 1)
    first.step()
    load_optimizer_tensors(second, back, optimizer_tensors(first, forth))
    for name, parameter in forth.items():
        assert torch.equal(first.state[parameter]["exp_avg"], second.state[parameter]["exp_avg"]), name


def test_loaded_tensors_do_not_share_memory_with_the_optimizer() -> None:
    parameters = {"w": nn.Parameter(torch.ones(2, 2))}
    optimizer = make_optimizer(OptimizerConfig(), parameters)
    tensors = {"exp_avg/w": torch.ones(2, 2), "exp_avg_sq/w": torch.ones(2, 2), "step/w": torch.tensor(5.0)}
    load_optimizer_tensors(optimizer, parameters, tensors)
    parameters["w"].grad = torch.ones(2, 2)
    optimizer.step()
    assert tensors["step/w"] == 5
    assert (tensors["exp_avg/w"] == 1).all()


def test_a_run_may_resume_in_another_precision() -> None:
    """engine.* may change on resume, and with it the precision of the weights."""
    config = OptimizerConfig(lr=0.01)
    model = small_model()
    parameters = dict(model.named_parameters())
    optimizer = make_optimizer(config, parameters)
    take_steps(model, optimizer, 0, 2)
    wide = small_model().double()
    wide.load_state_dict(model.state_dict())
    wide_parameters = dict(wide.named_parameters())
    wide_optimizer = make_optimizer(config, wide_parameters)
    load_optimizer_tensors(wide_optimizer, wide_parameters, optimizer_tensors(optimizer, parameters))
    take_steps(model, optimizer, 2, 3)
    take_steps(wide, wide_optimizer, 2, 3)
    for name, parameter in parameters.items():
        torch.testing.assert_close(parameter.double(), wide_parameters[name], atol=1e-5, rtol=1e-4)


def test_scalar_parameters_keep_their_step_count() -> None:
    scale = nn.Parameter(torch.tensor(1.0, dtype=torch.float64))
    first, second = (make_optimizer(OptimizerConfig(lr=0.1), {"s": scale}) for _ in range(2))
    scale.grad = torch.tensor(0.5, dtype=torch.float64)
    first.step()
    load_optimizer_tensors(second, {"s": scale}, optimizer_tensors(first, {"s": scale}))
    second.step()
    assert second.state[scale]["step"] == 2


def test_state_for_a_parameter_that_does_not_exist_is_refused() -> None:
    parameters = {"net.weight": nn.Parameter(torch.ones(2))}
    optimizer = make_optimizer(OptimizerConfig(), parameters)
    with pytest.raises(CheckpointError, match=r"'net\.old_weight', which this model does not have"):
        load_optimizer_tensors(optimizer, parameters, {"exp_avg/net.old_weight": torch.ones(2)})


@pytest.mark.parametrize(("value", "expected"), [(-9.0, 9.0), (math.inf, math.inf), (-math.inf, math.inf)])
def test_the_largest_moment_is_the_one_of_the_largest_magnitude(value: float, expected: float) -> None:
    net = small_model()
    optimizer = make_optimizer(OptimizerConfig(), dict(net.named_parameters()))
    assert largest_moment(optimizer) is None
    for parameter in net.parameters():
        parameter.grad = torch.ones_like(parameter)
    optimizer.step()
    moments = optimizer.state[next(iter(net.parameters()))]["exp_avg"]
    moments.view(-1)[0] = value
    assert largest_moment(optimizer) == expected
    moments.view(-1)[0] = math.nan
    largest = largest_moment(optimizer)
    assert largest is not None
    assert largest.isnan()


# --- muon -------------------------------------------------------------------------------------------------------------


class Stack(nn.Module):
    """An embedding, two matrices of one shape and one of another inside of blocks, and a last layer."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(40, 8)
        self.blocks = nn.ModuleList(nn.Linear(8, width) for width in (8, 8, 16))
        self.last = nn.Linear(16, 3)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.embedding(tokens)
        for block in self.blocks:
            x = block(x).tanh()
        made: Tensor = self.last(x)
        return made


def muon_of(net: nn.Module, **keys: Any) -> tuple[Optimizer, dict[str, nn.Parameter]]:
    parameters = named_parameters({"net": net}, ["net"])
    config = OptimizerConfig(name="muon", lr=1e-3, muon_lr=0.02, **keys)
    return make_optimizer(config, parameters), parameters


def test_muon_updates_of_block_matrices_are_orthogonal() -> None:
    torch.manual_seed(0)
    net = Stack().double()
    optimizer, parameters = muon_of(net)
    set_learning_rate(optimizer, 1e-3)
    before = {name: parameter.detach().clone() for name, parameter in parameters.items()}
    net(torch.arange(40)).square().sum().backward()
    optimizer.step()
    for name, parameter in parameters.items():
        moved = parameter.detach() - before[name]
        if ".blocks." in name and parameter.ndim == 2:
            assert parameter.grad is not None
            scale = 0.02 * max(1.0, moved.shape[0] / moved.shape[1]) ** 0.5
            torch.testing.assert_close(moved, -scale * orthogonal(parameter.grad[None])[0], msg=name)
            assert set(optimizer.state[parameter]) == {"exp_avg"}
        else:
            assert moved.abs().max() == pytest.approx(1e-3, rel=1e-3), name  # the first step of AdamW
        assert parameter.grad is not None


def test_muon_updates_of_convolution_kernels_are_orthogonal() -> None:
    torch.manual_seed(0)
    net = nn.ModuleDict(
        {
            "wide": nn.Conv2d(16, 24, 3),
            "up": nn.ConvTranspose2d(24, 16, 2),
            "line": nn.Conv1d(16, 16, 5),
            "depthwise": nn.Conv2d(32, 32, 5, groups=32),
            "pixels": nn.Conv2d(16, 12, 3),
        }
    ).double()
    parameters = named_parameters({"net": net}, ["net"])
    config = OptimizerConfig(name="muon", lr=1e-3, muon_lr=0.02, muon_kernels=True)
    optimizer = make_optimizer(config, parameters)
    set_learning_rate(optimizer, 1e-3)
    before = {name: parameter.detach().clone() for name, parameter in parameters.items()}
    for parameter in parameters.values():
        parameter.grad = torch.randn_like(parameter)
    optimizer.step()
    for name, parameter in parameters.items():
        moved = parameter.detach() - before[name]
        if name in {"net.wide.weight", "net.up.weight", "net.line.weight"}:
            assert parameter.grad is not None
            matrix = parameter.grad.flatten(1)
            scale = 0.02 * max(1.0, matrix.shape[0] / matrix.shape[1]) ** 0.5
            torch.testing.assert_close(moved.flatten(1), -scale * orthogonal(matrix[None])[0], msg=name)
        else:
            assert moved.abs().max() == pytest.approx(1e-3, rel=1e-3), name  # the first step of AdamW


@pytest.mark.parametrize("shape", [(3, 8, 8), (2, 16, 8), (2, 8, 16)])
def test_a_matrix_becomes_orthogonal_and_keeps_its_directions(shape: tuple[int, int, int]) -> None:
    matrices = torch.randn(shape, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    left, values, right = torch.linalg.svd(matrices, full_matrices=False)
    made = left.mT @ orthogonal(matrices) @ right.mT
    values = values / matrices.norm(dim=(1, 2), keepdim=True)[..., 0]
    diagonal = made.diagonal(dim1=1, dim2=2)
    assert (made - torch.diag_embed(diagonal)).abs().max() < 1e-9
    assert ((diagonal > 0.6) & (diagonal < 1.25))[values > 0.05].all()


@pytest.mark.parametrize("shape", [(3, 64, 64), (2, 48, 96), (2, 200, 48), (2, 48, 350)])
def test_singular_values_are_about_one_in_bf16_too(shape: tuple[int, int, int]) -> None:
    matrices = torch.randn(shape, generator=torch.Generator().manual_seed(0))
    made = orthogonal(matrices, torch.bfloat16)
    assert made.dtype == torch.float32
    values = torch.linalg.svdvals(matrices) / matrices.norm(dim=(1, 2), keepdim=True)[..., 0]
    found = torch.linalg.svdvals(made)
    assert (found < 1.25).all()
    assert (found > 0.6)[values > 0.05].all()
    directions = torch.linalg.svd(matrices, full_matrices=False)
    diagonal = (directions.U.mT @ made @ directions.Vh.mT).diagonal(dim1=1, dim2=2)
    assert ((diagonal > 0.55) & (diagonal < 1.25))[values > 0.05].all()


@pytest.mark.parametrize("shape", [(3, 64, 64), (2, 200, 48), (2, 96, 352), (2, 128, 1408)])
@pytest.mark.parametrize("rank", [1, 5])
@pytest.mark.parametrize("noise", [0.0, 1e-4, 1e-2])
def test_the_update_of_a_low_rank_matrix_stays_bounded_in_bf16(
    shape: tuple[int, int, int], rank: int, noise: float
) -> None:
    generator = torch.Generator().manual_seed(0)
    batch, rows, columns = shape
    left, right = (torch.randn(batch, *size, generator=generator) for size in ((rows, rank), (rank, columns)))
    matrices = left @ right + noise * torch.randn(shape, generator=generator)
    assert torch.linalg.svdvals(orthogonal(matrices, torch.bfloat16)).max() < 1.3


def test_the_update_of_a_zero_gradient_is_zero_in_bf16() -> None:
    assert orthogonal(torch.zeros(2, 8, 32), torch.bfloat16).abs().max() == 0


@pytest.mark.parametrize(("dtype", "expected"), [(torch.bfloat16, torch.bfloat16), (torch.float32, None)])
def test_muon_orthogonalises_in_the_precision_of_a_bf16_run(dtype: torch.dtype, expected: torch.dtype | None) -> None:
    parameters = named_parameters({"net": Stack()}, ("net",))
    made: Any = make_optimizer(OptimizerConfig(name="muon"), parameters, dtype)
    assert made.product_dtype == expected


def test_a_schedule_scales_the_rates_of_matrices_too() -> None:
    optimizer, _ = muon_of(Stack())
    set_learning_rate(optimizer, 5e-4)
    assert {(group["orthogonal"], round(group["lr"], 9)) for group in optimizer.param_groups} == {
        (True, 0.01),
        (False, 5e-4),
    }


def test_muon_continues_from_its_saved_state() -> None:
    torch.manual_seed(0)
    first = Stack()
    optimizer, parameters = muon_of(first, weight_decay=0.1)

    def step(net: nn.Module, by: Optimizer) -> None:
        by.zero_grad()
        net(torch.arange(40)).square().sum().backward()
        by.step()

    for _ in range(3):
        step(first, optimizer)
    second = Stack()
    second.load_state_dict(first.state_dict())
    other, others = muon_of(second, weight_decay=0.1)
    load_optimizer_tensors(other, others, optimizer_tensors(optimizer, parameters))
    step(first, optimizer)
    step(second, other)
    for name, parameter in parameters.items():
        assert torch.equal(parameter, others[name]), name
    short = {key: value for key, value in optimizer_tensors(optimizer, parameters).items() if "exp_avg_sq" not in key}
    with pytest.raises(CheckpointError):
        load_optimizer_tensors(other, others, short)
