"""Optimizers (AdamW, Lion; Muon is in `muon.py`), gradient clipping, and saving of optimizer state.

State is saved by parameter name, never by position, so that a resumed run cannot assign moments to another parameter.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from quintet.common.weights.lora import is_adapter
from quintet.config import OptimizerConfig
from quintet.errors import CheckpointError
from quintet.training.distributed.sharding import copy_into, full_tensor
from quintet.training.muon import Muon, momentum_of

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
            moments = [momentum_of(self, parameter) for parameter in parameters]
            fast, slow = group["betas"]
            updates = torch._foreach_lerp(moments, gradients, 1 - fast)
            torch._foreach_sign_(updates)
            torch._foreach_mul_(parameters, 1 - group["lr"] * group["weight_decay"])
            torch._foreach_add_(parameters, updates, alpha=-group["lr"])
            torch._foreach_lerp_(moments, gradients, 1 - slow)


def named_parameters(modules: Mapping[str, nn.Module], names: Iterable[str]) -> Parameters:
    """The trainable parameters of the named modules, as `module.path`."""
    return {
        f"{name}.{path}": parameter
        for name in names
        for path, parameter in modules[name].named_parameters()
        if parameter.requires_grad
    }


def make_optimizer(
    config: OptimizerConfig,
    parameters: Parameters,
    product_dtype: torch.dtype | None = None,
    factors: Mapping[str, float] | None = None,
) -> Optimizer:
    """Weight decay applies to matrices and kernels, not to vectors (biases, norms, scales).

    `product_dtype` is the data type of matrix products in the run, in which Muon orthogonalises if it is bf16.
    `factors` are those of the learning rate, by parameter name; 1 for all others."""
    factors = factors or {}
    if config.name == "muon":
        muon = _make_muon(config, parameters, factors)
        muon.product_dtype = product_dtype if product_dtype == torch.bfloat16 else None
        return muon
    rates = dict.fromkeys(factors.get(name, 1.0) for name in parameters)
    groups = []
    for rate in rates:
        members = [parameter for name, parameter in parameters.items() if factors.get(name, 1.0) == rate]
        matrices = [parameter for parameter in members if parameter.ndim >= 2]
        vectors = [parameter for parameter in members if parameter.ndim < 2]
        groups += [
            {"params": members, "weight_decay": decay, "rate": rate}
            for members, decay in ((matrices, config.weight_decay), (vectors, 0.0))
            if members
        ]
    if config.name == "lion":
        return Lion(groups, lr=config.lr, betas=config.betas, weight_decay=config.weight_decay)
    kind = torch.optim.AdamW if config.name == "adamw" else torch.optim.Adam
    fused = all(parameter.device.type in ("cpu", "cuda") for parameter in parameters.values())
    return kind(groups, lr=config.lr, betas=config.betas, eps=config.eps, amsgrad=config.amsgrad, fused=fused)


def _make_muon(config: OptimizerConfig, parameters: Parameters, factors: Mapping[str, float]) -> Muon:
    """Muon updates the matrices of blocks, and convolution kernels on request. Embeddings, output layers and the
    factors of adapters are matrices too, but AdamW suits them."""
    kinds: dict[tuple[bool, bool, float], list[nn.Parameter]] = defaultdict(list)
    for name, parameter in parameters.items():
        is_kernel = config.muon_kernels and name.endswith(".weight") and _is_wide_kernel(parameter)
        is_orthogonal = is_kernel or (parameter.ndim == 2 and ".blocks." in name and not is_adapter(name))
        kinds[is_orthogonal, parameter.ndim >= 2, factors.get(name, 1.0)].append(parameter)
    groups = [
        {
            "params": members,
            "orthogonal": is_orthogonal,
            "rate": factor * (config.muon_lr / config.lr if is_orthogonal else 1.0),
            "weight_decay": config.weight_decay if decays else 0.0,
        }
        for (is_orthogonal, decays, factor), members in kinds.items()
    ]
    fused = all(parameter.device.type in ("cpu", "cuda") for parameter in parameters.values())
    return Muon(groups, lr=config.lr, betas=config.betas, eps=config.eps, fused=fused)


MIN_KERNEL_RANK = 16
"""Kernels between fewer channels, such as those to pixels, are output layers."""


def _is_wide_kernel(parameter: Tensor) -> bool:
    """Whether this is the kernel of a convolution between many channels; a depthwise one has one input channel."""
    return parameter.ndim > 2 and parameter.shape[1] > 1 and min(parameter.flatten(1).shape) >= MIN_KERNEL_RANK


def moments(config: OptimizerConfig) -> int:
    """The number of tensors of the size of a parameter that an optimizer keeps for it; at most that with Muon."""
    return 1 if config.name == "lion" else 3 if config.amsgrad else 2


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
