"""Command line: the commands, and how each of them ends. A command checks its arguments, calls one function and prints
the next command.

Nothing here imports torch at module level, so that `--help` and errors are fast.
"""

from __future__ import annotations

import errno
import os
import sys
import traceback
from collections.abc import Sequence
from typing import Any

import typer

from quintet.cli import data, inference, info, planning, results, sampling, training
from quintet.common import launched, streams
from quintet.common.logging import say
from quintet.common.memory import is_out_of_memory
from quintet.common.printable import printable
from quintet.errors import LostContactError, QuintetError

app = typer.Typer(
    name="quintet",
    help="Train and sample discrete-token generative models of images, video, audio and meshes on your own files.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)
app.command(context_settings={"help_option_names": []})(training.train)
app.command()(planning.plan)
app.command()(training.resume)
app.command()(training.verify)
app.command("eval")(results.evaluate)
app.command(
    help=sampling.HELP,
    add_help_option=False,
    context_settings={"ignore_unknown_options": True, "allow_extra_args": True, "allow_interspersed_args": False},
)(sampling.sample)
app.command()(results.view)
app.command()(inference.encode)
app.command()(inference.decode)
app.command()(inference.embed)
app.command()(inference.search)
app.command()(inference.export)
app.command("recipes")(info.list_recipes)
app.command("models")(info.list_models)
app.command("config")(info.show_config)
app.command()(info.doctor)
app.command()(info.demo)
app.command()(info.version)

data_app = typer.Typer(
    help="Write a synthetic dataset, check a folder of your own, or pack it into shards.", no_args_is_help=True
)
data_app.command("make")(data.make)
data_app.command("check")(data.check)
data_app.command("shard")(data.shard)
app.add_typer(data_app, name="data")


def main(arguments: Sequence[str] | None = None) -> None:
    """Entry point: every failure prints one sentence and sets an exit code; `--debug` prints the traceback instead."""
    streams.open_missing()
    if launched.is_launched():
        launched.end_with_parent()
    words = list(sys.argv[1:] if arguments is None else arguments)
    debug = "--debug" in words
    code = _guarded([word for word in words if word != "--debug"], debug)
    world_size = os.environ.get("WORLD_SIZE") or os.environ.get("SLURM_STEP_NUM_TASKS") or "1"
    if "torch" in sys.modules and int(world_size) > 1:
        from quintet.training.engine import exit_process

        exit_process(code)
    streams.flush()
    sys.exit(code)


def call(words: Sequence[str], debug: bool = False) -> int:
    """Run one command in this process and return its exit code; failures are exceptions."""
    # The arguments are also the context's object, for commands that start processes with the same arguments.
    given = [*words, "--debug"] if debug else [*words]
    code = app(list(words), prog_name="quintet", standalone_mode=False, obj=given)
    return code if isinstance(code, int) else 0


def _guarded(words: Sequence[str], debug: bool) -> int:
    stdout = sys.stdout
    try:
        return call(words, debug)
    except SystemExit as stopped:  # by a signal; the process must still exit through `main`
        # Typer exits and wraps stdout if nobody reads it.
        return streams.SIGPIPE_CODE if sys.stdout is not stdout else int(stopped.code or 0)
    except (KeyboardInterrupt, typer.Abort):
        return 130
    except Exception as error:
        if debug:
            traceback.print_exc()
        elif type(error).__name__ == "NoArgsIsHelpError":
            say(_message(error), any_rank=True)
        else:
            _say_error(printable(_one_sentence(error, words[0] if words else "")), isinstance(error, LostContactError))
        return 2 if _is_usage_error(error) else error.exit_code if isinstance(error, QuintetError) else 1


def _say_error(sentence: str, lost_contact: bool) -> None:
    if launched.is_launched():
        launched.report_error(sentence, lost_contact)
    else:
        say(f"error: {sentence}", any_rank=True)


def _is_usage_error(error: Exception) -> bool:
    """Whether the arguments of the command were invalid. Duck-typed: Typer has its own copy of click's exceptions."""
    return hasattr(error, "format_message")


def _message(error: Any) -> str:
    return str(error.format_message())


_LESS_MEMORY = {
    "sample": "generate fewer items at a time (--num), or shorter or smaller ones",
    "eval": "set a smaller eval.batch_size, or eval.num_generated=0 to generate nothing",
}
"""What needs less memory, by command."""


def _one_sentence(error: Exception, command: str) -> str:
    if _is_usage_error(error):
        path = str(getattr(getattr(error, "ctx", None), "command_path", ""))
        if type(error).__name__ == "NoSuchOption" and "quintet train" in path:
            message = _message(error).partition(" (")[0].rstrip(".")
            return f"{message}; write keys as key=value, for example train.steps=1000"
        options = getattr(getattr(error, "param", None), "opts", None)
        return f"{options[0]}: {_message(error)}" if options and options[0] not in _message(error) else _message(error)
    if isinstance(error, QuintetError):
        return str(error)
    if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS):
        return f"cannot write {error.filename or 'the output'}: {error.strerror}"
    if is_out_of_memory(error):
        return f"out of memory; {_LESS_MEMORY.get(command, 'use a smaller model or smaller media, or another machine')}"
    return f"{type(error).__name__}: {error} (unexpected; --debug prints the traceback)"
