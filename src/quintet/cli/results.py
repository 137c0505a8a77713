"""Owns the verbs that show what a run has learned: `eval`, `sample` and `view`."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from quintet import config as configs
from quintet.cli.shared import ANY_TEXT, ModelReference, open_model, print_line, print_next
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
    from quintet import runs

    trained = open_model(run)
    if trained.ready and out is None:
        raise UsageError(f"{run} has no folder of its own; say where to write the figures with --out")
    trained.recipe.config = _with_keys(trained.recipe.config, overrides, ("eval", "sample"))
    looker = runs.EvalSession.open(trained, data)
    figures = looker.figures()
    # What was measured elsewhere is not what is known of the run.
    name = "eval.json" if data is None else f"eval-{Path(data).name or 'data'}.json"
    target = out or looker.trained.folder / name
    _write_json(target, {"step": looker.trained.step, **figures})
    width = max(len(name) for name in figures)
    for name, value in figures.items():
        print_line(f"{name:<{width}}  {value:.4f}")
    which = "" if looker.trained.step is None else f"step {looker.trained.step}, "
    print_line(f"written to {target} ({which}{len(looker.loader.source)} items)")
    recipe = looker.trained.recipe
    told = ("--text", ANY_TEXT)
    if recipe.embeds:
        print_next(("search", run, recipe.config.data.path or "FOLDER", *told))
    else:
        print_next(("sample", run, *(told if recipe.prompted else ()), "--out", "out/"))
    target = Path("hub") / recipe.name
    if (looker.trained.folder / "config.yaml").exists() and not target.exists():  # an export is one already
        print_next(("export", run, target))


def _write_json(path: Path, value: Any) -> None:
    from quintet.common.files import replace_text

    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        replace_text(path, json.dumps(value, indent=1) + "\n")
    except OSError as error:
        raise UsageError(f"cannot write {path}: {error.strerror}") from None


def sample(
    run: ModelReference,
    overrides: Annotated[
        list[str] | None, typer.Argument(metavar="[KEY=VALUE]…", help="Keys of `sample.*`, such as sample.guidance=5.")
    ] = None,
    text: Annotated[list[str] | None, typer.Option(help="What a generator should make; may be given again.")] = None,
    negative: Annotated[str | None, typer.Option(help="What it should not look like.")] = None,
    seed: Annotated[int, typer.Option(min=0, help="The same seed gives the same result.")] = 0,
    num: Annotated[int, typer.Option(min=1, help="How many items, of each text.")] = 16,
    image: Annotated[Path | None, typer.Option(help="A picture to draw on; needs --mask.")] = None,
    mask: Annotated[
        Path | None, typer.Option(help="A picture as large as --image: what is white is drawn anew, black stays.")
    ] = None,
    mesh: Annotated[
        Path | None, typer.Option(help="A part of a mesh to go on from: its first faces along z, in the box -1 to 1.")
    ] = None,
    prompt: Annotated[Path | None, typer.Option(help="A sound to go on from.")] = None,
    seconds: Annotated[
        float | None, typer.Option(help="Length of a sound, prompt and all; if not given, the model's longest.")
    ] = None,
    prime: Annotated[Path | None, typer.Option(help="A clip to go on from, as a video or a picture.")] = None,
    scenes: Annotated[
        Path | None, typer.Option(help="A file with a text on each line: one video of all of them, one after another.")
    ] = None,
    frames: Annotated[
        int | None,
        typer.Option(min=1, help="Length of a video, --prime and all; with --scenes, what each of them adds."),
    ] = None,
    images: Annotated[bool, typer.Option("--images", help="Pictures instead of videos.")] = False,
    data: Annotated[
        str | None, typer.Option(help="Take the items of this folder instead of the validation items.")
    ] = None,
    out: Annotated[Path, typer.Option(help="Folder for the results.")] = Path("out"),
) -> None:
    """Show what a model makes: of a text, or, for a tokenizer, inputs beside their reconstructions."""
    from quintet import runs
    from quintet.training.task import Request

    trained = open_model(run)
    trained.recipe.config = _with_keys(trained.recipe.config, overrides, ("sample",))
    of_sound = {"prompt": prompt, "seconds": seconds}
    of_video = {"prime": prime, "scenes": scenes, "frames": frames, "images": images or None}
    asked = {"negative": negative, "image": image, "mask": mask, "mesh": mesh, **of_sound, **of_video}
    for option, value in asked.items():
        if value is not None and option not in trained.recipe.options:
            raise UsageError(f"recipe {trained.recipe.name} takes no --{option}")
    if (image is None) != (mask is None):
        raise UsageError("--image and --mask belong together: the mask says which part of the picture is drawn anew")
    given = image or mesh or prompt or prime
    story = _scenes(scenes, text, images)
    if images and (prime or frames):
        raise UsageError("--images are pictures: leave --prime and --frames out")
    texts = [" / ".join(story)] if story else text
    if negative is not None and not (texts or given or trained.recipe.unprompted):
        raise UsageError("--negative goes with --text: say also what it should look like")
    if texts or given or images or seconds is not None or frames is not None or trained.recipe.unprompted:
        request = Request(texts or [""], num, seed, negative, given, mask, seconds, frames, story, images)
        artifacts = runs.generate(trained, request)
    else:
        artifacts = runs.EvalSession.open(trained, data).artifacts(num)
    out.mkdir(parents=True, exist_ok=True)
    for artifact in artifacts:
        target = _free(out / artifact.file)
        artifact.write(target)
        with (out / "samples.jsonl").open("a", encoding="utf-8") as lines:
            lines.write(json.dumps({"file": target.name, "model": run, **artifact.about}, ensure_ascii=False) + "\n")
        print_line(f"written: {target}")
    print_next(("eval", run))


def _scenes(path: Path | None, text: Sequence[str] | None, images: bool) -> list[str]:
    """The lines of a file of scenes; none without one."""
    if path is None:
        return []
    if text or images:
        raise UsageError("--scenes says what each part of a video shows: leave --text and --images out")
    from quintet.data.index.text_lines import read_lines

    return read_lines(path, "--scenes", "scene")


def _free(path: Path) -> Path:
    """The path, or the next one beside it that does not exist: nothing is overwritten."""
    number, candidate = 1, path
    while candidate.exists():
        number += 1
        candidate = path.with_stem(f"{path.stem}-{number}")
    return candidate


def _with_keys(config: Any, overrides: Sequence[str] | None, sections: Sequence[str]) -> Any:
    """The configuration of a trained model, changed where that changes how it is looked at, not what it is."""
    changes = configs.parse_overrides(overrides or [])
    for key in changes:
        if key.split(".")[0] not in sections:
            known = " and ".join(f"{section}.*" for section in sections)
            raise UsageError(f"a trained model takes keys of {known} here, not '{key}'")
    return config.changed(changes)


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
