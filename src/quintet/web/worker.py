"""Worker process of the playground: reads a job as one line of JSON, writes files and answers with one line of JSON.

The only part of the page that needs torch. It keeps the last model loaded, so that the next job is fast.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

from quintet.errors import QuintetError

MAX_ERROR_LENGTH = 1_000


class Worker:
    def __init__(self) -> None:
        self._loaded: tuple[str, str] = ("", "")
        self._pipeline: Any = None

    def generate(self, job: dict[str, Any]) -> None:
        from quintet.pipelines.base import as_generator

        pipeline = as_generator(self._open(job["run"]))
        pipeline = pipeline.with_keys(_keys(pipeline.config.sample, job))
        options = pipeline.config.OPTIONS(num=job["num"], seed=job["seed"])
        artifacts = pipeline.files([job["text"]], options)
        out = Path(job["out"])
        out.mkdir()
        with (out / "samples.jsonl").open("w", encoding="utf-8") as lines:
            for artifact in artifacts:
                artifact.write(out / artifact.file)
                lines.write(json.dumps({"file": artifact.file, **artifact.metadata}, ensure_ascii=False) + "\n")

    def _open(self, run: str) -> Any:
        from quintet.pipelines.base import Pipeline

        latest = Path(run) / "checkpoints" / "latest"
        version = (run, latest.read_text(encoding="utf-8", errors="replace") if latest.is_file() else "")
        if version != self._loaded:
            self._loaded, self._pipeline = ("", ""), None  # never two models in memory
            self._pipeline = Pipeline.from_pretrained(Path(run))
            self._loaded = version
        return self._pipeline


def _keys(settings: Any, job: dict[str, Any]) -> dict[str, Any]:
    """The job as configuration keys. If each quantizer has its own number of steps, the job sets that of the first."""
    keys = {f"sample.{name}": job[name] for name in ("guidance_scale", "steps") if job[name] is not None}
    steps = getattr(settings, "steps", None)
    if isinstance(steps, tuple) and "sample.steps" in keys:
        keys["sample.steps"] = [keys["sample.steps"], *steps[1:]]
    return {key: value for key, value in keys.items() if hasattr(settings, key.removeprefix("sample."))}


def main() -> None:
    # Answers use the original stdout; all other output goes to stderr.
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    worker = Worker()
    for line in sys.stdin:
        try:
            worker.generate(json.loads(line))
            problem = ""
        except QuintetError as error:
            problem = str(error)
        except OSError as error:
            problem = f"{error.filename}: {error.strerror}"
        except Exception as error:  # any error of a model; the next job may succeed
            problem = f"{type(error).__name__}: {error}"
        # Truncated, because the server reads lines of limited length.
        answers.write(json.dumps({"error": problem[:MAX_ERROR_LENGTH]}) + "\n")
        answers.flush()


if __name__ == "__main__":
    main()
