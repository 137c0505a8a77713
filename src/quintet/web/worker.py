"""Owns the process that makes what was asked for in the try-it box: a line of JSON in, files and a line of JSON out.

The only part of the page that needs torch. It keeps the last model, so that a second wish is quick.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

from quintet.errors import QuintetError

LONGEST_PROBLEM = 1_000
"""Characters."""


class Worker:
    def __init__(self) -> None:
        self._known: tuple[str, str] = ("", "")
        self._pipeline: Any = None

    def make(self, wish: dict[str, Any]) -> None:
        from quintet.pipelines.base import as_generator

        pipeline = as_generator(self._open(wish["run"]))
        pipeline = pipeline.with_keys(_keys(pipeline.config.sample, wish))
        options = pipeline.config.OPTIONS(num=wish["num"], seed=wish["seed"])
        artifacts = pipeline.files([wish["text"]], options)
        out = Path(wish["out"])
        out.mkdir()
        with (out / "samples.jsonl").open("w", encoding="utf-8") as lines:
            for artifact in artifacts:
                artifact.write(out / artifact.file)
                lines.write(json.dumps({"file": artifact.file, **artifact.metadata}, ensure_ascii=False) + "\n")

    def _open(self, run: str) -> Any:
        from quintet.pipelines.base import Pipeline

        latest = Path(run) / "checkpoints" / "latest"
        which = (run, latest.read_text(encoding="utf-8", errors="replace") if latest.is_file() else "")
        if which != self._known:
            self._known, self._pipeline = ("", ""), None  # never two of them in memory
            self._pipeline = Pipeline.from_pretrained(Path(run))
            self._known = which
        return self._pipeline


def _keys(settings: Any, wish: dict[str, Any]) -> dict[str, Any]:
    """The wish as keys of the run. Where each level has its number of steps, the wish is for the first."""
    keys = {f"sample.{name}": wish[name] for name in ("guidance", "steps") if wish[name] is not None}
    steps = getattr(settings, "steps", None)
    if isinstance(steps, tuple) and "sample.steps" in keys:
        keys["sample.steps"] = [keys["sample.steps"], *steps[1:]]
    return {key: value for key, value in keys.items() if hasattr(settings, key.removeprefix("sample."))}


def main() -> None:
    # Answers have a stream of their own: whatever prints, prints to the console.
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    worker = Worker()
    for line in sys.stdin:
        try:
            worker.make(json.loads(line))
            problem = ""
        except QuintetError as error:
            problem = str(error)
        except OSError as error:
            problem = f"{error.filename}: {error.strerror}"
        except Exception as error:  # whatever a model may think of; the next wish may be one that it likes
            problem = f"{type(error).__name__}: {error}"
        # Cut, because the server reads lines of a limited length.
        answers.write(json.dumps({"error": problem[:LONGEST_PROBLEM]}) + "\n")
        answers.flush()


if __name__ == "__main__":
    main()
