"""`quintet demo`: the whole way on embedded data, one file a medium."""

from __future__ import annotations

from dataclasses import replace
from importlib import import_module
from pathlib import Path

from quintet.demos.demo import Demo, Form
from quintet.demos.script import Script, Show
from quintet.demos.table import Row, lines

MEDIA = ("image", "video", "audio", "mesh")


def find(medium: str) -> Demo:
    demo: Demo = import_module(f"quintet.demos.{medium}").DEMO
    return demo


def show(medium: str, out: Path, form: Form, script: Script) -> None:
    """One medium, with its summary."""
    rows = _run(find(medium), out, form, script)
    _say_summary(rows, form, script)
    _say_what_is_there(find(medium), out, script)


def show_all(out: Path, form: Form, script: Script) -> None:
    """All media, one after the other in folders of their own, with one summary. They share given minutes evenly."""
    each = form if form.minutes is None else replace(form, minutes=form.minutes / len(MEDIA))
    rows = []
    for medium in MEDIA:
        script.say(f"\n=== {medium} ===")
        found = _run(find(medium), out / medium, each, script)
        rows += [replace(row, stage=f"{medium}: {row.stage}") if row.stage else row for row in found]
    _say_summary(rows, form, script)
    for medium in MEDIA:
        _say_what_is_there(find(medium), out / medium, script)


def _run(demo: Demo, out: Path, form: Form, script: Script) -> list[Row]:
    return Show(demo, out, form, script).run()


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
