"""Lists the commands behind the results, runs those that fit in a given time, and finds figures older than their code.

`make prove` (or `prove.py [--minutes 60] [--only NAME…]`) prints one row per proof of `proofs.py`: its state, its
expected minutes and its command. A record is as old as its commit: the row says how many commits have changed the files
that the figures depend on since then. Then it runs proofs without a current record, the shortest first, as long as they
fit in the time; `--minutes 0` only lists and checks. The exit code is 1 if a command failed, or a record is missing or
older than its code.

Each run adds a line to `benchmarks/results/proofs.jsonl`; what it printed is in `runs/prove`.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from proofs import PROOFS, Proof
from side_by_side import HERE, git_commit

ROOT = HERE.parent
LEDGER = "proofs.jsonl"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=60, help="time to run; 0 only lists and checks")
    parser.add_argument("--only", nargs="+", metavar="NAME", choices=[proof.name for proof in PROOFS])
    arguments = parser.parse_args()
    proofs = [proof for proof in PROOFS if arguments.only is None or proof.name in arguments.only]
    print(table(proofs, ROOT))
    failed = []
    for proof in fitting(proofs, arguments.minutes, ROOT):
        print(f"\n{proof.name}: {proof.command}", flush=True)
        if run(proof):
            failed.append(proof.name)
    if arguments.minutes:
        print(f"\n{table(proofs, ROOT)}")
    stale = [proof.name for proof in proofs if state(proof, ROOT) != "current"]
    print(f"\n{len(proofs) - len(stale)} of {len(proofs)} proofs are current")
    if failed:
        print(f"failed: {', '.join(failed)}")
    return 1 if failed or stale else 0


def table(proofs: Sequence[Proof], root: Path) -> str:
    rows = [f"| {proof.name} | {state(proof, root)} | {proof.minutes:g} | `{proof.command}` |" for proof in proofs]
    return "\n".join(["| proof | record | minutes | command |", "|---|---|---|---|", *rows])


def fitting(proofs: Sequence[Proof], minutes: float, root: Path) -> list[Proof]:
    """The proofs without a current record that fit in the time together, the shortest first."""
    chosen = []
    for proof in sorted(proofs, key=lambda each: each.minutes):
        if proof.minutes <= minutes and state(proof, root) != "current":
            chosen.append(proof)
            minutes -= proof.minutes
    return chosen


def state(proof: Proof, root: Path) -> str:
    """Whether the record of a proof is current, missing, or older than the files that it depends on."""
    commit = recorded_commit(proof, root / "benchmarks" / "results")
    if commit is None:
        return "missing"
    count = git(root, "rev-list", "--count", f"{commit}..HEAD", "--", *proof.sources)
    if count is None:
        return f"of an unknown commit, {commit[:8]}"
    if count == "0":
        return "current"
    return f"older than {count} commit{'' if count == '1' else 's'} of its code"


def recorded_commit(proof: Proof, results: Path) -> str | None:
    """The commit that the newest record of a proof has measured; None if there is none."""
    ran = [row for row in rows_of(results / LEDGER) if row["proof"] == proof.name and row["exit_code"] == 0]
    if proof.record is None:
        found = ran
    elif proof.record.endswith(".jsonl"):
        rows = rows_of(results / proof.record)
        found = [row for row in rows if all(row.get(key) == value for key, value in proof.where.items())]
    else:
        path = results / proof.record
        found = [json.loads(path.read_text(encoding="utf-8"))] if path.exists() else []
    return (found[-1].get("commit") or None) if found else None


def rows_of(path: Path) -> list[dict[str, Any]]:
    if not path.exists():
        return []
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def git(root: Path, *words: str) -> str | None:
    done = subprocess.run(["git", "-C", str(root), *words], capture_output=True, text=True, check=False)
    return done.stdout.strip() if done.returncode == 0 else None


def run(proof: Proof) -> int:
    """Run the command of a proof and add a line to the ledger; returns its exit code."""
    began, commit = time.time(), git_commit()
    log = ROOT / "runs" / "prove" / f"{proof.name.replace(' ', '-').replace(':', '').replace(',', '')}.log"
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("w", encoding="utf-8") as file:
        code = subprocess.run(
            ["bash", "-c", proof.command], cwd=ROOT, env=environment(), stdout=file, stderr=file, check=False
        ).returncode
    minutes = (time.time() - began) / 60
    row = {"proof": proof.name, "date": time.strftime("%Y-%m-%d"), "commit": commit, "exit_code": code}
    with (HERE / "results" / LEDGER).open("a", encoding="utf-8") as ledger:
        ledger.write(json.dumps({**row, "minutes": round(minutes, 1), "cores": os.cpu_count()}) + "\n")
    print(
        f"{'done' if code == 0 else f'failed with exit code {code}'} after {minutes:.1f} min; output: {log}", flush=True
    )
    return code


def environment() -> Mapping[str, str]:
    """That of this process, with its Python and the commands beside it first."""
    return {**os.environ, "PATH": os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")])}


if __name__ == "__main__":
    sys.exit(main())
