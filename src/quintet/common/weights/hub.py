"""Models on the Hugging Face hub, only for those who name one: `hub:user/name[@revision][#hash]`.

Only safetensors, JSON and the texts of an export are transferred. A run records the commit and a hash of the files, so
that other files under the same name are refused, and so that a known commit opens from the local cache without network.
"""

from __future__ import annotations

import os
import re
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import Any

from quintet.common.files import one_line
from quintet.common.weights.checkpoint import MANIFEST
from quintet.common.weights.snapshot import Snapshot, content_hash
from quintet.config.text import HUB
from quintet.errors import RunError, UsageError

_FILES = ("*.safetensors", "*.json", "README.md", MANIFEST, "*.txt", "*.model")
"""Files that are transferred: those of exports, and those that models of `transformers` need."""
_PICKLES = (".bin", ".pt", ".pth", ".ckpt", ".pkl")
_REFERENCE = re.compile(r"hub:([\w.-]+/[\w.-]+)(?:@([\w./-]+))?(?:#([0-9a-f]{64}))?")
_COMMIT = re.compile(r"[0-9a-f]{40}")


def is_on_hub(reference: object) -> bool:
    return isinstance(reference, str) and reference.startswith(HUB)


def fetch(reference: str) -> Snapshot:
    """Download the files of a model, unless they are in the cache; UsageError if they are not those of the hash."""
    found = _REFERENCE.fullmatch(reference)
    if found is None:
        raise UsageError(f"{reference[:100]} is not of the form hub:USER/NAME or hub:USER/NAME@REVISION")
    name, revision, expected = found.groups()
    hub = _library()
    commit = revision if revision and _COMMIT.fullmatch(revision) else None
    folder = _cached(hub, name, commit) if commit else None
    if folder is None:
        with _explained(reference, "read"):
            info = hub.HfApi(endpoint=_endpoint()).model_info(name, revision=revision, timeout=30)
            _refuse_pickles(reference, [each.rfilename for each in info.siblings or ()])
            commit = str(info.sha)
            folder = _download(hub, name, commit)
    content = content_hash(folder)
    if expected is not None and expected != content:
        raise UsageError(
            f"{reference.partition('#')[0]} does not have the files that were recorded (their hash is {content[:12]}…, "
            f"not {expected[:12]}…); they were changed on the hub or in {folder}"
        )
    return Snapshot(folder, f"{HUB}{name}@{commit}#{content}")


def push(name: str, write: Callable[[Path], object]) -> str:
    """Upload the folder that `write` makes as the model `user/name`; returns its reference with the commit.

    A new repository is private."""
    if _REFERENCE.fullmatch(f"{HUB}{name}") is None or "@" in name or "#" in name:
        raise UsageError(f"--push {name[:100]} is not of the form USER/NAME")
    hub = _library()
    with tempfile.TemporaryDirectory(prefix="quintet-push-") as temporary:
        folder = Path(temporary) / "model"
        write(folder)
        with _explained(f"{HUB}{name}", "write"):
            api = hub.HfApi(endpoint=_endpoint())
            api.create_repo(name, private=True, exist_ok=True)
            done = api.upload_folder(repo_id=name, folder_path=folder, commit_message="Export of quintet")
            return f"{HUB}{name}@{done.oid}"


def _library() -> Any:
    try:
        return import_module("huggingface_hub")
    except ImportError:
        raise UsageError("models on the hub need the package huggingface_hub: pip install 'quintet[hf]'") from None


def _endpoint() -> str | None:
    """The address of the hub; None: its usual one."""
    return os.environ.get("HF_ENDPOINT")


def _download(hub: Any, name: str, commit: str, **options: Any) -> Path:
    patterns = list(_FILES)
    cache = os.environ.get("HF_HUB_CACHE")
    return Path(
        hub.snapshot_download(
            name, revision=commit, allow_patterns=patterns, endpoint=_endpoint(), cache_dir=cache, **options
        )
    )


def _cached(hub: Any, name: str, commit: str) -> Path | None:
    """The folder of a commit in the local cache, if it is there."""
    try:
        folder = _download(hub, name, commit, local_files_only=True)
    except OSError:
        return None
    return folder if any(folder.rglob("*.safetensors")) else None


def _refuse_pickles(reference: str, names: Sequence[str]) -> None:
    if any(name.endswith(".safetensors") for name in names):
        return
    pickles = [name for name in names if name.endswith(_PICKLES)]
    found = f"only {pickles[0]}, and quintet reads no pickle" if pickles else "so it is no model that quintet can open"
    raise UsageError(f"{reference} has no safetensors weights, {found}")


@contextmanager
def _explained(reference: str, use: str) -> Iterator[None]:
    """Turn errors of the hub into one sentence."""
    errors = import_module("huggingface_hub.errors")
    try:
        yield
    except errors.RevisionNotFoundError:
        raise UsageError(f"{reference} does not exist: the repository has no such revision") from None
    except errors.HFValidationError as error:
        raise UsageError(f"{reference} is not a valid name on the hub ({one_line(error)})") from None
    except errors.HfHubHTTPError as error:
        code = getattr(error.response, "status_code", None)
        if code in (401, 403, 404):
            does_not = "does not exist, or you may not read it" if use == "read" else "may not be written by you"
            raise UsageError(f"{reference} {does_not}: check the name, and log in with `hf auth login`") from None
        raise RunError(f"the hub did not answer as expected for {reference} ({one_line(error)})") from None
    except (OSError, errors.HTTPError) as error:
        raise RunError(
            f"the hub cannot be reached to {use} {reference} ({one_line(error)}); check the network"
            + ("" if use == "write" else ", or name a folder on this machine")
        ) from None
