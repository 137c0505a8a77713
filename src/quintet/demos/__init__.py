"""`quintet demo`: a complete workflow on synthetic data."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from quintet.demos.demo import Demo, DemoMode, Row, lines
from quintet.demos.media import DEMOS
from quintet.demos.script import DemoRun, Script

NO_TARGETS = "no targets: they are set for the short demo and for --full, and --minutes trains less than --full"


def run_demo(medium: str, out: Path, mode: DemoMode, script: Script) -> None:
    """Run the demo of one medium and print its summary."""
    rows = DemoRun(DEMOS[medium], out, mode, script).run()
    _say_summary(rows, script)
    _say_outputs(DEMOS[medium], out, script)


def run_all(out: Path, mode: DemoMode, script: Script) -> None:
    """Run the demos of all media in separate folders and print one summary; they share `minutes` equally."""
    each = mode if mode.minutes is None else replace(mode, minutes=mode.minutes / len(DEMOS))
    rows = []
    for medium, demo in DEMOS.items():
        script.say(f"\n=== {medium} ===")
        found = DemoRun(demo, out / medium, each, script).run()
        rows += [replace(row, stage=f"{medium}: {row.stage}") if row.stage else row for row in found]
    _say_summary(rows, script)
    for medium, demo in DEMOS.items():
        _say_outputs(demo, out / medium, script)


def _say_summary(rows: list[Row], script: Script) -> None:
    script.say("")
    for line in lines(rows):
        script.say(line)
    missed = sum(row.verdict == "not reached" for row in rows)
    total = sum(bool(row.verdict) for row in rows)
    script.say(f"\n{total - missed} of {total} targets reached" if total else f"\n{NO_TARGETS}")


def _say_outputs(demo: Demo, out: Path, script: Script) -> None:
    script.say(f"outputs: {demo.outputs.replace('OUT', str(out))}, {out}/page.html")
    for command in (f"quintet view {out}", *demo.next_commands):
        script.say(f"next: {command.replace('OUT', str(out))}")
