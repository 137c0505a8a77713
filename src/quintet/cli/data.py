"""The commands `data make`, `data check` and `data shard`."""

from __future__ import annotations

import json
from importlib import import_module
from pathlib import Path
from typing import Annotated, Literal

import typer

from quintet.cli.shared import print_line, print_next, print_result, say_skipped
from quintet.errors import UsageError


def make(
    name: Annotated[
        Literal["shapes", "solids", "sounds", "motions"],
        typer.Argument(help="Dataset: shapes (images), solids (meshes), sounds (audio) or motions (video)."),
    ],
    folder: Annotated[Path, typer.Argument(help="New folder.")],
    num: Annotated[int, typer.Option(help="Number of items.")] = 5000,
    size: Annotated[int | None, typer.Option(help="Side of images and videos in pixels; default: 64.")] = None,
    seed: Annotated[int, typer.Option(help="Random seed.")] = 0,
) -> None:
    """Write a synthetic dataset with captions."""
    make_items = getattr(import_module(f"quintet.synthetic.{name}"), f"make_{name}")
    if name in ("shapes", "motions"):
        make_items(folder, num, 64 if size is None else size, seed)
    elif size is not None:
        raise UsageError(f"--size is for images and videos; '{name}' does not take it")
    else:
        make_items(folder, num, seed)
    print_line(f"{num} items written: {folder}")
    recipe = {"shapes": "vqgan", "solids": "mesh-autoencoder", "sounds": "mulan", "motions": "cvivit"}[name]
    print_next(("data", "check", folder), ("train", recipe, folder))


def check(
    folder: Annotated[
        str, typer.Argument(help="Folder of media files and captions, folder of shards, or URL of shards.")
    ],
    medium: Annotated[
        Literal["image", "mesh", "audio", "video"] | None,
        typer.Option(help="Medium to check; default: the medium of most files."),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Report the contents of a folder, the files that cannot be read, and the files that will be used."""
    from quintet.data.check import MEDIA, check_folder

    report = check_folder(folder, medium=medium)
    if as_json:
        print_result(json.dumps(report.to_json(), indent=1, ensure_ascii=False))
    else:
        for line in report.lines():
            print_result(line)
    if report.usable == 0 or report.problem is not None:
        raise typer.Exit(1)
    if not as_json:
        print_next(("train", MEDIA[report.medium].first_recipe(not report.captions.missing), folder))


def shard(
    folder: Annotated[str, typer.Argument(help="Folder of media files and captions.")],
    out: Annotated[Path, typer.Argument(help="New folder for the shards.")],
    medium: Annotated[
        Literal["image", "mesh", "audio", "video"] | None,
        typer.Option(help="Medium to pack; default: the medium of most files."),
    ] = None,
    items: Annotated[int, typer.Option(min=1, help="Maximum number of items per shard.")] = 10_000,
    megabytes: Annotated[int, typer.Option(min=1, help="Maximum size of a shard in megabytes.")] = 1024,
) -> None:
    """Pack a folder into tar shards with an index. Training on the shards equals training on the folder."""
    from quintet.data.check import MEDIA, scan_medium
    from quintet.data.index.shard_writer import write_shards

    chosen, scanned = scan_medium(folder, medium)
    if not scanned.entries:
        raise UsageError(f"no media files in {folder}; `quintet data check {folder}` reports its contents")
    if scanned.problem is not None:
        raise UsageError(f"in {folder}: {scanned.problem}")
    written = write_shards(folder, scanned, out, items=items, megabytes=megabytes)
    say_skipped(dict(written.skipped))
    print_line(f"{written.items} {chosen} files in {written.shards} shards: {out}")
    recipe = MEDIA[chosen].first_recipe(all(entry.text for entry in scanned.entries))
    print_next(("data", "check", out), ("train", recipe, out))
