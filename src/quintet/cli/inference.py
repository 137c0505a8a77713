"""The commands that apply a trained model: `encode`, `decode`, `embed`, `search` and `export`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Literal

import typer

from quintet.cli.shared import ANY_TEXT, ModelReference, open_model, print_line, print_next, print_result, say_skipped
from quintet.config.text import HUB
from quintet.errors import UsageError


def encode(
    run: ModelReference,
    data: Annotated[str, typer.Argument(help="Folder of media files, or folder of shards.")],
    out: Annotated[Path, typer.Option(help="Output folder for the codes.")] = Path("codes"),
    layer: Annotated[
        int | None,
        typer.Option(
            help="Write semantic tokens: clusters of the outputs of this layer of a mulan or HuBERT; 1 is the first."
        ),
    ] = None,
    clusters: Annotated[int | None, typer.Option(help="Number of semantic tokens; default: 256.")] = None,
    centroids: Annotated[
        Path | None, typer.Option(help="Folder of earlier semantic tokens whose clusters are used again.")
    ] = None,
    seed: Annotated[int, typer.Option(min=0, help="Random seed of clustering.")] = 0,
) -> None:
    """Encode files to codes: writes codes.safetensors, and items.jsonl in the same order."""
    if layer is not None or centroids is not None:
        _encode_semantic(run, data, out, layer, clusters, centroids, seed)
        return
    if clusters is not None:
        raise UsageError("--clusters is for semantic tokens: also name a layer with --layer N")
    from quintet import codes

    count = codes.encode_folder(open_model(run), data, out)
    print_line(f"{count} items encoded: {out / 'codes.safetensors'}")
    print_next(("decode", run, out, "--out", "decoded/"))


def _encode_semantic(
    run: str, data: str, out: Path, layer: int | None, clusters: int | None, centroids: Path | None, seed: int
) -> None:
    from quintet import semantic

    result = semantic.encode_folder(run, data, out, layer=layer, clusters=clusters, centroids=centroids, seed=seed)
    for line in result.lines:
        print_line(line)
    print_line(f"{result.items} items encoded, {result.rate:g} tokens per second: {out / 'codes.safetensors'}")
    print_next(("train", "soundstorm", data, "--tokenizer", "CODEC", f"data.semantic_tokens={out}"))


def decode(
    run: ModelReference,
    codes_folder: Annotated[Path, typer.Argument(metavar="CODES", help="Folder written by `quintet encode`.")],
    out: Annotated[Path, typer.Option(help="Output folder for the media files.")] = Path("decoded"),
) -> None:
    """Decode codes to media files."""
    from quintet import codes

    count = codes.decode_folder(open_model(run), codes_folder, out)
    print_line(f"{count} items decoded: {out}")


def embed(
    run: ModelReference,
    audio: Annotated[
        str | None, typer.Option(metavar="FOLDER", help="Folder of audio files, folder of shards, or one audio file.")
    ] = None,
    text: Annotated[list[str] | None, typer.Option(help="Text to embed; can be repeated.")] = None,
    out: Annotated[Path, typer.Option(help="New .npz file for the embeddings.")] = Path("embeddings.npz"),
) -> None:
    """Embed audio and texts in one space: writes the arrays audio, files, text and texts to an npz file."""
    from quintet import embeddings

    if audio is None and not text:
        raise UsageError("nothing to embed: pass --audio FOLDER, --text TEXT, or both")
    embeddings.refuse_existing(out)
    pipeline = open_model(run)
    text_vectors = embeddings.embed_texts(pipeline, text) if text else None
    media = embeddings.embed_media(pipeline, audio) if audio is not None else None
    if media is not None:
        say_skipped(media.skipped)
    embeddings.write_embeddings(out, media, text or [], text_vectors)
    print_line(f"{len(media.files) if media else 0} files and {len(text or [])} texts embedded: {out}")
    print_next(("search", run, audio or "FOLDER", "--text", ANY_TEXT))


def search(
    run: ModelReference,
    folder: Annotated[str, typer.Argument(help="Folder of media files, folder of shards, or one file.")],
    text: Annotated[list[str], typer.Option(help="Description to search for; can be repeated.")],
    top: Annotated[int, typer.Option(min=1, help="Number of files to print.")] = 5,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Find the files of a folder that best match a text."""
    from quintet import embeddings
    from quintet.common.printable import printable

    pipeline = open_model(run)
    text_vectors = embeddings.embed_texts(pipeline, text)
    media = embeddings.embed_media(pipeline, folder)
    say_skipped(media.skipped)
    found = [embeddings.rank(media, each, top) for each in text_vectors]
    if as_json:
        rows = [
            {"text": printable(query), "found": [{"file": each.file, "score": each.score} for each in best]}
            for query, best in zip(text, found, strict=True)
        ]
        print_result(json.dumps(rows, indent=1, ensure_ascii=False))
        return
    for query, best in zip(text, found, strict=True):
        print_result(f"{printable(query)} (of {len(media.files)} files)")
        for number, each in enumerate(best, start=1):
            print_result(f"{number:>4}  {each.score:7.4f}  {each.file}")
    print_next(("embed", run, "--audio", folder, "--out", "embeddings.npz"))


def export(
    run: ModelReference,
    folder: Annotated[Path | None, typer.Argument(help="New folder for the exported model.")] = None,
    push: Annotated[
        str | None,
        typer.Option(metavar="USER/NAME", help="Also upload it to the Hugging Face hub; a new repository is private."),
    ] = None,
    dtype: Annotated[
        Literal["float32", "bf16"],
        typer.Option(
            help="Precision of the stored weights. bf16 halves the size and rounds them, except those of a tokenizer "
            "inside that would change."
        ),
    ] = "float32",
) -> None:
    """Export a model (safetensors, config.json, model card) for from_pretrained and for other runs."""
    if folder is None and push is None:
        raise UsageError("name a new folder for the exported model, or a repository with --push USER/NAME")
    pipeline = open_model(run)
    origin = pipeline.origin
    metrics = _read_metrics(origin.folder, origin.step)
    places: list[str] = []

    def write(target: Path) -> None:
        if dtype == "bf16":
            import torch

            # The metrics are those of the weights before rounding.
            pipeline.save_pretrained(target, {}, torch.bfloat16)
        else:
            pipeline.save_pretrained(target, metrics)

    if folder is not None:
        write(folder)
        print_line(f"exported: {folder}")
        places.append(str(folder))
    if push is not None:
        from quintet.common.weights import hub

        print_line(f"pushed: {hub.push(push, write)}")
        places.append(f"{HUB}{push}")
    print_line(f"in Python: quintet.{type(pipeline).__name__}.from_pretrained({places[0]!r})")
    print_next(("eval", places[0], *(() if folder is not None else ("--out", "eval.json"))))


def _read_metrics(folder: Path, step: int | None) -> dict[str, float]:
    """Metrics of the exported weights: those of this step, without the metrics of the live weights."""
    from quintet.common.weights import checkpoint

    try:
        metrics = json.loads(checkpoint.read_regular(folder / "eval.json"))
    except (OSError, ValueError, RecursionError):
        return {}
    if not isinstance(metrics, dict) or metrics.get("step") != step:
        return {}
    return {name: value for name, value in metrics.items() if isinstance(value, float) and not name.startswith("live/")}
