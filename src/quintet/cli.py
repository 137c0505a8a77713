"""Owns the command line: the verbs, thin. Each checks its arguments, calls one function, prints the next command.

Nothing here imports torch at the top, so that help and mistakes answer at once.
"""

from __future__ import annotations

import errno
import json
import os
import sys
import traceback
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

import quintet
from quintet import config as configs
from quintet import recipes
from quintet.errors import QuintetError, UsageError

app = typer.Typer(
    name="quintet",
    help="Train and sample discrete-token generative models of images, video, audio and meshes on your own files.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)
data_app = typer.Typer(help="Make an embedded data set, or look at a folder of your own.", no_args_is_help=True)
app.add_typer(data_app, name="data")

Overrides = Annotated[
    list[str] | None, typer.Argument(metavar="[KEY=VALUE]…", help="Any key of `quintet config RECIPE`.")
]
RunFolder = Annotated[Path, typer.Argument(metavar="RUN", help="The folder of a run.")]
ModelReference = Annotated[str, typer.Argument(metavar="RUN", help="A run, RUN@step, RUN@best, or an exported folder.")]


def main(arguments: Sequence[str] | None = None) -> None:
    """The entry point: one sentence and an exit code for every failure; `--debug` shows the traceback instead."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    debug = "--debug" in words
    code = _guarded([word for word in words if word != "--debug"], debug)
    if "torch" in sys.modules and int(os.environ.get("WORLD_SIZE", "1")) > 1:
        from quintet.core.engine import exit_process

        exit_process(code)
    sys.exit(code)


def call(words: Sequence[str]) -> int:
    """Run one command in this process and return its exit code; failures are exceptions."""
    code = app(list(words), prog_name="quintet", standalone_mode=False)
    return code if isinstance(code, int) else 0


def _guarded(words: Sequence[str], debug: bool) -> int:
    try:
        return call(words)
    except SystemExit as stopped:  # by a signal; the process must still leave as `main` has it leave
        return int(stopped.code or 0)
    except (KeyboardInterrupt, typer.Abort):
        return 130
    except Exception as error:
        if debug:
            traceback.print_exc()
        elif type(error).__name__ == "NoArgsIsHelpError":
            _say(_mistake(error))
        else:
            _say(f"error: {_one_sentence(error)}")
        return 2 if _is_misuse(error) else error.exit_code if isinstance(error, QuintetError) else 1


def _is_misuse(error: Exception) -> bool:
    """Whether the words of the command were wrong. By its form: Typer brings its own copy of click's exceptions."""
    return hasattr(error, "format_message")


def _mistake(error: Any) -> str:
    return str(error.format_message())


def _one_sentence(error: Exception) -> str:
    if _is_misuse(error):
        where = getattr(getattr(error, "param", None), "opts", None)
        return f"{where[0]}: {_mistake(error)}" if where and where[0] not in _mistake(error) else _mistake(error)
    if isinstance(error, QuintetError):
        return str(error)
    if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS):
        return f"cannot write {error.filename or 'the output'}: {error.strerror}"
    return f"{type(error).__name__}: {error} (unexpected; --debug shows where)"


def _say(text: str) -> None:
    # Nobody may be listening any more, or the disk may be full that the words are kept on.
    with suppress(OSError):
        sys.stderr.write(text.rstrip() + "\n")
        sys.stderr.flush()


def _print(text: str = "") -> None:
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


def _next(*commands: str) -> None:
    """Every command ends by printing the next useful one."""
    for command in commands:
        _print(f"next: {command}")


# --- training ---------------------------------------------------------------------------------------------------


@app.command(context_settings={"help_option_names": []})
def train(
    context: typer.Context,
    recipe: Annotated[str | None, typer.Argument(help="What to train; `quintet recipes` lists them.")] = None,
    data: Annotated[str | None, typer.Argument(help="Folder of media and captions.")] = None,
    overrides: Overrides = None,
    out: Annotated[Path | None, typer.Option(help="Run folder; default runs/<recipe>-<n>.")] = None,
    preset: Annotated[str | None, typer.Option(help="debug, small or base: sets many keys at once.")] = None,
    config: Annotated[Path | None, typer.Option(help="YAML file of keys.")] = None,
    init: Annotated[str | None, typer.Option(help="Fine-tune: start from the weights of this run or export.")] = None,
    tokenizer: Annotated[str | None, typer.Option(help="The trained tokenizer that a generator stands on.")] = None,
    base: Annotated[
        str | None, typer.Option(help="The trained model whose results a super-resolution model enlarges.")
    ] = None,
    condition: Annotated[
        str | None, typer.Option(help="The trained mulan whose vectors tell a generator of sound what to make.")
    ] = None,
    help: Annotated[bool, typer.Option("--help", help="Show this message; with a RECIPE also all its keys.")] = False,
) -> None:
    """Train a recipe on a folder of files, in a new run folder."""
    if help or recipe is None:
        _print(context.get_help())
        if recipe is not None:
            _print("\nKeys, with their meaning and default:\n")
            _print(configs.describe(configs.build(recipes.find(recipe).config_class(), preset=preset)))
        raise typer.Exit(0 if help else 2)
    words = [word for word in (data, *(overrides or [])) if word is not None]
    folder, changes = _data_and_overrides(words)
    schema = recipes.find(recipe).config_class()
    links = {"init": init, "tokenizer": tokenizer, "base": base, "condition": condition}
    for name in ("tokenizer", "base", "condition"):
        if links[name] is not None and name not in schema.LINKS:
            raise UsageError(f"recipe {recipe} stands on no {name}: leave --{name} out")
    settings = configs.build(schema, preset=preset, file=config, overrides={**changes, **_links(folder, links)})
    if settings.recipe != recipe:
        raise UsageError(f"{config} is for recipe '{settings.recipe}', not '{recipe}'")
    if settings.data.path is None:
        raise UsageError(f"say which folder to train on: `quintet train {recipe} DATA`")
    from quintet import runs

    _train(runs.new_trainer(settings, out))


@app.command()
def resume(
    run: RunFolder,
    overrides: Overrides = None,
    force: Annotated[
        bool, typer.Option("--force", help="Also under other keys, on changed data, or by another version.")
    ] = False,
) -> None:
    """Continue a run from its newest sound checkpoint; train.steps=N for longer."""
    from quintet import runs

    _train(runs.resumed_trainer(run, configs.parse_overrides(overrides or []), force))


def _train(trainer: Any) -> None:
    try:
        trainer.train()
    except SystemExit:  # a signal: everything is saved, and the other processes are told
        _leave(trainer)
        raise
    except BaseException:
        trainer.close()
        raise
    if trainer.is_main:
        folder = trainer.run.folder
        from quintet.media.chart import write_curves

        rows = trainer.run.read_metrics()
        trainer.run.observe("curves.png", lambda: write_curves(rows, folder / "curves.png"))
        with suppress(OSError):  # what was trained stands, whether or not it can be said
            _print(f"trained to step {trainer.step}: {folder} (samples/ to look at, curves.png, metrics.jsonl)")
            _next(f"quintet eval {folder}", f"quintet view {folder}")
    _leave(trainer)


def _leave(trainer: Any) -> None:
    trainer.close()
    trainer.engine.close()


def _data_and_overrides(words: Sequence[str]) -> tuple[str | None, dict[str, Any]]:
    """The folder may be left out where a configuration file names it; then the first word is a key=value."""
    folder = words[0] if words and ("=" not in words[0] or Path(words[0]).exists()) else None
    return folder, configs.parse_overrides(words[1:] if folder is not None else words)


def _links(folder: str | None, named: Mapping[str, str | None]) -> dict[str, Any]:
    links: dict[str, Any] = {name: reference for name, reference in named.items() if reference is not None}
    if folder is not None:
        links["data.path"] = str(Path(folder).resolve())
    return links


@app.command()
def verify(
    run: RunFolder,
    start: Annotated[
        int | None, typer.Option("--from", min=0, help="Checkpoint to start from; 0: the beginning.")
    ] = None,
    end: Annotated[
        int | None, typer.Option("--to", min=1, help="Checkpoint to compare with; default the newest.")
    ] = None,
) -> None:
    """Check all checkpoints of a run, and take the steps between the last two again: the bytes must be the same."""
    from quintet.verify import check_run

    verdict = check_run(run, start, end)
    for note in verdict.notes:
        _print(f"note: {note}")
    _print(f"reproduced: steps {verdict.start} to {verdict.end} again, {verdict.files} files, the same bytes")
    _next(f"quintet eval {run}")


# --- looking ----------------------------------------------------------------------------------------------------


@app.command("eval")
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

    trained = _open(run)
    if trained.ready and out is None:
        raise UsageError(f"{run} has no folder of its own; say where to write the figures with --out")
    trained.recipe.config = _with_keys(trained.recipe.config, overrides, ("eval", "sample"))
    looker = runs.Looker.open(trained, data)
    figures = looker.figures()
    target = out or looker.trained.folder / "eval.json"
    _write_json(target, figures)
    width = max(len(name) for name in figures)
    for name, value in figures.items():
        _print(f"{name:<{width}}  {value:.4f}")
    which = "" if looker.trained.step is None else f"step {looker.trained.step}, "
    _print(f"written to {target} ({which}{len(looker.loader.source)} items)")
    recipe = looker.trained.recipe
    asked = ' --text "…"' if recipe.prompted else ""
    use = f'search {run} FOLDER --text "…"' if recipe.embeds else f"sample {run}{asked} --out out/"
    _next(f"quintet {use}", f"quintet export {run} hub/{recipe.name}")


@app.command()
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
    from quintet.core.recipe import Request

    trained = _open(run)
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
        artifacts = runs.Looker.open(trained, data).artifacts(num)
    out.mkdir(parents=True, exist_ok=True)
    for artifact in artifacts:
        target = _free(out / artifact.file)
        artifact.write(target)
        with (out / "samples.jsonl").open("a", encoding="utf-8") as lines:
            lines.write(json.dumps({"file": target.name, "model": run, **artifact.about}, ensure_ascii=False) + "\n")
        _print(f"written: {target}")
    _next(f"quintet eval {run}")


def _scenes(path: Path | None, text: Sequence[str] | None, images: bool) -> list[str]:
    """The lines of a file of scenes; none without one."""
    if path is None:
        return []
    if text or images:
        raise UsageError("--scenes says what each part of a video shows: leave --text and --images out")
    from quintet.data.text_lines import read_lines

    return read_lines(path, "--scenes", "scene")


@app.command()
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
            _print(line)
        return
    try:
        from quintet.web.server import serve

        serve(given, _print, host, port, token, read_only, browser)
    except ModuleNotFoundError as missing:
        if missing.name not in ("starlette", "uvicorn"):
            raise
        raise UsageError(
            f"the page needs {missing.name}, which is not installed: pip install starlette uvicorn"
        ) from None


def _with_keys(config: Any, overrides: Sequence[str] | None, sections: Sequence[str]) -> Any:
    """The configuration of a trained model, changed where that changes how it is looked at, not what it is."""
    changes = configs.parse_overrides(overrides or [])
    for key in changes:
        if key.split(".")[0] not in sections:
            known = " and ".join(f"{section}.*" for section in sections)
            raise UsageError(f"a trained model takes keys of {known} here, not '{key}'")
    return config.changed(changes)


@app.command()
def encode(
    run: ModelReference,
    data: Annotated[str, typer.Argument(help="Folder of media.")],
    out: Annotated[Path, typer.Option(help="Folder for the codes.")] = Path("codes"),
    layer: Annotated[
        int | None,
        typer.Option(help="Semantic tokens: clusters of what this layer of a mulan or a HuBERT hears; 1 is first."),
    ] = None,
    clusters: Annotated[int | None, typer.Option(help="How many semantic tokens there are; 256 if not given.")] = None,
    centroids: Annotated[
        Path | None, typer.Option(help="Semantic tokens of the clusters that an earlier folder of them was made with.")
    ] = None,
    seed: Annotated[int, typer.Option(min=0, help="Of finding clusters: the same seed gives the same.")] = 0,
) -> None:
    """Turn files into codes: codes.safetensors and items.jsonl, the items in the same order."""
    if layer is not None or centroids is not None:
        _encode_semantic(run, data, out, layer, clusters, centroids, seed)
        return
    if clusters is not None:
        raise UsageError("--clusters are of semantic tokens: say of which layer with --layer N")
    from quintet import codes

    count = codes.encode_folder(_open(run), data, out)
    _print(f"{count} items encoded: {out / 'codes.safetensors'}")
    _next(f"quintet decode {run} {out} --out decoded/")


def _encode_semantic(
    run: str, data: str, out: Path, layer: int | None, clusters: int | None, centroids: Path | None, seed: int
) -> None:
    from quintet import semantic

    made = semantic.encode_folder(run, data, out, layer=layer, clusters=clusters, centroids=centroids, seed=seed)
    for line in made.lines:
        _print(line)
    _print(f"{made.items} items encoded, {made.rate:g} tokens a second: {out / 'codes.safetensors'}")
    _next(f"quintet train soundstorm {data} --tokenizer CODEC data.semantic={out}")


@app.command()
def decode(
    run: ModelReference,
    codes_folder: Annotated[Path, typer.Argument(metavar="CODES", help="Folder that `quintet encode` wrote.")],
    out: Annotated[Path, typer.Option(help="Folder for the media.")] = Path("decoded"),
) -> None:
    """Turn codes back into files."""
    from quintet import codes

    count = codes.decode_folder(_open(run), codes_folder, out)
    _print(f"{count} items decoded: {out}")


@app.command()
def embed(
    run: ModelReference,
    audio: Annotated[Path | None, typer.Option(metavar="FOLDER", help="Folder of sounds, or one file.")] = None,
    text: Annotated[list[str] | None, typer.Option(help="A text; may be given again.")] = None,
    out: Annotated[Path, typer.Option(help="A new file for the vectors.")] = Path("embeddings.npz"),
) -> None:
    """Turn sounds and texts into vectors of one space: arrays audio, files, text and texts in an npz file."""
    from quintet import embeddings

    if audio is None and not text:
        raise UsageError("say what to embed: --audio FOLDER, --text WORDS, or both")
    embeddings.refuse_existing(out)
    trained = _open(run)
    words = embeddings.embed_texts(trained, text) if text else None
    media = embeddings.embed_media(trained, audio) if audio is not None else None
    if media is not None:
        _say_left_out(media.skipped)
    embeddings.write_embeddings(out, media, text or [], words)
    _print(f"{len(media.files) if media else 0} files and {len(text or [])} texts embedded: {out}")
    _next(f'quintet search {run} {audio or "FOLDER"} --text "…"')


@app.command()
def search(
    run: ModelReference,
    folder: Annotated[Path, typer.Argument(help="Folder of media, or one file.")],
    text: Annotated[list[str], typer.Option(help="What to look for; may be given again.")],
    top: Annotated[int, typer.Option(min=1, help="How many files to name.")] = 5,
    as_json: Annotated[bool, typer.Option("--json", help="For machines.")] = False,
) -> None:
    """Find the files of a folder that a text describes best."""
    from quintet import embeddings
    from quintet.data.folder import printable

    trained = _open(run)
    words = embeddings.embed_texts(trained, text)
    media = embeddings.embed_media(trained, folder)
    _say_left_out(media.skipped)
    found = [embeddings.rank(media, each, top) for each in words]
    if as_json:
        told = [
            {"text": printable(asked), "found": [{"file": each.file, "score": each.score} for each in best]}
            for asked, best in zip(text, found, strict=True)
        ]
        _print(json.dumps(told, indent=1, ensure_ascii=False))
        return
    for asked, best in zip(text, found, strict=True):
        _print(f"{printable(asked)} (of {len(media.files)} files)")
        for number, each in enumerate(best, start=1):
            _print(f"{number:>4}  {each.score:7.4f}  {each.file}")
    _next(f"quintet embed {run} --audio {folder} --out embeddings.npz")


def _say_left_out(skipped: Mapping[str, str]) -> None:
    for file, reason in skipped.items():
        _say(f"left out: {file} ({reason})")


@app.command()
def export(
    run: ModelReference, folder: Annotated[Path, typer.Argument(help="A new folder for the exported model.")]
) -> None:
    """Write a model as safetensors + config.json + model card, for from_pretrained and for other runs."""
    from quintet import runs

    trained = _open(run)
    runs.export(trained, folder, _read_figures(trained.folder))
    model = type(trained.model).__name__
    _print(f"exported: {folder}")
    _print(f"in Python: quintet.{model}.from_pretrained({str(folder)!r})")
    _next(f"quintet eval {folder}")


def _open(reference: str) -> Any:
    """A trained model; what was wrong with newer checkpoints is said."""
    from quintet import runs

    trained = runs.open_trained(reference)
    for problem in trained.problems:
        _say(f"damaged checkpoint passed over: {problem}")
    return trained


# --- data -------------------------------------------------------------------------------------------------------


@data_app.command("make")
def data_make(
    name: Annotated[
        Literal["shapes", "solids", "sounds", "motions"],
        typer.Argument(help="Which data set: of pictures, meshes, sounds or video."),
    ],
    folder: Annotated[Path, typer.Argument(help="A new folder.")],
    num: Annotated[int, typer.Option(help="How many items.")] = 5000,
    size: Annotated[int | None, typer.Option(help="Side of pictures and video in pixels; 64 if not given.")] = None,
    seed: Annotated[int, typer.Option(help="Another seed, other items.")] = 0,
) -> None:
    """Write an embedded data set, drawn by code, with captions."""
    if name == "shapes":
        from quintet.data.shapes import make_shapes

        make_shapes(folder, num, 64 if size is None else size, seed)
    elif name == "motions":
        from quintet.data.motions import make_motions

        make_motions(folder, num, 64 if size is None else size, seed)
    else:
        if size is not None:
            raise UsageError(f"--size is for pictures and video; {name} have none")
        if name == "solids":
            from quintet.data.solids import make_solids

            make_solids(folder, num, seed)
        else:
            from quintet.data.sounds import make_sounds

            make_sounds(folder, num, seed)
    _print(f"{num} items written: {folder}")
    recipe = {"shapes": "vqgan", "solids": "mesh-autoencoder", "sounds": "mulan", "motions": "cvivit"}[name]
    _next(f"quintet data check {folder}", f"quintet train {recipe} {folder}")


@data_app.command("check")
def data_check(
    folder: Annotated[Path, typer.Argument(help="Folder of media and captions.")],
    medium: Annotated[
        Literal["image", "mesh", "audio", "video"] | None,
        typer.Option(help="What to look for; otherwise what most files are."),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="For machines.")] = False,
) -> None:
    """Tell what is in a folder, what is broken, and what will be used."""
    from quintet.data.check import MEDIA, check_folder

    report = check_folder(folder, medium=medium)
    if as_json:
        _print(json.dumps(report.to_json(), indent=1, ensure_ascii=False))
    else:
        for line in report.lines():
            _print(line)
    if report.usable == 0:
        raise typer.Exit(1)
    if not as_json:
        _next(f"quintet train {MEDIA[report.medium].recipe} {folder}")


# --- telling ----------------------------------------------------------------------------------------------------


@app.command("recipes")
def list_recipes() -> None:
    """What can be trained, and what it needs."""
    for name, entry in recipes.RECIPES.items():
        _print(f"{name:<18} {entry.summary} (needs {entry.needs}; in Python {entry.trainer})")
        for ready in entry.ready:
            _print(f"{'':<18} `{ready}` is one without training, wherever a trained one can be named")
    _next("quintet config RECIPE", "quintet demo image")


@app.command("config")
def show_config(
    recipe: Annotated[str, typer.Argument(help="A recipe.")],
    overrides: Overrides = None,
    preset: Annotated[str | None, typer.Option(help="debug, small or base.")] = None,
) -> None:
    """Print every key of a recipe as commented YAML, ready for --config."""
    schema = recipes.find(recipe).config_class()
    built = configs.build(schema, preset=preset, overrides=configs.parse_overrides(overrides or []))
    _print(configs.describe(built).rstrip())


@app.command()
def doctor() -> None:
    """Versions, devices and optional parts of this installation."""
    from quintet.doctor import lines

    for line in lines():
        _print(line)


@app.command()
def demo(
    medium: Annotated[Literal["image", "mesh", "audio", "video"], typer.Argument(help="What to show.")] = "image",
    full: Annotated[bool, typer.Option("--full", help="Train to the figures in docs/results.md.")] = False,
    out: Annotated[Path | None, typer.Option(help="Folder for data and runs; runs/demo-MEDIUM if not given.")] = None,
) -> None:
    """The whole way on embedded data: make, train, resume, evaluate, look. Prints each command it runs."""
    from quintet import demos
    from quintet.demos.script import Script

    demos.find(medium)(out or Path(f"runs/demo-{medium}"), full, Script(call, _print))


@app.command()
def version() -> None:
    """The version of quintet."""
    _print(quintet.__version__)


def _write_json(path: Path, value: Any) -> None:
    from quintet.core.checkpoint import replace_text

    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        replace_text(path, json.dumps(value, indent=1) + "\n")
    except OSError as error:
        raise UsageError(f"cannot write {path}: {error.strerror}") from None


def _read_figures(folder: Path) -> dict[str, float]:
    from quintet.core import checkpoint

    try:
        figures = json.loads(checkpoint.read_regular(folder / "eval.json"))
    except (OSError, ValueError, RecursionError):
        return {}
    if not isinstance(figures, dict):
        return {}
    return {name: value for name, value in figures.items() if isinstance(value, float)}


def _free(path: Path) -> Path:
    """The path, or the next one beside it that does not exist: nothing is overwritten."""
    number, candidate = 1, path
    while candidate.exists():
        number += 1
        candidate = path.with_stem(f"{path.stem}-{number}")
    return candidate
