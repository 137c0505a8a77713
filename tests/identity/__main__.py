"""`python -m identity --base REV`: compares the working tree with a revision, byte for byte.

Exit codes: 0 identical, 1 different, 2 wrong usage.
"""

from __future__ import annotations

import argparse
import fcntl
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import IO

from identity.cases import RECIPES, chosen_cases
from identity.driver import Comparison, DifferenceError
from identity.sides import FORKS, PRELOADED, Processes, Side


class UsageError(Exception):
    """Something that the caller has to change, in one sentence."""


def main(words: Sequence[str] | None = None, root: Path | None = None) -> int:
    options = parser().parse_args(words)
    root = root or Path.cwd()
    try:
        recipes = known_recipes(options.recipes)
        if options.jobs < 1:
            raise UsageError(f"--jobs {options.jobs}: give at least 1")
        commit = commit_of(root, options.base)
        folder = (options.folder or root / ".identity").resolve()
        folder.mkdir(parents=True, exist_ok=True)
        with (folder / "lock").open("w") as lock:
            claim(lock, folder)
            base = Side(commit[:12], checked_out(root, folder, commit) / "src", folder / "base" / commit[:12])
            work = Side("working tree", root / "src", folder / "work")
            return compare(base, work, recipes, options.jobs, described(root))
    except UsageError as error:
        sys.stderr.write(f"error: {error}\n")
        return 2


def parser() -> argparse.ArgumentParser:
    made = argparse.ArgumentParser("identity", description="Compare the working tree with a revision, byte for byte.")
    made.add_argument("--base", required=True, metavar="REV", help="the revision to compare with")
    made.add_argument("--recipes", default="", help="names of recipes; all if none is given")
    made.add_argument("--jobs", type=int, default=2, help="cases run at once, one thread each (default 2)")
    made.add_argument("--folder", type=Path, help="work trees and results (default .identity)")
    return made


def known_recipes(words: str) -> list[str]:
    names = words.replace(",", " ").split()
    for name in names:
        if name not in RECIPES:
            raise UsageError(f"recipe '{name}' has no case; choose from {', '.join(RECIPES)}")
    return names


def claim(lock: IO[str], folder: Path) -> None:
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        raise UsageError(f"another comparison is running in {folder}; wait for it, or give --folder") from error


def compare(base: Side, work: Side, recipes: list[str], jobs: int, working_tree: str) -> int:
    FORKS.set_forkserver_preload(PRELOADED)
    began, processes = time.monotonic(), Processes()
    comparison = Comparison(base, work, processes, say)
    try:
        totals = comparison.compare_all(chosen_cases(recipes), jobs, processes.stop)
    except DifferenceError as difference:
        say(f"DIFFERENT: {difference}")
        say(f"to look at: {base.folder} and {work.folder}")
        return 1
    except KeyboardInterrupt:
        return 130
    say(
        f"identical: {totals.cases} cases, {totals.numbers} losses and metrics, {totals.tensors} tensors, "
        f"{totals.files} files; base {base.name}, working tree {working_tree}; {time.monotonic() - began:.0f} s"
    )
    return 0


def say(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


# --- revisions ------------------------------------------------------------------------------------------------


def git(root: Path, *words: str) -> str:
    return subprocess.run(["git", "-C", str(root), *words], check=True, capture_output=True, text=True).stdout.strip()


def commit_of(root: Path, revision: str) -> str:
    try:
        return git(root, "rev-parse", "--verify", "--quiet", "--end-of-options", f"{revision}^{{commit}}")
    except subprocess.CalledProcessError as error:
        raise UsageError(f"'{revision}' is no revision of this repository; give BASE=REV") from error


def checked_out(root: Path, folder: Path, commit: str) -> Path:
    """A work tree of the commit, made if there is none; one that was edited is refused."""
    tree = folder / "trees" / commit[:12]
    if not (tree / ".git").exists():
        git(root, "worktree", "prune")
        git(root, "worktree", "add", "--detach", str(tree), commit)
    if git(tree, "rev-parse", "HEAD") != commit or git(tree, "status", "--porcelain"):
        raise UsageError(f"{tree} is no clean checkout of {commit[:12]}; run `git worktree remove --force {tree}`")
    return tree


def described(root: Path) -> str:
    changed = " with uncommitted changes" if git(root, "status", "--porcelain") else ""
    return git(root, "rev-parse", "--short=12", "HEAD") + changed


if __name__ == "__main__":
    sys.exit(main())
