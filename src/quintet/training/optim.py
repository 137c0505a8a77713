"""Optimizers (AdamW, Lion, Muon), gradient clipping, and saving of optimizer state.

State is saved by parameter name, never by position, so that a resumed run cannot assign moments to another parameter.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.optim import Optimizer

from quintet.common import collectives
from quintet.config import OptimizerConfig
from quintet.errors import CheckpointError
from quintet.training.distributed.sharding import copy_into, full_tensor

Parameters = dict[str, nn.Parameter]


class Lion(Optimizer):
    """EvoLved Sign Momentum (Chen et al. 2023, 2302.06675): the sign of an interpolated momentum, decoupled decay."""

    def __init__(self, params: Any, lr: float, betas: tuple[float, float], weight_decay: float) -> None:
        super().__init__(params, {"lr": lr, "betas": betas, "weight_decay": weight_decay})

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]
        for group in self.param_groups:
            parameters = [parameter for parameter in group["params"] if parameter.grad is not None]
            if not parameters:
                continue
            gradients = [parameter.grad for parameter in parameters]
            moments = [_moment(self, parameter) for parameter in parameters]
            fast, slow = group["betas"]
            updates = torch._foreach_lerp(moments, gradients, 1 - fast)
            torch._foreach_sign_(updates)
            torch._foreach_mul_(parameters, 1 - group["lr"] * group["weight_decay"])
            torch._foreach_add_(parameters, updates, alpha=-group["lr"])
            torch._foreach_lerp_(moments, gradients, 1 - slow)


class Muon(torch.optim.AdamW):
    """Muon for the matrices inside of blocks, AdamW for all other parameters (Jordan et al. 2024).

    The momentum of a matrix is replaced by the nearest semi-orthogonal matrix (all singular values about 1), so that
    every direction is learned at the same speed. Parameter groups with `orthogonal` use this update, with `rate` times
    the learning rate of the others.
    """

    MOMENTUM = 0.95
    product_dtype: torch.dtype | None = None
    """The data type of the products that orthogonalise a matrix; None: that of the matrix."""

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]
        matrices = [
            (group, parameter)
            for group in self.param_groups
            if group["orthogonal"]
            for parameter in group["params"]
            if parameter.grad is not None
        ]
        gradients = [parameter.grad for _, parameter in matrices]
        by_shape: dict[torch.Size, list[tuple[dict[str, Any], nn.Parameter]]] = defaultdict(list)
        for group, parameter in matrices:
            by_shape[parameter.shape].append((group, parameter))
        momenta = [self._next_momenta(members) for members in by_shape.values()]
        updates = orthogonal_over_ranks(momenta, self.product_dtype)
        for members, update in zip(by_shape.values(), updates, strict=True):
            _apply(members, update)
        # AdamW skips parameters without a gradient.
        for _, parameter in matrices:
            parameter.grad = None
        super().step()
        for (_, parameter), gradient in zip(matrices, gradients, strict=True):
            parameter.grad = gradient

    def _next_momenta(self, matrices: list[tuple[dict[str, Any], nn.Parameter]]) -> Tensor:
        """Update the momenta of matrices of equal shape; returns the Nesterov momenta (matrices, rows, columns).

        A convolution kernel is a matrix of output channels by input channels and positions."""
        gradients = torch.stack([parameter.grad for _, parameter in matrices])  # type: ignore[misc]
        moments = [_moment(self, parameter) for _, parameter in matrices]
        torch._foreach_lerp_(moments, list(gradients), 1 - self.MOMENTUM)
        return gradients.lerp(torch.stack(moments), self.MOMENTUM).flatten(2)


def _apply(matrices: list[tuple[dict[str, Any], nn.Parameter]], updates: Tensor) -> None:
    scale = max(1.0, updates.shape[1] / updates.shape[2]) ** 0.5
    for (group, parameter), update in zip(matrices, updates, strict=True):
        parameter.mul_(1 - group["lr"] * group["weight_decay"])
        parameter.add_(update.view_as(parameter), alpha=-group["lr"] * scale)


def _moment(optimizer: Optimizer, parameter: nn.Parameter) -> Tensor:
    """The momentum of a parameter, initially zero."""
    state = optimizer.state[parameter]
    if "exp_avg" not in state:
        state["exp_avg"] = torch.zeros_like(parameter)
    moment: Tensor = state["exp_avg"]
    return moment


LINEAR, CUBIC, QUINTIC = 3.4445, -4.7750, 2.0315
"""Coefficients of the odd Newton-Schulz polynomial, which maps (0, 1] towards 1; applied ITERATIONS times."""
ITERATIONS = 5


BF16_RESTART = 2
"""Iteration after which the Gram matrix is computed again in bf16."""


def orthogonal(matrices: Tensor, dtype: torch.dtype | None = None) -> Tensor:
    """Orthogonalise matrices (batch, rows, columns): same singular vectors, singular values of about 1.

    With `dtype` the products are computed in that precision, by default in that of the matrices."""
    wide = matrices if matrices.shape[1] <= matrices.shape[2] else matrices.mT
    wide = (wide / wide.norm(dim=(1, 2), keepdim=True).clamp(min=1e-7)).to(dtype or matrices.dtype)
    if wide.shape[2] < 2 * wide.shape[1]:
        result = _newton_schulz(wide)
    elif wide.dtype == torch.bfloat16:
        # Rounding makes some eigenvalues of the Gram matrix of a low-rank matrix negative, and every iteration
        # multiplies those by about 12, so that the update would explode. A new Gram matrix has none of that size.
        result = _newton_schulz_gram(_newton_schulz_gram(wide, BF16_RESTART), ITERATIONS - BF16_RESTART)
    else:
        result = _newton_schulz_gram(wide, ITERATIONS)
    result = result.to(matrices.dtype)
    return result if matrices.shape[1] <= matrices.shape[2] else result.mT


def orthogonal_over_ranks(stacks: Sequence[Tensor], dtype: torch.dtype | None = None) -> list[Tensor]:
    """`orthogonal` of each stack (matrices, rows, columns), which is the same on all ranks.

    The ranks divide the matrices between them, because this work would not shrink with their number otherwise.
    """
    if not stacks or not collectives.is_distributed():
        return [orthogonal(stack, dtype) for stack in stacks]
    world_size, rank = collectives.world_size(), collectives.rank()

    def part(number: int, owner: int) -> slice:
        """The matrices of stack `number` that rank `owner` computes; the first rank differs from stack to stack."""
        return slice((owner + number) % world_size, None, world_size)

    own = [orthogonal(stack[part(number, rank)], dtype).flatten() for number, stack in enumerate(stacks)]
    flat = torch.cat(own)
    lengths = [
        sum(stack[part(number, owner)].numel() for number, stack in enumerate(stacks)) for owner in range(world_size)
    ]
    rows = collectives.gather_rows(F.pad(flat, (0, max(lengths) - len(flat)))[None])
    results = [torch.empty_like(stack) for stack in stacks]
    for owner, (row, length) in enumerate(zip(rows, lengths, strict=True)):
        parts = [result[part(number, owner)] for number, result in enumerate(results)]
        for target, found in zip(parts, row[:length].split([each.numel() for each in parts]), strict=True):
            target.copy_(found.view_as(target))
    return results


def _newton_schulz(wide: Tensor) -> Tensor:
    for _ in range(ITERATIONS):
        gram = wide @ wide.mT
        factor = torch.baddbmm(gram, gram, gram, beta=CUBIC, alpha=QUINTIC)
        wide = torch.baddbmm(wide, factor, wide, beta=LINEAR)
    return wide


def _newton_schulz_gram(wide: Tensor, iterations: int) -> Tensor:
    """The same result for wide matrices: every factor is a polynomial of the small Gram matrix, so that the factors are
    multiplied first."""
    gram = wide @ wide.mT
    product = factor = _factor(gram)
    for _ in range(iterations - 1):
        gram = factor @ gram @ factor
        factor = _factor(gram)
        product = factor @ product
    return product @ wide


def _factor(gram: Tensor) -> Tensor:
    factor = torch.baddbmm(gram, gram, gram, beta=CUBIC, alpha=QUINTIC)
    factor.diagonal(dim1=1, dim2=2).add_(LINEAR)
    return factor


def named_parameters(modules: Mapping[str, nn.Module], names: Iterable[str]) -> Parameters:
    """The trainable parameters of the named modules, as `module.path`."""
    return {
        f"{name}.{path}": parameter
        for name in names
        for path, parameter in modules[name].named_parameters()
        if parameter.requires_grad
    }


def make_optimizer(
    config: OptimizerConfig, parameters: Parameters, product_dtype: torch.dtype | None = None
) -> Optimizer:
    """Weight decay applies to matrices and kernels, not to vectors (biases, norms, scales).

    `product_dtype` is the data type of matrix products in the run, in which Muon orthogonalises if it is bf16."""
    if config.name == "muon":
        muon = _make_muon(config, parameters)
        muon.product_dtype = product_dtype if product_dtype == torch.bfloat16 else None
        return muon
    matrices = [parameter for parameter in parameters.values() if parameter.ndim >= 2]
    vectors = [parameter for parameter in parameters.values() if parameter.ndim < 2]
    groups = [
        {"params": members, "weight_decay": decay}
        for members, decay in ((matrices, config.weight_decay), (vectors, 0.0))
        if members
    ]
    if config.name == "lion":
        return Lion(groups, lr=config.lr, betas=config.betas, weight_decay=config.weight_decay)
    kind = torch.optim.AdamW if config.name == "adamw" else torch.optim.Adam
    fused = all(parameter.device.type in ("cpu", "cuda") for parameter in parameters.values())
    return kind(groups, lr=config.lr, betas=config.betas, eps=config.eps, amsgrad=config.amsgrad, fused=fused)


def _make_muon(config: OptimizerConfig, parameters: Parameters) -> Muon:
    """Muon updates the matrices of blocks, and convolution kernels on request. Embeddings and output layers are
    matrices too, but AdamW suits them."""
    kinds: dict[tuple[bool, bool], list[nn.Parameter]] = defaultdict(list)
    for name, parameter in parameters.items():
        is_kernel = config.muon_kernels and name.endswith(".weight") and _is_wide_kernel(parameter)
        is_orthogonal = is_kernel or (parameter.ndim == 2 and ".blocks." in name)
        kinds[is_orthogonal, parameter.ndim >= 2].append(parameter)
    groups = [
        {
            "params": members,
            "orthogonal": is_orthogonal,
            "rate": config.muon_lr / config.lr if is_orthogonal else 1.0,
            "weight_decay": config.weight_decay if decays else 0.0,
        }
        for (is_orthogonal, decays), members in kinds.items()
    ]
    fused = all(parameter.device.type in ("cpu", "cuda") for parameter in parameters.values())
    return Muon(groups, lr=config.lr, betas=config.betas, eps=config.eps, fused=fused)


MIN_KERNEL_RANK = 16
"""Kernels between fewer channels, such as those to pixels, are output layers."""


def _is_wide_kernel(parameter: Tensor) -> bool:
    """Whether this is the kernel of a convolution between many channels; a depthwise one has one input channel."""
    return parameter.ndim > 2 and parameter.shape[1] > 1 and min(parameter.flatten(1).shape) >= MIN_KERNEL_RANK


def set_learning_rate(optimizer: Optimizer, rate: float) -> None:
    for group in optimizer.param_groups:
        group["lr"] = rate * group.get("rate", 1.0)


def gradient_norm(parameters: Parameters) -> Tensor:
    """L2 norm over all gradients: non-finite if any element is."""
    gradients = [parameter.grad for parameter in parameters.values() if parameter.grad is not None]
    return full_tensor(nn.utils.get_total_norm(gradients))


def clip_gradients(parameters: Parameters, norm: Tensor, limit: float) -> None:
    nn.utils.clip_grads_with_norm_(parameters.values(), limit, norm)


def optimizer_tensors(optimizer: Optimizer, parameters: Parameters) -> dict[str, Tensor]:
    """The state of an optimizer, named `exp_avg/module.path`."""
    return {
        f"{kind}/{name}": value
        for name, parameter in parameters.items()
        for kind, value in optimizer.state.get(parameter, {}).items()
    }


def allocate_state(parameters: Parameters, shapes: Mapping[str, tuple[int, ...]]) -> dict[str, Tensor]:
    """Empty tensors to read saved state into, by name, sharded like the parameters."""

    def allocate(key: str, shape: tuple[int, ...]) -> Tensor:
        kind, _, name = key.partition("/")
        fits = kind != "step" and name in parameters and parameters[name].shape == shape
        return torch.empty_like(parameters[name], requires_grad=False) if fits else torch.zeros(shape)

    return {key: allocate(key, shape) for key, shape in shapes.items()}


def load_optimizer_tensors(
    optimizer: Optimizer, parameters: Parameters, tensors: Mapping[str, Tensor], origin: str = "the saved state"
) -> None:
    """Load saved state by parameter name. A phase that has not been active yet has no state."""
    _check_optimizer_tensors(optimizer, parameters, tensors, origin)
    optimizer.state.clear()
    for key, saved in tensors.items():
        kind, _, name = key.partition("/")
        parameter = parameters[name]
        if kind == "step":
            value = saved.clone().to(parameter.device if optimizer.defaults.get("fused") else "cpu")
        else:
            # In the memory format of the parameter: the fused kernels treat both as flat memory.
            value = torch.empty_like(parameter, requires_grad=False)
            copy_into(value, saved)
        optimizer.state[parameter][kind] = value


def _check_optimizer_tensors(
    optimizer: Optimizer, parameters: Parameters, tensors: Mapping[str, Tensor], origin: str
) -> None:
    """Each parameter must have the complete state of this optimizer, or none."""
    kinds: dict[str, set[str]] = defaultdict(set)
    for key, saved in tensors.items():
        kind, _, name = key.partition("/")
        if name not in parameters:
            raise CheckpointError(f"{origin} has optimizer state for {name[:100]!r}, which this model does not have")
        kinds[name].add(kind)
        shape = () if kind == "step" else parameters[name].shape
        if saved.shape != shape or not saved.is_floating_point():
            raise CheckpointError(f"{origin}: {key[:100]!r} does not have the shape and type of its parameter")
    orthogonal_ids = {
        id(parameter) for group in optimizer.param_groups if group.get("orthogonal") for parameter in group["params"]
    }
    for name, found in kinds.items():
        momentum_only = isinstance(optimizer, Lion) or id(parameters[name]) in orthogonal_ids
        expected = {"exp_avg"} if momentum_only else {"step", "exp_avg", "exp_avg_sq"}
        if optimizer.defaults.get("amsgrad"):
            expected.add("max_exp_avg_sq")
        if found != expected:
            raise CheckpointError(
                f"{origin} has {', '.join(sorted(found))[:100]} for '{name}', but this optimizer needs "
                f"{', '.join(sorted(expected))}"
            )
