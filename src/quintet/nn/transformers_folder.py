"""Loads models, tokenizers and configurations that `transformers` saved, safely and without network access.

A reference is a folder, or the name of a model that is already in the local Hugging Face cache. Nothing is downloaded,
no pickle is read and no code of a model folder is executed.
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


def load_transformers(role: str) -> Any:
    """Import `transformers` on demand, because it is optional and slow; `role` names the feature in the error."""
    try:
        return import_module("transformers")
    except ImportError:
        raise UsageError(f"{role} needs the package transformers: pip install 'quintet[hf]'") from None


def find_folder(reference: str, role: str) -> Path:
    """The folder of a reference: a path, or a name in the local Hugging Face cache. `role` names the use in errors."""
    folder = Path(reference).expanduser()
    if folder.is_dir():
        return folder
    load_transformers(f"{role}: {PRETRAINED}…")
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HFValidationError

    try:
        return Path(snapshot_download(reference, local_files_only=True))
    except HFValidationError:
        raise UsageError(f"{role}: {reference} is neither a folder nor a valid model name") from None
    except OSError:
        raise UsageError(
            f"{role}: {reference} is neither a folder nor in the local Hugging Face cache; "
            f"download it with `hf download {reference}`, or give its folder"
        ) from None


def kind_of(folder: Path) -> str | None:
    """The `model_type` of the `transformers` model in a folder; None if it is not such a folder."""
    if not (folder / CONFIG).is_file():
        return None
    settings = checkpoint.read_json(folder, CONFIG.removesuffix(".json"))
    kind = settings.get("model_type") if isinstance(settings, dict) and "class" not in settings else None
    return kind if isinstance(kind, str) else None


def load_part(folder: Path, role: str, class_name: str, **options: Any) -> Any:
    """Load an object from a folder with a class of `transformers`; `role` names its use in errors."""
    with loading(folder, role):
        loader = getattr(load_transformers(role), class_name)
        return loader.from_pretrained(folder, local_files_only=True, trust_remote_code=False, **options)


def load_model(folder: Path, role: str, unneeded: Sequence[str] = (), class_name: str = "AutoModel") -> Any:
    """The model of a folder, frozen, on the CPU and in fp32; `role` names its use in errors.

    Weights whose names start with one of `unneeded` may be missing; other missing weights are an error, because they
    would be random.
    """
    refuse_pickle(folder)
    options = {"use_safetensors": True, "dtype": torch.float32, "output_loading_info": True}
    model, report = load_part(folder, role, class_name, **options)
    absent = sorted(name for name in report["missing_keys"] if not name.startswith(tuple(unneeded)))
    if absent:
        raise UsageError(f"{folder} lacks weights of its {role}: {', '.join(absent[:3])} …")
    return frozen(model)


def frozen(model: nn.Module) -> nn.Module:
    return model.eval().requires_grad_(False)


def refuse_pickle(folder: Path) -> None:
    if not any(folder.glob("*.safetensors")):
        raise UsageError(
            f"{folder} has no safetensors weights, and quintet reads no pickle; "
            "save the model again with a current version of `transformers` (save_pretrained)"
        )


@contextmanager
def loading(folder: Path, role: str) -> Iterator[None]:
    """Turn errors of `transformers` into one-sentence `UsageError`s, and hide its progress bars."""
    logging = load_transformers(role).utils.logging
    shown = logging.is_progress_bar_enabled()
    logging.disable_progress_bar()
    try:
        yield
    except (OSError, ValueError, KeyError, AttributeError, ImportError, RuntimeError, SafetensorError) as error:
        reason = files.one_line(error)
        raise UsageError(f"{folder} is not a {role} that `transformers` can load ({reason})") from None
    finally:
        if shown:
            logging.enable_progress_bar()


def digest(folder: Path, *settings: Any) -> str:
    """A hash of the files that affect the output of a model, and of `settings`."""
    names = ("*.json", "*.txt", "*.model", "*.safetensors")
    files = sorted({path for pattern in names for path in folder.glob(pattern) if path.is_file()})
    parts = {path.name: checkpoint.hash_file(path) for path in files}
    return hashlib.sha256(json.dumps([*settings, parts], sort_keys=True).encode()).hexdigest()
