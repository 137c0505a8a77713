"""Counts of unclear wording in the source, the pages and the README, and of long Markdown lines.

    python benchmarks/wording.py [REVISION …]

prints a Markdown table with one column for each revision and one for the working tree. A sentence that opens with
"What is" or "What was" makes the reader wait for its noun; the other phrases are private idioms for terms of the field.
"""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

ROOT = Path(__file__).parents[1]
PHRASES = ("is told", "told by", "stands on", "passed over", "anew", "so many", "every which")
OPENING = re.compile(r"(?:^|[.:;!?]\s+|[\"#*|]\s*)What (?:is|was)\b", re.MULTILINE)
OWNS = re.compile(r'^"""Owns\b')
LONGEST_LINE = 120
PLACES = ("src/", "docs/", "README.md")


def texts_of(revision: str | None) -> Iterator[tuple[str, str]]:
    """Path and text of every Python, Markdown and JavaScript file that is counted."""
    listing = ["git", "ls-files"] if revision is None else ["git", "ls-tree", "-r", "--name-only", revision]
    for path in subprocess.run(listing, cwd=ROOT, check=True, capture_output=True, text=True).stdout.splitlines():
        if not path.endswith((".py", ".md", ".js", ".html")):
            continue
        if revision is None:
            yield path, (ROOT / path).read_text(encoding="utf-8")
        else:
            shown = subprocess.run(["git", "show", f"{revision}:{path}"], cwd=ROOT, check=True, capture_output=True)
            yield path, shown.stdout.decode("utf-8")


def counts_of(revision: str | None) -> Mapping[str, int]:
    counts = dict.fromkeys((*PHRASES, "sentences opening with What is/was", "module docstrings opening with Owns"), 0)
    counts[f"Markdown lines over {LONGEST_LINE} characters outside tables"] = 0
    counts["lines of README.md"] = 0
    for path, text in texts_of(revision):
        if path.startswith(PLACES):
            for phrase in PHRASES:
                counts[phrase] += len(re.findall(rf"\b{phrase}\b", text, re.IGNORECASE))
            counts["sentences opening with What is/was"] += len(OPENING.findall(text))
            counts["module docstrings opening with Owns"] += bool(OWNS.match(text))
        if path.endswith(".md"):
            counts[f"Markdown lines over {LONGEST_LINE} characters outside tables"] += long_lines(text)
        if path == "README.md":
            counts["lines of README.md"] = len(text.splitlines())
    return counts


def long_lines(text: str) -> int:
    return sum(len(line) > LONGEST_LINE and not line.lstrip().startswith("|") for line in text.splitlines())


def main() -> None:
    revisions = [*sys.argv[1:], None]
    columns = [counts_of(revision) for revision in revisions]
    print("| wording | " + " | ".join(revision or "working tree" for revision in revisions) + " |")
    print("|---" * (len(revisions) + 1) + "|")
    for name in columns[0]:
        print(f"| {name} | " + " | ".join(str(column[name]) for column in columns) + " |")


if __name__ == "__main__":
    main()
