"""How often decoding waits for a GPU, counted on the fake device of `tests/fakegpu` with float64, as CUDA has it.

`quintet sample` runs with the golden export of each generator.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import pytest

import quintet.families.soundstorm.decoding
import quintet.sampling.autoregressive
import quintet.sampling.masked
from contract.cases import GOLDEN, TINY_SOUNDSTORM
from contract.test_generators import GENERATORS
from fakegpu import device
from fakegpu.commands import run_all
from helpers import forked, succeed
from quintet.sampling.autoregressive import GPU_READ_INTERVAL, Decoded


@dataclass(frozen=True)
class Budget:
    """The exact number of waits of decoding."""

    once: int
    """Waits before the first and after the last step."""
    repeated: int
    """Waits of a step of masked decoding, or of `GPU_READ_INTERVAL` tokens of autoregressive decoding."""
    words: tuple[tuple[str, ...], ...]
    """Words of `quintet sample`, in turn."""

    def waits(self, units: int) -> int:
        return self.once + self.repeated * units


FILTERED = ("sample.guidance_scale=2", "sample.top_p=0.9", "sample.temperature=1.2")
TEXT = ("--text", "a red circle")
BUDGETS: Mapping[str, Budget] = {
    # How many tokens to generate, and at the end whether all logits were finite.
    "muse": Budget(2, 0, ((*TEXT, "sample.steps=3"), (*TEXT, "sample.steps=6", "sample.top_k=8", *FILTERED))),
    "phenaki": Budget(2, 0, ((*TEXT, "sample.steps=3"), (*TEXT, "sample.steps=6", "sample.top_k=8", *FILTERED))),
    "soundstorm": Budget(2, 0, ((*TEXT, "sample.steps=[3]"), (*TEXT, "sample.steps=[6,2]", *FILTERED))),
    # The lengths of the prompts, and then which meshes have ended.
    "mesh-transformer": Budget(1, 1, (TEXT, (*TEXT, "sample.top_k=8", *FILTERED))),
}


@pytest.mark.parametrize("recipe", GENERATORS)
def test_decoding_waits_as_often_as_the_table_says(recipe: str, tmp_path: Path) -> None:
    assert recipe in BUDGETS, f"generator '{recipe}' has no entry in tests/contract/test_decoding_waits.py"
    budget, export = BUDGETS[recipe], GOLDEN / f"{recipe}-format-1" / "hub"
    commands = [
        ["sample", str(export), "--num", "2", "--out", str(tmp_path / f"out-{number}"), *words]
        for number, words in enumerate(budget.words)
    ]
    file = tmp_path / "waits.jsonl"
    with forked([], tmp_path / "said", partial(run_and_record, commands, file)) as process:
        assert process.end() == 0, process.seen
    decodings = [json.loads(line) for line in file.read_text().splitlines()]
    assert len(decodings) >= len(budget.words)
    for decoding in decodings:
        waits, units = decoding["waits"], decoding["units"]
        expected = budget.waits(units)
        assert len(waits) == expected, "\n".join([f"{expected} waits in {units} parts of decoding, but found:", *waits])


def test_decoding_of_a_soundstorm_that_reads_captions_waits_no_more(sounds: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    keys = ("condition=null", "model.text=words", "model.text_dim=16", "train.steps=1")
    succeed("train", "soundstorm", sounds, "--out", run, *TINY_SOUNDSTORM, *keys)
    long = [*TEXT, "--seconds", "0.5", "--negative", "a drum", "sample.guidance_scale=2", "sample.steps=[3]"]
    command = ["sample", str(run), "--num", "1", "--out", str(tmp_path / "out"), *long]
    file = tmp_path / "waits.jsonl"
    with forked([], tmp_path / "said", partial(run_and_record, [command], file)) as process:
        assert process.end() == 0, process.seen
    waits = [json.loads(line)["waits"] for line in file.read_text().splitlines()]
    assert [len(each) for each in waits] == [BUDGETS["soundstorm"].once] * 6  # three windows of two levels


def run_and_record(commands: list[list[str]], file: Path) -> None:
    """Sample on the fake GPU, and write down the waits of each decoding."""
    masked = partial(recorded, quintet.sampling.masked.decode, file)
    quintet.sampling.masked.decode = quintet.families.soundstorm.decoding.decode = masked
    quintet.sampling.autoregressive.decode = partial(recorded, quintet.sampling.autoregressive.decode, file)
    run_all(commands, refuse_float64=False)


def recorded(decode: Any, file: Path, *args: Any, **kwargs: Any) -> Any:
    waits: list[str] = []
    result = device.recorded(decode, waits, *args, **kwargs)
    units = intervals(result) if isinstance(result, Decoded) else kwargs["settings"].steps
    with file.open("a") as lines:
        lines.write(json.dumps({"waits": waits, "units": units}) + "\n")
    return result


def intervals(decoded: Decoded) -> int:
    """The number of reads with which decoding without prompts learns that all rows have ended."""
    tokens = (decoded.lengths + decoded.ended).max().item()
    return math.ceil(tokens / GPU_READ_INTERVAL)
