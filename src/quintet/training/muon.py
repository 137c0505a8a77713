"""Muon: orthogonalised momentum for the matrices of blocks, with the work divided between ranks."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.optim import Optimizer

from quintet.common import collectives


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
        moments = [momentum_of(self, parameter) for _, parameter in matrices]
        torch._foreach_lerp_(moments, list(gradients), 1 - self.MOMENTUM)
        return gradients.lerp(torch.stack(moments), self.MOMENTUM).flatten(2)


def _apply(matrices: list[tuple[dict[str, Any], nn.Parameter]], updates: Tensor) -> None:
    scale = max(1.0, updates.shape[1] / updates.shape[2]) ** 0.5
    for (group, parameter), update in zip(matrices, updates, strict=True):
        parameter.mul_(1 - group["lr"] * group["weight_decay"])
        parameter.add_(update.view_as(parameter), alpha=-group["lr"] * scale)


def momentum_of(optimizer: Optimizer, parameter: nn.Parameter) -> Tensor:
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
