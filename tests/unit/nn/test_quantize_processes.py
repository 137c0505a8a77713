"""Two gloo processes against one: losses, gradients, statistics and codebooks, in fp64."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from safetensors.torch import load_file, save_file
from torch import Tensor, multiprocessing

from quintet.nn.quantize import Quantizer, make_quantizer

WORLD = 2
CASES: dict[str, dict[str, Any]] = {
    "vq": {"kind": "vq", "num_codes": 32, "code_dim": 4, "decay": 0.5, "revive_below": 0.9},
    "lfq": {"kind": "lfq", "num_codes": 64, "inverse_temperature": 2.0},
    "residual": {"kind": "vq", "num_codes": 16, "levels": 3, "decay": 0.5, "revive_below": 0.9},
}


def build(case: str) -> Quantizer:
    torch.manual_seed(0)
    return make_quantizer(dim=6, **CASES[case]).double()


def batch() -> tuple[Tensor, Tensor]:
    """The second half has far more padding than the first, so that means of means would differ."""
    x = torch.randn(4, 10, 6, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    return x, torch.arange(10) < torch.tensor([10, 9, 2, 1])[:, None]


def step(case: str, masked: bool, rank: int, world: int) -> dict[str, Tensor]:
    """One step on the data of this rank: gradients as averaged by DDP, and the new state."""
    quantizer = build(case)
    x, mask = batch()
    fraction = slice(rank * 4 // world, (rank + 1) * 4 // world)
    quantizer.init_from_data(x.flatten(0, 1), seed=1)
    encoder = torch.eye(6, dtype=torch.float64, requires_grad=True)
    result = quantizer(x[fraction] @ encoder, mask[fraction] if masked else None, return_candidates=True)
    result.loss.backward()
    assert encoder.grad is not None
    found = {"loss": result.loss.detach().clone(), "gradient": encoder.grad}
    if world > 1:
        for value in found.values():
            dist.all_reduce(value)
            value.div_(world)
    quantizer.update(result.statistics.over_ranks(), seed=2)
    found |= {name: value.clone() for name, value in quantizer.state_dict().items()}
    return {f"{case}, {masked}: {name}": value for name, value in found.items()}


def all_steps(rank: int, world: int) -> dict[str, Tensor]:
    results: dict[str, Tensor] = {}
    for case in CASES:
        for masked in (False, True):
            results |= step(case, masked, rank, world)
    return results


def work(rank: int, folder: str) -> None:
    os.environ["OMP_NUM_THREADS"] = "1"
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/meeting", rank=rank, world_size=WORLD)
    try:
        save_file(all_steps(rank, WORLD), f"{folder}/{rank}.safetensors")
        dist.barrier()
    finally:
        dist.destroy_process_group()


@pytest.fixture(scope="module")
def two_processes(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Tensor]]:
    folder: Path = tmp_path_factory.mktemp("ranks")
    multiprocessing.spawn(work, (str(folder),), nprocs=WORLD)
    return [load_file(folder / f"{rank}.safetensors") for rank in range(WORLD)]


def test_ranks_agree_to_the_bit(two_processes: list[dict[str, Tensor]]) -> None:
    left, right = two_processes
    assert left.keys() == right.keys()
    assert all(torch.equal(left[name], right[name]) for name in left)


def test_two_processes_equal_one(two_processes: list[dict[str, Tensor]]) -> None:
    one, two = all_steps(0, 1), two_processes[0]
    assert one.keys() == two.keys()
    for name in one:
        torch.testing.assert_close(two[name], one[name], rtol=0, atol=1e-12, msg=lambda text, n=name: f"{n}: {text}")


def test_the_comparison_has_something_to_compare(two_processes: list[dict[str, Tensor]]) -> None:
    """Gradients that are not 0, and codes that were revived."""
    found = two_processes[0]
    assert found["lfq, True: gradient"].abs().max() > 1e-3
    assert found["vq, True: gradient"].abs().max() > 1e-3
    assert (found["vq, True: cluster_size"] == 1.8).any()
