"""The commands that show the results of a run: `eval` and `view`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer

from quintet.cli.shared import ANY_TEXT, ModelReference, print_line, print_next, with_keys
from quintet.errors import UsageError


def evaluate(
    run: ModelReference,
    overrides: Annotated[
        list[str] | None, typer.Argument(metavar="[KEY=VALUE]…", help="Configuration keys of `eval.*` and `sample.*`.")
    ] = None,
    data: Annotated[
        str | None, typer.Option(help="Use the items of this folder instead of the validation items.")
    ] = None,
    out: Annotated[
        Path | None, typer.Option(help="JSON file for the metrics; default: eval.json in the run folder.")
    ] = None,
) -> None:
    """Compute the metrics of a model on its validation items; prints a table and writes eval.json."""
    from quintet.common.weights.starters import ABOUT as STARTER_ABOUT
    from quintet.evaluation import EvalSession, open_with_live
    from quintet.pipelines.base import Embedder, Generator

    pipeline, live = open_with_live(run)
    origin = pipeline.origin
    assert origin is not None
    # Another file in the folder of a starter model would be taken for damage.
    is_starter = (origin.folder / f"{STARTER_ABOUT}.json").is_file()
    if (origin.builtin or origin.pinned or is_starter) and out is None:
        raise UsageError(f"{run} has no run folder: name a file for the metrics with --out")
    session = EvalSession.open(with_keys(pipeline, overrides, ("eval", "sample")), data, live)
    metrics = session.metrics()
    if not session.engine.is_main:
        return
    # Metrics on other data do not replace the metrics of the run.
    name = "eval.json" if data is None else f"eval-{Path(data).name or 'data'}.json"
    target = out or origin.folder / name
    _write_json(target, {"step": origin.step, **metrics})
    width = max(len(name) for name in metrics)
    for name, value in metrics.items():
        print_line(f"{name:<{width}}  {value:.4f}")
    step = "" if origin.step is None else f"step {origin.step}, "
    print_line(f"written to {target} ({step}{len(session.loader.dataset)} items)")
    text = ("--text", ANY_TEXT)
    if isinstance(pipeline, Embedder):
        print_next(("search", run, pipeline.config.data.path or "FOLDER", *text))
    else:
        prompted = isinstance(pipeline, Generator) and pipeline.prompted
        print_next(("sample", run, *(text if prompted else ()), "--out", "out/"))
    export = Path("hub") / pipeline.recipe
    if (origin.folder / "config.yaml").exists() and not export.exists():  # an exported folder needs no export
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
        list[Path] | None,
        typer.Argument(metavar="[FOLDER]…", help="Run folders, or folders that contain runs; default: runs."),
    ] = None,
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port to listen on; 0: any free port.")] = 0,
    host: Annotated[
        str | None, typer.Option(help="Address to listen on for other machines; their users need the token.")
    ] = None,
    token: Annotated[str | None, typer.Option(help="Access token; with --host, a random one is the default.")] = None,
    read_only: Annotated[
        bool, typer.Option("--read-only", help="Disable generation of new samples on the page.")
    ] = False,
    browser: Annotated[bool, typer.Option(help="Open the page in a browser.")] = True,
    export: Annotated[
        Path | None, typer.Option(help="Write the page to a .html file or to a new folder instead of serving it.")
    ] = None,
) -> None:
    """Show runs on a local web page: curves, images, videos, audio and 3D meshes; updates during training."""
    paths = folders or [Path("runs")]
    if export is not None:
        from quintet.web.export import write_page

        for line in write_page(paths, export):
            print_line(line)
        return
    try:
        from quintet.web.server import serve

        serve(paths, print_line, host, port, token, read_only, browser)
    except ModuleNotFoundError as missing:
        if missing.name not in ("starlette", "uvicorn"):
            raise
        raise UsageError(
            f"`quintet view` needs {missing.name}, which is not installed: pip install starlette uvicorn"
        ) from None
