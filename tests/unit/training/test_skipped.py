"""Messages about unreadable items: the first few by name, then counts."""

from __future__ import annotations

from quintet.training.skipped import NAMED, SkippedMessages


def faces(first: int, last: int) -> dict[str, str]:
    return {f"{number:04d}.obj": f"{number + 900} faces, more than 800" for number in range(first, last)}


def test_the_first_items_of_a_reason_are_named_and_the_others_counted() -> None:
    lines = [*SkippedMessages().lines({**faces(0, 514), "a.obj": "empty file"})]
    assert len([line for line in lines if line.startswith("unreadable item replaced: 0")]) == NAMED
    assert "unreadable item replaced: a.obj (empty file)" in lines
    assert lines[-1].startswith("unreadable items replaced for such a reason so far: 514 (")
    assert len(lines) == NAMED + 2


def test_items_that_come_one_by_one_are_counted_now_and_then() -> None:
    messages = SkippedMessages()
    lines = [line for number in range(514) for line in messages.lines(faces(number, number + 1))]
    assert [line.split(": ")[1].split()[0] for line in lines[NAMED:]] == ["4", "10", "100"]
