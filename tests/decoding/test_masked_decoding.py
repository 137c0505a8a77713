"""Masked decoding decides on the device: with the tokens of decisions on the host, and without waiting in a step."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path

import pytest
import torch

from decoding import on_host
from decoding.masked_cases import MASKED_CASES
from fakegpu import device
from fakegpu.commands import run_check
from helpers import forked
from quintet.errors import RunError
from quintet.sampling.masked import decode


@pytest.mark.parametrize("name", MASKED_CASES)
def test_a_cpu_gives_the_tokens_of_the_definition(name: str) -> None:
    case = MASKED_CASES[name]
    assert torch.equal(case.run(decode), case.run(on_host.fill))


@pytest.mark.parametrize("has_float64", [True, False])
def test_a_gpu_gives_the_tokens_of_the_definition(has_float64: bool, tmp_path: Path) -> None:
    """With float64 on the device, as CUDA, in fp64; without it, as MPS, the decisions are made on the CPU."""
    expected = {name: case.run(on_host.fill).tolist() for name, case in MASKED_CASES.items()}
    file = tmp_path / "tokens.json"
    check = partial(run_check, partial(decode_all, file), refuse_float64=False, float64_on_device=has_float64)
    with forked([], tmp_path / "said", check) as process:
        assert process.end() == 0, process.seen
    found = json.loads(file.read_text())
    assert [name for name in expected if found[name]["tokens"] != expected[name]] == []
    if has_float64:
        # How many tokens to generate, and at the end whether all logits were finite.
        assert {name: case["waits"] for name, case in found.items() if len(case["waits"]) != 2} == {}


def decode_all(file: Path) -> None:
    found = {}
    for name, case in MASKED_CASES.items():
        waits: list[str] = []
        tokens = case.run(partial(device.recorded, decode, waits), torch.device(device.NAME))
        found[name] = {"tokens": tokens.tolist(), "waits": waits}
    file.write_text(json.dumps(found))


def test_a_gpu_reports_logits_that_are_not_finite(tmp_path: Path) -> None:
    with forked([], tmp_path / "said", partial(run_check, decode_spoilt, refuse_float64=False)) as process:
        assert process.end() == 0, process.seen


def decode_spoilt() -> None:
    for case in MASKED_CASES.values():
        with pytest.raises(RunError, match="not finite"):
            case.run(decode, torch.device(device.NAME), spoilt=True)
