"""Loads models, tokenizers and configurations that `transformers` saved, safely and without network access.

A reference is a folder, or the name of a model that is already in the local Hugging Face cache. Nothing is downloaded,
no pickle is read and no code of a model folder is executed. Settings by which a folder could make `transformers` read
anything but its own safetensors files are refused before `transformers` sees the folder: it trusts them.
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
INDEX_SUFFIX = ".safetensors.index.json"
ADAPTER = "adapter_config.json"
DIFFUSERS = "diffusers:"
"""Prefix of the kind of a model that `diffusers` saved."""
WEIGHTS_KEY = "transformers_weights"
"""Key of config.json that names another file of weights."""
KERNEL_KEYS = frozenset({"attn_implementation", "_attn_implementation", "_attn_implementation_internal"})
"""Keys of config.json whose value can be a repository of compiled code, which `transformers` would download."""


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
    """The `model_type` of the `transformers` model in a folder, or `diffusers:CLASS`; None if it is no such folder."""
    if not (folder / CONFIG).is_file():
        return None
    settings = checkpoint.read_json(folder, CONFIG.removesuffix(".json"))
    if not isinstance(settings, dict) or "class" in settings:
        return None
    kind = settings.get("model_type")
    if kind is None and "_diffusers_version" in settings:
        kind = f"{DIFFUSERS}{settings.get('_class_name')}"
    return kind if isinstance(kind, str) else None


def load_part(folder: Path, role: str, class_name: str, **options: Any) -> Any:
    """Load an object from a folder with a class of `transformers`; `role` names its use in errors."""
    _check_folder(folder, role)
    with loading(folder, role):
        loader = getattr(load_transformers(role), class_name)
        return loader.from_pretrained(folder, local_files_only=True, trust_remote_code=False, **options)


def load_model(folder: Path, role: str, unneeded: Sequence[str] = (), class_name: str = "AutoModel") -> Any:
    """The model of a folder, frozen, on the CPU and in fp32; `role` names its use in errors.

    Weights whose names start with one of `unneeded` may be missing; other missing weights are an error, because they
    would be random.
    """
    check_weights(folder, role)
    options = {"use_safetensors": True, "dtype": torch.float32, "output_loading_info": True}
    model, report = load_part(folder, role, class_name, **options)
    absent = sorted(name for name in report["missing_keys"] if not name.startswith(tuple(unneeded)))
    if absent:
        raise UsageError(f"{folder} lacks weights of its {role}: {', '.join(absent[:3])} …")
    return frozen(model)


def frozen(model: nn.Module) -> nn.Module:
    return model.eval().requires_grad_(False)


def check_weights(folder: Path, role: str) -> None:
    """Raise `UsageError` unless all weights of a folder are safetensors files in it; `role` names its use in errors.

    An index lists the file of each tensor. `transformers` opens a listed file by its suffix, any other as a pickle.
    """
    if not any(folder.glob("*.safetensors")):
        raise UsageError(
            f"{folder} has no safetensors weights, and quintet reads no pickle; "
            "save the model again with a current version of `transformers` (save_pretrained)"
        )
    for index in sorted(folder.glob(f"*{INDEX_SUFFIX}")):
        content = _read_settings(index, role)
        files = content.get("weight_map")
        if not isinstance(files, dict) or not isinstance(content.get("metadata"), dict):
            raise UsageError(f"{index} is not an index of weights; download the folder again")
        for name in sorted({str(each) for each in files.values()}):
            if not _is_own_safetensors(folder, name):
                raise UsageError(
                    f"{index} names {name[:100]!r}, which is not a safetensors file of this folder, and quintet reads "
                    "no pickle; save the model again with a current version of `transformers` (save_pretrained)"
                )


def _is_own_safetensors(folder: Path, name: str) -> bool:
    """Whether a name is a regular safetensors file in the folder. The files of the Hugging Face cache are links into
    the folder `blobs` of the same model."""
    if not name.endswith(".safetensors") or Path(name).name != name or "\0" in name:
        return False
    home = folder.resolve()
    return (folder / name).is_file() and (folder / name).resolve().parent in (home, home.parent.parent / "blobs")


def _check_folder(folder: Path, role: str) -> None:
    """Refuse settings that add code, weights or adapters from elsewhere. Code that `auto_map` names is never executed,
    because `trust_remote_code` is False."""
    if (folder / ADAPTER).exists():
        raise UsageError(f"{folder} holds an adapter ({ADAPTER}); merge it into the model and save that instead")
    if (folder / CONFIG).is_file():
        check_settings(_read_settings(folder / CONFIG, role), str(folder / CONFIG))


def check_settings(settings: dict[str, Any], where: str) -> None:
    """Raise `UsageError` for a key of a configuration that would load more than the weights beside it."""
    for key, value in _entries(settings):
        if key == WEIGHTS_KEY or (key in KERNEL_KEYS and "/" in str(value)):
            raise UsageError(
                f"{where} sets {key} to {str(value)[:100]!r}, which would load more than the weights of its folder; "
                "remove the key"
            )


def _entries(value: Any) -> Iterator[tuple[str, Any]]:
    """Every key of a tree of settings with its value."""
    if isinstance(value, dict):
        yield from value.items()
    if isinstance(value, (dict, list)):
        for each in value.values() if isinstance(value, dict) else value:
            yield from _entries(each)


def _read_settings(path: Path, role: str) -> dict[str, Any]:
    with loading(path.parent, role):
        settings = json.loads(checkpoint.read_regular(path))
        list(_entries(settings))  # raises if it is nested too deeply
    if not isinstance(settings, dict):
        raise UsageError(f"{path} does not contain a JSON object")
    return settings


@contextmanager
def loading(folder: Path, role: str) -> Iterator[None]:
    """Turn errors of `transformers` into one-sentence `UsageError`s, and hide its progress bars."""
    logging = load_transformers(role).utils.logging
    shown = logging.is_progress_bar_enabled()
    logging.disable_progress_bar()
    try:
        yield
    except (
        OSError,
        ValueError,
        TypeError,
        KeyError,
        AttributeError,
        ImportError,
        RuntimeError,
        SafetensorError,
    ) as error:
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
