"""The verbs that show what a run has learned: `eval` and `view`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer

from quintet.cli.shared import ANY_TEXT, ModelReference, open_model, print_line, print_next, with_keys
from quintet.errors import UsageError


def evaluate(
    run: ModelReference,
    overrides: Annotated[
        list[str] | None, typer.Argument(metavar="[KEY=VALUE]…", help="Keys of `eval.*` and `sample.*`.")
    ] = None,
    data: Annotated[str | None, typer.Option(help="Look at this folder instead of the run's validation items.")] = None,
    out: Annotated[Path | None, typer.Option(help="Where to write the figures; default eval.json in the run.")] = None,
) -> None:
    """Measure a model on its validation items: a table, and eval.json."""
    from quintet.evaluation import EvalSession
    from quintet.pipelines.base import Embedder, Generator

    pipeline = open_model(run)
    origin = pipeline.origin
    if origin.builtin and out is None:
        raise UsageError(f"{run} has no folder of its own; say where to write the figures with --out")
    session = EvalSession.open(with_keys(pipeline, overrides, ("eval", "sample")), data, live=True)
    metrics = session.metrics()
    # What was measured elsewhere is not what is known of the run.
    name = "eval.json" if data is None else f"eval-{Path(data).name or 'data'}.json"
    target = out or origin.folder / name
    _write_json(target, {"step": origin.step, **metrics})
    width = max(len(name) for name in metrics)
    for name, value in metrics.items():
        print_line(f"{name:<{width}}  {value:.4f}")
    which = "" if origin.step is None else f"step {origin.step}, "
    print_line(f"written to {target} ({which}{len(session.loader.dataset)} items)")
    text = ("--text", ANY_TEXT)
    if isinstance(pipeline, Embedder):
        print_next(("search", run, pipeline.config.data.path or "FOLDER", *text))
    else:
        prompted = isinstance(pipeline, Generator) and pipeline.prompted
        print_next(("sample", run, *(text if prompted else ()), "--out", "out/"))
    export = Path("hub") / pipeline.recipe
    if (origin.folder / "config.yaml").exists() and not export.exists():  # an export is one already
        print_next(("export", run, export))


def _write_json(path: Path, value: Any) -> None:
    from quintet.common.files import replace_text

    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        replace_text(path, json.dumps(value, indent=1) + "\n")
    except OSError as error:
        raise UsageError(f"cannot write {path}: {error.strerror}") from None


def view(
    folders: Annotated[
        list[Path] | None, typer.Argument(metavar="[FOLDER]…", help="A run, or folders that runs lie in; default runs.")
    ] = None,
    port: Annotated[int, typer.Option(min=0, max=65535, help="Where to listen; 0: any free port.")] = 0,
    host: Annotated[
        str | None, typer.Option(help="Listen beyond this machine, on this address; whoever looks needs the token.")
    ] = None,
    token: Annotated[
        str | None, typer.Option(help="The token to ask for; with --host one is made if not given.")
    ] = None,
    read_only: Annotated[
        bool, typer.Option("--read-only", help="Only look: without the box to try models in.")
    ] = False,
    browser: Annotated[bool, typer.Option(help="Open the page in the browser.")] = True,
    export: Annotated[
        Path | None, typer.Option(help="Write the page to a .html file or to a new folder instead, to share it.")
    ] = None,
) -> None:
    """Look at runs on a local page: curves, pictures, players, videos, meshes to turn; live while they train."""
    given = folders or [Path("runs")]
    if export is not None:
        from quintet.web.export import write_page

        for line in write_page(given, export):
            print_line(line)
        return
    try:
        from quintet.web.server import serve

        serve(given, print_line, host, port, token, read_only, browser)
    except ModuleNotFoundError as missing:
        if missing.name not in ("starlette", "uvicorn"):
            raise
        raise UsageError(
            f"the page needs {missing.name}, which is not installed: pip install starlette uvicorn"
        ) from None
