"""Tokens and FLOPs of steps: what is counted, which steps are, and the peak that MFU is a fraction of."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from toy import trained

from quintet.training import peak, trainer
from quintet.training.peak import peak_flops
from quintet.training.throughput import FlopCounter, Throughput

CPU = torch.device("cpu")


def test_a_matrix_product_counts_two_flops_per_multiplication_forward_and_backward() -> None:
    x, weight = torch.ones(3, 5), torch.ones(5, 7, requires_grad=True)
    with FlopCounter() as counter:
        (x @ weight).sum().backward()
    assert counter.flops == 2 * (2 * 3 * 5 * 7)  # the gradient of x is not needed


@pytest.mark.parametrize("groups", [1, 4])
def test_the_gradients_of_a_convolution_cost_as_much_as_itself_each(groups: int) -> None:
    x = torch.ones(2, 8, 10, requires_grad=True)
    weight = torch.ones(12, 8 // groups, 3, requires_grad=True)
    with FlopCounter() as counter:
        F.conv1d(x, weight, padding=1, groups=groups).sum().backward()
    assert counter.flops == 3 * (2 * 2 * 10 * 12 * (8 // groups) * 3)


def test_attention_of_a_cpu_is_counted() -> None:
    query, key, value = (torch.ones(2, 3, 16, 8, requires_grad=True) for _ in range(3))
    with FlopCounter() as counter:
        F.scaled_dot_product_attention(query, key, value).sum().backward()
    product = 2 * 2 * 3 * 16 * 16 * 8
    assert counter.flops == 2 * product + 5 * product  # the backward pass computes the scores again


def run_steps(throughput: Throughput, sizes: list[int], phases: tuple[str, ...] = ("a",)) -> None:
    for size in sizes:
        with throughput.step(phases, 1, size):
            torch.ones(size, 4) @ torch.ones(4, 4)


def test_steps_between_counted_ones_are_estimated_by_their_tokens() -> None:
    throughput = Throughput()
    run_steps(throughput, [1, 1, 3, 5, 2])  # the first two are counted
    assert throughput.read(CPU) == {"flops": 12 * 32, "tokens": 12}
    assert throughput.read(CPU) == {}


def test_another_set_of_active_phases_is_counted_at_once() -> None:
    throughput = Throughput()
    run_steps(throughput, [1, 1, 1])
    with throughput.step(("a", "b"), 1, 1):
        torch.ones(10, 10) @ torch.ones(10, 10)
    run_steps(throughput, [1])
    assert throughput.read(CPU)["flops"] == 4 * 32 + 2000


def test_items_without_tokens_have_flops_but_no_tokens() -> None:
    throughput = Throughput()
    with throughput.step(("a",), 8, None):
        torch.ones(4, 4) @ torch.ones(4, 4)
    assert throughput.read(CPU) == {"flops": 128}


def test_a_compiled_run_has_tokens_but_no_flops() -> None:
    throughput = Throughput(counts_flops=False)
    run_steps(throughput, [3, 4])
    assert throughput.read(CPU) == {"tokens": 7}


def test_a_short_run_has_flops_and_no_mfu(tmp_path: Path) -> None:
    made = trained(tmp_path / "run")
    rows = [row for row in made.run.read_metrics() if "train/lr" in row]
    assert len(rows) == 6
    assert all(row["train/rate/flops_per_second"] > 0 for row in rows)
    assert not any("train/rate/mfu" in row or "train/rate/tokens_per_second" in row for row in rows)


def test_a_longer_run_has_the_mfu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(trainer, "PEAK_AFTER_SECONDS", 0.0)
    monkeypatch.setattr(peak, "SECONDS", 0.0)
    made = trained(tmp_path / "run")
    (measured,) = json.loads((tmp_path / "cache" / "quintet" / "peak_flops.json").read_text()).values()
    rows = [row for row in made.run.read_metrics() if "train/lr" in row]
    assert len(rows) == 6
    for row in rows:
        assert row["train/rate/mfu"] == pytest.approx(row["train/rate/flops_per_second"] / measured)


def test_the_peak_is_the_best_ever_measured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(peak, "SECONDS", 0.0)
    first = peak_flops(CPU, torch.bfloat16)
    assert first > 0
    cache = tmp_path / "quintet" / "peak_flops.json"
    (key,) = json.loads(cache.read_text())
    assert "bfloat16" in key
    cache.write_text(json.dumps({key: 1e30, "another machine": 5.0}))
    assert peak_flops(CPU, torch.bfloat16) == 1e30
    assert peak_flops(CPU, torch.float32) < 1e30
    assert json.loads(cache.read_text())["another machine"] == 5.0


@pytest.mark.parametrize("content", ["", "[1]", '{"a": "b"}', "\0"])
def test_a_damaged_cache_is_measured_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, content: str) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(peak, "SECONDS", 0.0)
    (tmp_path / "quintet").mkdir()
    (tmp_path / "quintet" / "peak_flops.json").write_text(content)
    assert peak_flops(CPU, torch.float32) > 0


def test_a_cache_folder_that_cannot_be_written_stops_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    monkeypatch.setattr(peak, "SECONDS", 0.0)
    assert peak_flops(CPU, torch.float32) > 0
