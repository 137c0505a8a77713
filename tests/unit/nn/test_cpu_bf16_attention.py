"""`cpu_bf16_attention` equals torch's attention, forward and backward."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from quintet.nn.attention import MAX_BF16_LENGTH, cpu_bf16_attention, is_cpu_bf16_faster


def parts(keys: int = 5) -> tuple[Tensor, Tensor, Tensor]:
    """As in a layer: transposed views with heads as the second to last axis in memory."""
    generator = torch.Generator().manual_seed(0)
    queries, of_keys, values = (
        torch.randn(2, positions, 3, 8, generator=generator, dtype=torch.float64, requires_grad=True)
        for positions in (7, keys, keys)
    )
    return queries, of_keys, values


@pytest.mark.parametrize("masked", [False, True])
def test_values_and_gradients_equal_the_kernel(masked: bool) -> None:
    mask = torch.tensor([[True, False, True, True, False], [True] * 5])[:, None, None] if masked else None
    weight = torch.randn(2, 3, 7, 8, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    found, expected = [], []
    for attend, results in ((cpu_bf16_attention, found), (F.scaled_dot_product_attention, expected)):
        given = parts()
        out = attend(*(part.transpose(1, 2) for part in given), mask)
        (out * weight).sum().backward()
        results += [out.detach(), *(part.grad for part in given)]
    torch.testing.assert_close(found, expected, rtol=1e-11, atol=1e-13)


def test_masked_keys_do_not_matter_even_as_nan() -> None:
    queries, keys, values = (part.detach().transpose(1, 2) for part in parts())
    mask = torch.tensor([True, True, True, True, False]).expand(2, 1, 1, 5)
    before = cpu_bf16_attention(queries, keys, values, mask)
    keys[:, :, 4] = torch.nan
    assert torch.equal(cpu_bf16_attention(queries, keys, values, mask), before)


def test_it_is_used_for_short_rows_in_bf16_on_a_cpu() -> None:
    row, long = torch.zeros(1, 1, MAX_BF16_LENGTH, 2), torch.zeros(1, 1, MAX_BF16_LENGTH + 1, 2)
    assert is_cpu_bf16_faster(row.bfloat16(), row.bfloat16())
    assert not is_cpu_bf16_faster(row, row)
    assert not is_cpu_bf16_faster(row.bfloat16(), long.bfloat16())
