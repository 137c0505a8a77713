"""Interleaves the steps of several workers and compares their costs.

Each worker has one thread and is measured in process CPU seconds, because wall time on a shared machine is noisy. The
mean over the rounds is compared.
"""

from __future__ import annotations

import json
import os
import platform
import statistics
import subprocess
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent


def vision_peer() -> str:
    """Python of the environment of the public image packages, which is created if missing."""
    return _peer("vision")


def mesh_peer() -> str:
    """Python of the environment of the public mesh package."""
    return _peer("mesh")


def audio_peer() -> str:
    """Python of the environment of the public audio packages."""
    return _peer("audio")


def _peer(kind: str) -> str:
    folder = HERE.parent / ".peers" / kind
    subprocess.run(["bash", str(HERE / "peers" / f"install_{kind}.sh"), str(folder)], check=True)
    return str(folder / "bin" / "python")


@dataclass
class Contender:
    """One worker: its command, and its results so far."""

    name: str
    python: str
    script: str
    arguments: tuple[str, ...]
    about: dict[str, Any] = field(default_factory=dict)
    costs: list[dict[str, float]] = field(default_factory=list)
    process: subprocess.Popen[str] | None = None

    def start(self) -> None:
        path = os.pathsep.join([str(HERE), *filter(None, [os.environ.get("PYTHONPATH")])])
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", "PYTHONPATH": path}
        command = [self.python, str(HERE / self.script), *self.arguments]
        self.process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment
        )
        self.about = self._answer()

    def step(self) -> dict[str, float]:
        assert self.process is not None
        assert self.process.stdin is not None
        self.process.stdin.write("step\n")
        self.process.stdin.flush()
        return self._answer()

    def stop(self) -> None:
        assert self.process is not None
        self.process.communicate()

    def _answer(self) -> dict[str, Any]:
        assert self.process is not None
        assert self.process.stdout is not None
        for line in self.process.stdout:
            if line.startswith("@"):
                return dict(json.loads(line[1:]))
        raise SystemExit(f"{self.name} ended without an answer")


def interleave(contenders: list[Contender], warmup: int, rounds: int, out: Path | None = None) -> None:
    """Let every contender take one step per round; with `out`, write the results after each round."""
    for contender in contenders:
        contender.start()
    for number in range(warmup + rounds):
        for contender in contenders:
            cost = contender.step()
            if number >= warmup:
                contender.costs.append(cost)
        if out is not None:
            record(contenders, out)
    for contender in contenders:
        contender.stop()


def mean_cpu(contender: Contender) -> float:
    """The mean, not the median, because a cost of every fourth step must count."""
    return statistics.fmean(cost["cpu"] for cost in contender.costs)


def table(contenders: list[Contender], against: dict[str, str], unit: str = "step") -> str:
    """A Markdown table; `against` maps a contender to the one it is compared with, `unit` names a step."""
    by_name = {contender.name: contender for contender in contenders}
    head = f"| contender | parameters | CPU s per {unit} (min-max) | ratio to peer | peak MB |"
    lines = [head, "|---|---|---|---|---|"]
    for contender in contenders:
        costs = [cost["cpu"] for cost in contender.costs]
        other = against.get(contender.name)
        ratio = f"{mean_cpu(contender) / mean_cpu(by_name[other]):.2f} of {other}" if other else ""
        parameters = ", ".join(f"{name} {count / 1e6:.2f} M" for name, count in contender.about["parameters"].items())
        lines.append(
            f"| {contender.name} | {parameters} | {mean_cpu(contender):.3f} ({min(costs):.3f}-{max(costs):.3f}) | "
            f"{ratio} | {max(cost['peak_megabytes'] for cost in contender.costs):.0f} |"
        )
    return "\n".join(lines)


def record(contenders: list[Contender], path: Path) -> None:
    """Write all measurements to a file."""
    write_facts(path, {"contenders": {c.name: {"about": c.about, "costs": c.costs} for c in contenders}})


def write_facts(path: Path, measured: dict[str, Any]) -> None:
    """Write measurements with the date, commit and machine."""
    path.parent.mkdir(parents=True, exist_ok=True)
    facts = {
        "date": time.strftime("%Y-%m-%d"),
        "commit": git_commit(),
        "cpu": _cpu(),
        "load_average": os.getloadavg(),
        **measured,
    }
    path.write_text(json.dumps(facts, indent=1) + "\n", encoding="utf-8")


def git_commit() -> str:
    done = subprocess.run(["git", "rev-parse", "HEAD"], cwd=HERE, capture_output=True, text=True, check=False)
    return done.stdout.strip()


def _cpu() -> dict[str, Any]:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return {"name": platform.processor()}
    facts = dict(line.split(":", 1) for line in lines if ":" in line)
    values = {key.strip(): value.strip() for key, value in facts.items()}
    flags = [flag for flag in values.get("flags", "").split() if flag.startswith(("avx", "amx", "fma"))]
    return {"name": values.get("model name"), "cores": os.cpu_count(), "flags": flags}
