"""Every figure of docs/results.md that a command can measure again: the command, its duration, its record and its code.

`prove.py` runs these commands and compares the commits of the records with the commits of the code.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

FAMILIES = "src/quintet/families"
LOOP = ("src/quintet/training", "src/quintet/common")
MASKED = ("src/quintet/nn/maskgit.py", "src/quintet/nn/transformer.py", "src/quintet/sampling/masked.py")


@dataclass(frozen=True)
class Proof:
    """A command that measures figures."""

    name: str
    command: str
    minutes: float
    """Expected duration on two idle cores."""
    sources: tuple[str, ...]
    """Files and folders that the figures depend on."""
    record: str | None = None
    """File in benchmarks/results that the command writes, with the commit that it measured; None: the ledger of
    `prove.py` has it."""
    where: Mapping[str, str] = field(default_factory=dict)
    """The rows of a record with one JSON object per line."""


def _code(*families: str, more: tuple[str, ...] = ()) -> tuple[str, ...]:
    return (*(f"{FAMILIES}/{family}" for family in families), *more)


def _demo(medium: str, minutes: float, full_minutes: float, *families: str) -> list[Proof]:
    code = _code(*families, more=("src/quintet/demos/media.py",))
    lengths = (("quick", "", minutes), ("full", " --full", full_minutes))
    return [
        Proof(
            f"demo {medium}, {mode}",
            f"python benchmarks/speedrun.py {medium}{option} --seeds 0",
            expected,
            code,
            "speedrun.jsonl",
            {"medium": medium, "mode": mode},
        )
        for mode, option, expected in lengths
    ]


def _peer(script: str, modes: str, minutes: float, record: str, *families: str) -> Proof:
    code = _code(*families, more=(f"benchmarks/{script}.py",))
    return Proof(
        f"{script}: {modes or 'step'}", f"python benchmarks/{script}.py {modes}".rstrip(), minutes, code, record
    )


def _loss(script: str, record: str, *families: str) -> Proof:
    options = "--seconds 600 --rates 1e-3 --defaults-only"
    return Proof(
        f"{script}: loss at equal CPU time",
        f"python benchmarks/{script}.py loss {options}",
        15,
        _code(*families),
        record,
    )


PROOFS = (
    Proof("tests", "make test", 20, ("src", "tests")),
    Proof(
        "commands of the README and docs/media",
        "pytest -q tests/integration/test_docs.py",
        3,
        ("README.md", "docs/media"),
    ),
    Proof("waits, graphs and recompilations", "make compile-budget", 5, _code(more=LOOP)),
    Proof("faults, shared code", "make faults RECIPE=any", 20, LOOP, "faults.jsonl", {"recipe": "any"}),
    Proof(
        "faults, vqgan", "make faults RECIPE=vqgan", 30, _code("vqgan", more=LOOP), "faults.jsonl", {"recipe": "vqgan"}
    ),
    Proof("many processes and FSDP", "make scale", 40, LOOP),
    Proof("an hour of training", "make soak", 62, LOOP, "soak.json"),
    Proof("an hour of damaged files", "make fuzz MINUTES=60", 61, ("src/quintet/media", "src/quintet/data")),
    *_demo("image", 9, 25, "vqgan", "muse"),
    *_demo("video", 15, 45, "cvivit", "phenaki"),
    *_demo("audio", 12, 60, "mulan", "audio_codec", "soundstorm"),
    *_demo("mesh", 8, 25, "mesh_transformer"),
    Proof("overhead of the loop", "make bench-overhead", 4, LOOP),
    Proof("cost of saves", "make bench-saving", 12, ("src/quintet/training/saver.py", "src/quintet/common/weights")),
    Proof("MFU of every recipe", "make bench-mfu", 8, (FAMILIES, "src/quintet/nn"), "mfu.json"),
    Proof("quintet plan", "make bench-plan", 3, ("src/quintet/training/planning",), "plan.json"),
    Proof("run page", "make bench-view", 4, ("src/quintet/web",), "view.json"),
    _peer("vqgan", "", 6, "vqgan-fp32.json", "vqgan"),
    _peer("muse", "step", 5, "muse-step-fp32.json", "muse"),
    _peer("muse", "sample", 5, "muse-sample-fp32.json", "muse"),
    _peer("mesh", "step", 5, "mesh-autoencoder-fp32.json", "mesh_autoencoder"),
    _peer("mesh", "transformer", 5, "mesh-transformer-fp32.json", "mesh_transformer"),
    _peer("mulan", "step", 6, "mulan-step-fp32.json", "mulan"),
    _peer("soundstorm", "step", 6, "soundstorm-step-fp32.json", "soundstorm"),
    _peer("soundstorm", "generate", 6, "soundstorm-generate-fp32.json", "soundstorm"),
    _peer("cvivit", "", 6, "cvivit-fp32.json", "cvivit"),
    _peer("phenaki", "step", 6, "phenaki-step-fp32.json", "phenaki"),
    _peer("phenaki", "sample", 6, "phenaki-sample-fp32.json", "phenaki"),
    _loss("muse", "muse-loss.json", "muse"),
    _loss("phenaki", "phenaki-loss.json", "phenaki"),
    _loss("soundstorm", "soundstorm-loss.json", "soundstorm"),
    _loss("mulan", "mulan-loss.json", "mulan"),
    _loss("mesh", "mesh-loss.json", "mesh_transformer"),
)
