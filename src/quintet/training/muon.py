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
from quintet.training.distributed.sharding import is_sharded, local_tensor


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
        if matrices and is_sharded(matrices[0][1]):
            updates = orthogonal_of_shards(momenta, [shape[0] for shape in by_shape], self.product_dtype)
        else:
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

        A convolution kernel is a matrix of output channels by input channels and positions. With FSDP, the rows are
        those of this rank."""
        gradients = torch.stack([local_tensor(parameter.grad) for _, parameter in matrices])  # type: ignore[arg-type]
        moments = [local_tensor(momentum_of(self, parameter)) for _, parameter in matrices]
        torch._foreach_lerp_(moments, list(gradients), 1 - self.MOMENTUM)
        return gradients.lerp(torch.stack(moments), self.MOMENTUM).flatten(2)


def _apply(matrices: list[tuple[dict[str, Any], nn.Parameter]], updates: Tensor) -> None:
    rows = len(matrices[0][1])  # of the full matrix
    scale = max(1.0, rows / updates.shape[2]) ** 0.5
    for (group, parameter), update in zip(matrices, updates, strict=True):
        local = local_tensor(parameter)
        local.mul_(1 - group["lr"] * group["weight_decay"])
        local.add_(update.view_as(local), alpha=-group["lr"] * scale)


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
    own = [orthogonal(stack[_owned(number, rank)], dtype).flatten() for number, stack in enumerate(stacks)]
    flat = torch.cat(own)
    lengths = [
        sum(stack[_owned(number, owner)].numel() for number, stack in enumerate(stacks)) for owner in range(world_size)
    ]
    rows = collectives.gather_rows(F.pad(flat, (0, max(lengths) - len(flat)))[None])
    results = [torch.empty_like(stack) for stack in stacks]
    for owner, (row, length) in enumerate(zip(rows, lengths, strict=True)):
        _fill([result[_owned(number, owner)] for number, result in enumerate(results)], row[:length])
    return results


def orthogonal_of_shards(
    stacks: Sequence[Tensor], rows: Sequence[int], dtype: torch.dtype | None = None
) -> list[Tensor]:
    """This rank's rows of `orthogonal` of the full matrices, from its rows of each stack (matrices, own rows, columns).

    `rows` is the number of rows of the full matrices of each stack, which FSDP divides between the ranks in order. The
    rows of a matrix are sent to the rank that orthogonalises it, and the result is sent back, so that no rank holds
    more than its part of the matrices in full.
    """
    world_size, rank = collectives.world_size(), collectives.rank()
    by_rank = [_rows_by_rank(count, world_size) for count in rows]
    # To every owner of matrices, this rank's rows of them.
    sent = [
        torch.cat([stack[_owned(number, owner)].flatten() for number, stack in enumerate(stacks)])
        for owner in range(world_size)
    ]
    owned = [
        [stack.new_empty(len(stack[_owned(number, rank)]), count, stack.shape[2]) for count in by_rank[number]]
        for number, stack in enumerate(stacks)
    ]
    lengths = [sum(parts[source].numel() for parts in owned) for source in range(world_size)]
    for source, received in enumerate(collectives.exchange(sent, lengths)):
        _fill([parts[source] for parts in owned], received)

    # To every rank, its rows of the result.
    full = [
        torch.split(orthogonal(torch.cat(parts, 1), dtype), by_rank[number], 1) for number, parts in enumerate(owned)
    ]
    sent = [torch.cat([parts[target].flatten() for parts in full]) for target in range(world_size)]
    results = [torch.empty_like(stack) for stack in stacks]
    lengths = [
        sum(result[_owned(number, owner)].numel() for number, result in enumerate(results))
        for owner in range(world_size)
    ]
    for owner, received in enumerate(collectives.exchange(sent, lengths)):
        _fill([result[_owned(number, owner)] for number, result in enumerate(results)], received)
    return results


def _owned(number: int, owner: int) -> slice:
    """The matrices of stack `number` that rank `owner` orthogonalises; the first rank differs from stack to stack."""
    world_size = collectives.world_size()
    return slice((owner + number) % world_size, None, world_size)


def _rows_by_rank(rows: int, world_size: int) -> list[int]:
    """Number of rows that FSDP gives to each rank: equal parts, and what remains to the last ones."""
    part = -(-rows // world_size)
    return [max(0, min(part, rows - rank * part)) for rank in range(world_size)]


def _fill(targets: Sequence[Tensor], flat: Tensor) -> None:
    """Copy consecutive parts of a flat tensor into tensors."""
    for target, part in zip(targets, torch.split(flat, [target.numel() for target in targets]), strict=True):
        target.copy_(part.view(target.shape))


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
