"""The command `sample`. Its options are those of the pipeline of the run.

The arguments are therefore parsed twice: once to find the run, then by a command that is built for its recipe.
"""

from __future__ import annotations

import inspect
import json
import textwrap
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from quintet import registry
from quintet.cli.shared import ModelReference, open_model, print_line, print_next, print_result, with_keys
from quintet.config import GenerateOptions, RunConfig, validate
from quintet.config.options import Flag, flags_of, is_set
from quintet.errors import UsageError

HELP = (
    "Sample a trained model. A generator samples from --text, or from the captions of validation items; a tokenizer "
    "writes validation items next to their reconstructions."
)

_COMMON = {
    "overrides": Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[KEY=VALUE]…", help="Configuration keys of `sample.*`, for example sample.guidance_scale=5."
        ),
    ],
    "data": Annotated[str | None, typer.Option(help="Use the items of this folder instead of the validation items.")],
    "out": Annotated[Path, typer.Option(help="Output folder.")],
}
_DEFAULTS: dict[str, Any] = {"overrides": None, "data": None, "out": Path("out")}
_TEXT = Annotated[list[str] | None, typer.Option(help="Prompt: describes the item to generate; can be repeated.")]


def sample(context: typer.Context) -> None:
    words = list(context.args)
    is_help = "--help" in words
    run = _find_run([word for word in words if word != "--help"])
    if run is None:
        known = {flag for each in _all_flags() for flag in each.flags} | {"--text", "--data", "--out", "--help"}
        for word in words:
            if word.startswith("--") and word.partition("=")[0] not in known:
                raise UsageError(f"no such option: {word}")
        print_result(_general_help())
        raise typer.Exit(0 if is_help else 2)
    config_class = _config_class(run)
    _refuse_other_options(words, config_class)
    command = typer.Typer(add_completion=False, pretty_exceptions_enable=False, rich_markup_mode=None)
    command.command(help=HELP)(_function(config_class))
    command(words, prog_name="quintet sample", standalone_mode=False)


def _find_run(words: Sequence[str]) -> str | None:
    """The first argument that is neither an option nor the value of an option."""
    flags = {flag: each.is_switch for each in _all_flags() for flag in each.flags}
    rest = iter(words)
    for word in rest:
        if not word.startswith("-"):
            return word
        if "=" not in word and not flags.get(word, False):
            next(rest, None)
    return None


def _all_flags() -> Iterator[Flag]:
    for _, schema in registry.config_classes():
        yield from flags_of(schema.OPTIONS or GenerateOptions)


def _config_class(run: str) -> type[RunConfig]:
    """Configuration class of the recipe of a run; does not open the model, so that `--help` is fast."""
    from quintet.common.weights.run_reader import recipe_of

    builtin = registry.find_builtin(run)
    if builtin is not None:
        return type(builtin)
    recipe = recipe_of(run)
    # Opening the model explains what is wrong with anything that is neither a run nor an export.
    return registry.find(recipe).config_class() if recipe is not None else type(open_model(run).config)


def _refuse_other_options(words: Sequence[str], config_class: type[RunConfig]) -> None:
    """Refuse options that only other recipes have."""
    options = config_class.OPTIONS
    recipe = config_class.model_fields["recipe"].default
    own = {flag for each in flags_of(options or GenerateOptions) for flag in each.flags}
    others = {flag for each in _all_flags() for flag in each.flags} - own
    passed = [word.partition("=")[0] for word in words]
    if options is None and "--text" in passed:
        raise UsageError(f"'{recipe}' does not take --text: it is not a generator")
    for flag in passed:
        if flag in others:
            raise UsageError(f"'{recipe}' does not take {flag} (it takes {', '.join(sorted(own))})")


def _function(config_class: type[RunConfig]) -> Callable[..., None]:
    """The command for runs of one recipe, with a parameter for each option of its pipeline."""
    options = config_class.OPTIONS
    flags = list(flags_of(options or GenerateOptions))

    def run_sample(run: str, overrides: list[str] | None, data: str | None, out: Path, **values: Any) -> None:
        texts = values.pop("text", None)
        _sample(run, overrides, data, out, texts, validate(options, values) if options else None, values["num"])

    annotations = {"run": ModelReference, **_COMMON, **({"text": _TEXT} if options else {})}
    defaults = {**_DEFAULTS, "text": None}
    for flag in flags:
        kind = flag.kind if flag.default is not None else flag.kind | None
        setting = typer.Option(*flag.flags, help=flag.help, min=flag.least if flag.kind in (int, float) else None)
        annotations[flag.name] = Annotated[kind, setting]
        defaults[flag.name] = flag.default
    keyword_only = inspect.Parameter.KEYWORD_ONLY
    parameters = [
        inspect.Parameter(name, keyword_only, annotation=kind, default=defaults.get(name, inspect.Parameter.empty))
        for name, kind in annotations.items()
    ]
    run_sample.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    run_sample.__annotations__ = dict(annotations)
    return run_sample


def _sample(
    run: str,
    overrides: list[str] | None,
    data: str | None,
    out: Path,
    texts: list[str] | None,
    options: GenerateOptions | None,
    num: int,
) -> None:
    pipeline = with_keys(open_model(run), overrides, ("sample",))
    if options is not None and (texts or pipeline.unconditional or _has_input(options, bool(texts))):
        pipeline.move_to_device()
        artifacts = pipeline.files(texts or [], options)
    else:
        from quintet.evaluation import EvalSession

        artifacts = EvalSession.open(pipeline, data).artifacts(num)
    for artifact in artifacts:
        target = _unused_path(out / artifact.file)
        try:
            out.mkdir(parents=True, exist_ok=True)
            _write(artifact, target, {"model": run, **artifact.metadata})
        except OSError as error:
            raise UsageError(f"cannot write {target}: {error.strerror}") from None
        print_line(f"written: {target}")
    print_next(("eval", run))


def _write(artifact: Any, target: Path, metadata: dict[str, Any]) -> None:
    """Write the file and its line in `samples.jsonl`, or neither."""
    from quintet.training.run_folder import append_line

    artifact.write(target)
    try:
        line = json.dumps({"file": target.name, **metadata}, ensure_ascii=False)
        append_line(target.with_name("samples.jsonl"), line)
    except BaseException:
        target.unlink(missing_ok=True)
        raise


def _has_input(options: GenerateOptions, has_text: bool) -> bool:
    """Whether options other than texts ask the pipeline to generate something."""
    changed = {
        name
        for name in type(options).model_fields
        if name not in GenerateOptions.model_fields and is_set(options, name)
    }
    files = {name for name in changed if isinstance(getattr(options, name), Path)}
    if "negative_prompt" in changed and not has_text and not files:
        raise UsageError("--negative requires --text")
    return bool(changed)


def _unused_path(path: Path) -> Path:
    """The path, or the same path with the first unused number: nothing is overwritten."""
    number, candidate = 1, path
    while candidate.exists():
        number += 1
        candidate = path.with_stem(f"{path.stem}-{number}")
    return candidate


def _general_help() -> str:
    """Help without a run: the options of each recipe."""
    lines = [
        "Usage: quintet sample RUN [KEY=VALUE]… [OPTIONS]",
        "",
        *textwrap.wrap(HELP, 78, initial_indent="  ", subsequent_indent="  "),
        "",
    ]
    lines.append("  The options depend on the recipe of the run; `quintet sample RUN --help` explains them:")
    for name, schema in registry.config_classes():
        options = schema.OPTIONS
        flags = [*(["--text"] if options else []), *(each.flags[0] for each in flags_of(options or GenerateOptions))]
        lines.append(f"    {name:<18} {' '.join([*flags, '--data', '--out'])}")
    return "\n".join(lines)
