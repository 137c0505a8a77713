"""Owns folders that `transformers` wrote: which one a reference means, what is in it, and reading it safely.

Everything is local: a reference is a folder, or a name that the hub's own cache already holds; nothing is ever
fetched, no pickle is read and no code of a model folder is run.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from torch import nn

from quintet.common import files
from quintet.common.weights import checkpoint
from quintet.config.text import PRETRAINED
from quintet.errors import UsageError

CONFIG = "config.json"


def load_transformers(what: str) -> Any:
    """Imported late, because it is optional and takes seconds; `what` needs it."""
    try:
        return import_module("transformers")
    except ImportError:
        raise UsageError(f"{what} needs the package transformers: pip install 'quintet[hf]'") from None


def find_folder(reference: str, what: str) -> Path:
    """The folder a reference means: itself, or where the hub's cache holds that name. `what` is being looked for."""
    folder = Path(reference).expanduser()
    if folder.is_dir():
        return folder
    load_transformers(f"{what}: {PRETRAINED}…")
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HFValidationError

    try:
        return Path(snapshot_download(reference, local_files_only=True))
    except HFValidationError:
        raise UsageError(f"{what}: there is no folder {reference}, and no model can have that name") from None
    except OSError:
        raise UsageError(
            f"{what}: {reference} is neither a folder nor in the local cache of Hugging Face; "
            f"fetch it with `hf download {reference}`, or name the folder it is in"
        ) from None


def kind_of(folder: Path) -> str | None:
    """What `transformers` calls the type of the model in a folder; none if it did not write it."""
    if not (folder / CONFIG).is_file():
        return None
    settings = checkpoint.read_json(folder, CONFIG.removesuffix(".json"))
    kind = settings.get("model_type") if isinstance(settings, dict) and "class" not in settings else None
    return kind if isinstance(kind, str) else None


def load_part(folder: Path, what: str, kind: str, **options: Any) -> Any:
    """What a class of `transformers` makes of a folder; `what` it should be."""
    with loading(folder, what):
        maker = getattr(load_transformers(what), kind)
        return maker.from_pretrained(folder, local_files_only=True, trust_remote_code=False, **options)


def load_model(folder: Path, what: str, unneeded: Sequence[str] = (), kind: str = "AutoModel") -> Any:
    """The model of a folder, frozen, on the CPU and in full precision; `what` it should be.

    Weights whose names begin with one of `unneeded` may be missing; any others would be random numbers.
    """
    refuse_pickle(folder)
    options = {"use_safetensors": True, "dtype": torch.float32, "output_loading_info": True}
    model, report = load_part(folder, what, kind, **options)
    absent = sorted(name for name in report["missing_keys"] if not name.startswith(tuple(unneeded)))
    if absent:
        raise UsageError(f"{folder} lacks weights of its {what}: {', '.join(absent[:3])} …")
    return frozen(model)


def frozen(model: nn.Module) -> nn.Module:
    return model.eval().requires_grad_(False)


def refuse_pickle(folder: Path) -> None:
    if not any(folder.glob("*.safetensors")):
        raise UsageError(
            f"{folder} has no weights as safetensors, and quintet reads no pickle; "
            "save the model again with a current `transformers` (save_pretrained)"
        )


@contextmanager
def loading(folder: Path, what: str) -> Iterator[None]:
    """What the library says about a folder it cannot use becomes one sentence; its progress bars stay away."""
    logging = load_transformers(what).utils.logging
    shown = logging.is_progress_bar_enabled()
    logging.disable_progress_bar()
    try:
        yield
    except (OSError, ValueError, KeyError, AttributeError, ImportError, RuntimeError, SafetensorError) as error:
        reason = files.one_line(error)
        raise UsageError(f"{folder} is not a {what} that `transformers` can load ({reason})") from None
    finally:
        if shown:
            logging.enable_progress_bar()


def digest(folder: Path, *about: Any) -> str:
    """A hash over the files that decide what a model makes, and over `about`."""
    names = ("*.json", "*.txt", "*.model", "*.safetensors")
    files = sorted({path for pattern in names for path in folder.glob(pattern) if path.is_file()})
    parts = {path.name: checkpoint.hash_file(path) for path in files}
    return hashlib.sha256(json.dumps([*about, parts], sort_keys=True).encode()).hexdigest()
