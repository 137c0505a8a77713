"""Owns the verbs that put a trained model to use: `encode`, `decode`, `embed`, `search` and `export`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from quintet.cli.shared import ANY_TEXT, ModelReference, open_model, print_line, print_next, say_left_out
from quintet.errors import UsageError


def encode(
    run: ModelReference,
    data: Annotated[str, typer.Argument(help="Folder of media or of shards.")],
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

    count = codes.encode_folder(open_model(run), data, out)
    print_line(f"{count} items encoded: {out / 'codes.safetensors'}")
    print_next(("decode", run, out, "--out", "decoded/"))


def _encode_semantic(
    run: str, data: str, out: Path, layer: int | None, clusters: int | None, centroids: Path | None, seed: int
) -> None:
    from quintet import semantic

    made = semantic.encode_folder(run, data, out, layer=layer, clusters=clusters, centroids=centroids, seed=seed)
    for line in made.lines:
        print_line(line)
    print_line(f"{made.items} items encoded, {made.rate:g} tokens a second: {out / 'codes.safetensors'}")
    print_next(("train", "soundstorm", data, "--tokenizer", "CODEC", f"data.semantic_tokens={out}"))


def decode(
    run: ModelReference,
    codes_folder: Annotated[Path, typer.Argument(metavar="CODES", help="Folder that `quintet encode` wrote.")],
    out: Annotated[Path, typer.Option(help="Folder for the media.")] = Path("decoded"),
) -> None:
    """Turn codes back into files."""
    from quintet import codes

    count = codes.decode_folder(open_model(run), codes_folder, out)
    print_line(f"{count} items decoded: {out}")


def embed(
    run: ModelReference,
    audio: Annotated[
        str | None, typer.Option(metavar="FOLDER", help="Folder of sounds or of shards, or one file.")
    ] = None,
    text: Annotated[list[str] | None, typer.Option(help="A text; may be given again.")] = None,
    out: Annotated[Path, typer.Option(help="A new file for the vectors.")] = Path("embeddings.npz"),
) -> None:
    """Turn sounds and texts into vectors of one space: arrays audio, files, text and texts in an npz file."""
    from quintet import embeddings

    if audio is None and not text:
        raise UsageError("say what to embed: --audio FOLDER, --text WORDS, or both")
    embeddings.refuse_existing(out)
    pipeline = open_model(run)
    words = embeddings.embed_texts(pipeline, text) if text else None
    media = embeddings.embed_media(pipeline, audio) if audio is not None else None
    if media is not None:
        say_left_out(media.skipped)
    embeddings.write_embeddings(out, media, text or [], words)
    print_line(f"{len(media.files) if media else 0} files and {len(text or [])} texts embedded: {out}")
    print_next(("search", run, audio or "FOLDER", "--text", ANY_TEXT))


def search(
    run: ModelReference,
    folder: Annotated[str, typer.Argument(help="Folder of media or of shards, or one file.")],
    text: Annotated[list[str], typer.Option(help="What to look for; may be given again.")],
    top: Annotated[int, typer.Option(min=1, help="How many files to name.")] = 5,
    as_json: Annotated[bool, typer.Option("--json", help="For machines.")] = False,
) -> None:
    """Find the files of a folder that a text describes best."""
    from quintet import embeddings
    from quintet.data.index.entry import printable

    pipeline = open_model(run)
    words = embeddings.embed_texts(pipeline, text)
    media = embeddings.embed_media(pipeline, folder)
    say_left_out(media.skipped)
    found = [embeddings.rank(media, each, top) for each in words]
    if as_json:
        told = [
            {"text": printable(asked), "found": [{"file": each.file, "score": each.score} for each in best]}
            for asked, best in zip(text, found, strict=True)
        ]
        print_line(json.dumps(told, indent=1, ensure_ascii=False))
        return
    for asked, best in zip(text, found, strict=True):
        print_line(f"{printable(asked)} (of {len(media.files)} files)")
        for number, each in enumerate(best, start=1):
            print_line(f"{number:>4}  {each.score:7.4f}  {each.file}")
    print_next(("embed", run, "--audio", folder, "--out", "embeddings.npz"))


def export(
    run: ModelReference, folder: Annotated[Path, typer.Argument(help="A new folder for the exported model.")]
) -> None:
    """Write a model as safetensors + config.json + model card, for from_pretrained and for other runs."""
    pipeline = open_model(run)
    origin = pipeline.origin
    pipeline.save_pretrained(folder, _read_figures(origin.folder, origin.step))
    print_line(f"exported: {folder}")
    print_line(f"in Python: quintet.{type(pipeline).__name__}.from_pretrained({str(folder)!r})")
    print_next(("eval", folder))


def _read_figures(folder: Path, step: int | None) -> dict[str, float]:
    """What was measured of the weights that are exported: of this step, and not of the live ones."""
    from quintet.common.weights import checkpoint

    try:
        figures = json.loads(checkpoint.read_regular(folder / "eval.json"))
    except (OSError, ValueError, RecursionError):
        return {}
    if not isinstance(figures, dict) or figures.get("step") != step:
        return {}
    return {name: value for name, value in figures.items() if isinstance(value, float) and not name.startswith("live/")}
