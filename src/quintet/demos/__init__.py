"""`quintet demo`: the whole way on embedded data."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from quintet.demos.demo import Demo, Form, Row, lines
from quintet.demos.media import DEMOS
from quintet.demos.script import Script, Show


def show(medium: str, out: Path, form: Form, script: Script) -> None:
    """One medium, with its summary."""
    rows = Show(DEMOS[medium], out, form, script).run()
    _say_summary(rows, form, script)
    _say_what_is_there(DEMOS[medium], out, script)


def show_all(out: Path, form: Form, script: Script) -> None:
    """All media, one after the other in folders of their own, with one summary. They share given minutes evenly."""
    each = form if form.minutes is None else replace(form, minutes=form.minutes / len(DEMOS))
    rows = []
    for medium, demo in DEMOS.items():
        script.say(f"\n=== {medium} ===")
        found = Show(demo, out / medium, each, script).run()
        rows += [replace(row, stage=f"{medium}: {row.stage}") if row.stage else row for row in found]
    _say_summary(rows, form, script)
    for medium, demo in DEMOS.items():
        _say_what_is_there(demo, out / medium, script)


def _say_summary(rows: list[Row], form: Form, script: Script) -> None:
    script.say("")
    for line in lines(rows):
        script.say(line)
    missed = sum(row.verdict == "not reached" for row in rows)
    judged = sum(bool(row.verdict) for row in rows)
    about = "" if form.full else "; bars are those of --full, which trains longer"
    script.say(f"\n{judged - missed} of {judged} bars reached{about}")


def _say_what_is_there(demo: Demo, out: Path, script: Script) -> None:
    script.say(f"look at: {demo.look.replace('OUT', str(out))}, {out}/page.html")
    for command in (f"quintet view {out}", *demo.then):
        script.say(f"next: {command.replace('OUT', str(out))}")
