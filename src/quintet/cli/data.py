"""Owns the verbs about data: `data make`, `data check` and `data shard`."""

from __future__ import annotations

import json
from importlib import import_module
from pathlib import Path
from typing import Annotated, Literal

import typer

from quintet.cli.shared import print_line, print_next, say_left_out
from quintet.errors import UsageError


def make(
    name: Annotated[
        Literal["shapes", "solids", "sounds", "motions"],
        typer.Argument(help="Which data set: of pictures, meshes, sounds or video."),
    ],
    folder: Annotated[Path, typer.Argument(help="A new folder.")],
    num: Annotated[int, typer.Option(help="How many items.")] = 5000,
    size: Annotated[int | None, typer.Option(help="Side of pictures and video in pixels; 64 if not given.")] = None,
    seed: Annotated[int, typer.Option(help="Another seed, other items.")] = 0,
) -> None:
    """Write a synthetic data set, drawn by code, with captions."""
    make_items = getattr(import_module(f"quintet.synthetic.{name}"), f"make_{name}")
    if name in ("shapes", "motions"):
        make_items(folder, num, 64 if size is None else size, seed)
    elif size is not None:
        raise UsageError(f"--size is for pictures and video; {name} have none")
    else:
        make_items(folder, num, seed)
    print_line(f"{num} items written: {folder}")
    recipe = {"shapes": "vqgan", "solids": "mesh-autoencoder", "sounds": "mulan", "motions": "cvivit"}[name]
    print_next(("data", "check", folder), ("train", recipe, folder))


def check(
    folder: Annotated[str, typer.Argument(help="Folder of media and captions, or of shards; or an address of shards.")],
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
        print_line(json.dumps(report.to_json(), indent=1, ensure_ascii=False))
    else:
        for line in report.lines():
            print_line(line)
    if report.usable == 0:
        raise typer.Exit(1)
    if not as_json:
        print_next(("train", MEDIA[report.medium].recipe, folder))


def shard(
    folder: Annotated[str, typer.Argument(help="Folder of media and captions.")],
    out: Annotated[Path, typer.Argument(help="A new folder for the shards.")],
    medium: Annotated[
        Literal["image", "mesh", "audio", "video"] | None,
        typer.Option(help="What to take; otherwise what most files are."),
    ] = None,
    items: Annotated[int, typer.Option(min=1, help="The most items of a shard.")] = 10_000,
    megabytes: Annotated[int, typer.Option(min=1, help="The most megabytes of a shard.")] = 1024,
) -> None:
    """Put a folder into tar files with an index: many small files become few large ones, and are trained on alike."""
    from quintet.data.check import MEDIA, scan_medium
    from quintet.data.index.shard_writer import write_shards

    chosen, scanned = scan_medium(folder, medium)
    if not scanned.entries:
        raise UsageError(f"no media in {folder}; `quintet data check {folder}` says what is there")
    written = write_shards(folder, scanned, out, items=items, megabytes=megabytes)
    say_left_out(dict(written.skipped))
    print_line(f"{written.items} {chosen} files in {written.shards} shards: {out}")
    print_next(("data", "check", out), ("train", MEDIA[chosen].recipe, out))
