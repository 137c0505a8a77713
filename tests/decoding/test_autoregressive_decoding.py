"""Autoregressive decoding decides on the device: with the tokens of decisions on the host, and one wait in 16."""

from __future__ import annotations

import json
import math
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from decoding import on_host
from decoding.autoregressive_cases import CASES, COORDINATES, Case, as_lists
from fakegpu import device
from fakegpu.commands import run_check
from helpers import forked
from quintet.errors import RunError
from quintet.sampling.autoregressive import GPU_READ_INTERVAL, Decoded, decode


@pytest.mark.parametrize("name", CASES)
def test_a_cpu_gives_the_tokens_of_the_definition(name: str) -> None:
    assert as_lists(CASES[name].run(decode)) == as_lists(CASES[name].run(on_host.extend))


def test_a_gpu_gives_the_tokens_of_the_definition(tmp_path: Path) -> None:
    expected = {name: as_lists(case.run(on_host.extend)) for name, case in CASES.items()}
    file = tmp_path / "tokens.json"
    with forked([], tmp_path / "said", partial(run_check, partial(decode_all, file), refuse_float64=False)) as process:
        assert process.end() == 0, process.seen
    found = json.loads(file.read_text())
    assert [name for name in expected if found[name]["decoded"] != expected[name]] == []
    # Rows end at different positions, also between two reads.
    lengths = {length for _, rows, _ in expected.values() for length in rows}
    assert {length % GPU_READ_INTERVAL for length in lengths} > {0, 9, 2}
    for name, case in CASES.items():
        longest = case.max_faces * COORDINATES - min(len(prompt) for prompt in case.prompts)
        # One wait for the lengths of the prompts.
        assert len(found[name]["waits"]) <= 1 + math.ceil(longest / GPU_READ_INTERVAL), found[name]["waits"]


def decode_all(file: Path) -> None:
    found = {}
    for name, case in CASES.items():
        waits: list[str] = []
        decoded = case.run(partial(device.recorded, decode, waits), torch.device(device.NAME))
        found[name] = {"decoded": as_lists(decoded), "waits": waits}
    file.write_text(json.dumps(found))


def test_a_gpu_reports_what_cannot_be_sampled(tmp_path: Path) -> None:
    with forked([], tmp_path / "said", partial(run_check, decode_spoilt, refuse_float64=False)) as process:
        assert process.end() == 0, process.seen


def decode_spoilt() -> None:
    for kind in ("coarse_fine", "flat"):
        with pytest.raises(RunError, match="not finite"):
            Case(kind=kind).run(decode, torch.device(device.NAME), spoilt=True)
    with pytest.raises(ValueError, match="no next code"):
        Case().run(decode_until_nothing_is_legal, torch.device(device.NAME))


def decode_until_nothing_is_legal(*arguments: Any, **keywords: Any) -> Decoded:
    return decode(*arguments, **{**keywords, "legal": nothing_after_twenty})


def nothing_after_twenty(tokens: Tensor) -> Tensor:
    allowed = torch.full((len(tokens), 9), tokens.shape[1] < 20, device=tokens.device)
    allowed[:, -1] = False
    return allowed
