"""Folders of `transformers` that try to make it unpickle a file, run their code, or read files of other folders."""

from __future__ import annotations

import json
import os
import pickle
import shutil
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from audio_models import make_model
from quintet.errors import UsageError
from quintet.families.audio_codec.pretrained import PretrainedCodec
from quintet.nn.pretrained_audio import PretrainedAudioEncoder
from quintet.nn.pretrained_text import PretrainedText
from quintet.nn.text import TokenizerFolder
from text_models import make_folder

INDEX = "model.safetensors.index.json"


def use_text_encoder(folder: Path) -> object:
    return PretrainedText(f"hf:{folder}", None, 32).embed(["a red circle"])


LOADERS: dict[str, Callable[[Path], object]] = {
    "t5": use_text_encoder,
    "hubert": PretrainedAudioEncoder,
    "encodec": PretrainedCodec.from_transformers,
}


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    root = tmp_path_factory.mktemp("models")
    return {kind: (make_folder if kind == "t5" else make_model)(root / kind, kind) for kind in LOADERS}


class Trap:
    """Unpickling it creates a file."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, (str(self.path),)


def sharded(source: Path, target: Path, shard: str) -> dict[str, Any]:
    """A copy with an index that says that all weights are in `shard`, and with other safetensors beside it."""
    shutil.copytree(source, target)
    weights = load_file(target / "model.safetensors")
    (target / "model.safetensors").rename(target / "other.safetensors")
    index = {"metadata": {"total_size": 1}, "weight_map": dict.fromkeys(weights, shard)}
    (target / INDEX).write_text(json.dumps(index), encoding="utf-8")
    return weights


@pytest.mark.parametrize("kind", LOADERS)
def test_an_index_that_names_a_pickle_is_refused(kind: str, models: dict[str, Path], tmp_path: Path) -> None:
    harmless, hostile, trap = tmp_path / "harmless", tmp_path / "hostile", tmp_path / "unpickled"
    torch.save(sharded(models[kind], harmless, "pytorch_model.bin"), harmless / "pytorch_model.bin")
    sharded(models[kind], hostile, "pytorch_model.bin")
    (hostile / "pytorch_model.bin").write_bytes(pickle.dumps(Trap(trap)))
    for folder in (harmless, hostile):
        with pytest.raises(UsageError, match=r"index\.json names 'pytorch_model\.bin'.* reads no pickle"):
            LOADERS[kind](folder)
    assert not trap.exists()


@pytest.mark.parametrize(
    "shard", ["sub/own.safetensors", "../away.safetensors", "/away.safetensors", "link.safetensors"]
)
def test_an_index_names_only_files_of_its_own_folder(shard: str, models: dict[str, Path], tmp_path: Path) -> None:
    folder = tmp_path / "model"
    sharded(models["t5"], folder, str(tmp_path / "away.safetensors") if shard.startswith("/") else shard)
    (folder / "sub").mkdir()
    for copy in (folder / "sub/own.safetensors", tmp_path / "away.safetensors"):
        shutil.copy(models["t5"] / "model.safetensors", copy)
    (folder / "link.safetensors").symlink_to(tmp_path / "away.safetensors")
    with pytest.raises(UsageError, match="not a safetensors file of this folder"):
        use_text_encoder(folder)


def test_a_pipe_that_an_index_names_is_not_waited_for(models: dict[str, Path], tmp_path: Path) -> None:
    sharded(models["t5"], tmp_path / "model", "pipe.safetensors")
    os.mkfifo(tmp_path / "model/pipe.safetensors")
    with pytest.raises(UsageError, match=r"'pipe\.safetensors', which is not a safetensors file"):
        use_text_encoder(tmp_path / "model")


@pytest.mark.parametrize(
    "text", ["[" * 100_000, "[]", "{}", '{"weight_map": []}', '{"weight_map": {"a": 1}, "metadata": {}}', "\0"]
)
def test_a_damaged_index_is_one_sentence(text: str, models: dict[str, Path], tmp_path: Path) -> None:
    sharded(models["t5"], tmp_path / "model", "other.safetensors")
    (tmp_path / "model" / INDEX).write_text(text, encoding="utf-8")
    with pytest.raises(UsageError, match="model"):
        use_text_encoder(tmp_path / "model")


def test_shards_in_the_folder_and_in_the_cache_of_the_hub_are_read(models: dict[str, Path], tmp_path: Path) -> None:
    """The cache consists of links from `snapshots/REVISION` to `blobs`."""
    folder, cached = tmp_path / "model", tmp_path / "cache/snapshots/abc"
    sharded(models["t5"], folder, "other.safetensors")
    shutil.copytree(folder, tmp_path / "cache/blobs")
    cached.mkdir(parents=True)
    for path in (tmp_path / "cache/blobs").iterdir():
        (cached / path.name).symlink_to(f"../../blobs/{path.name}")
    expected, _ = PretrainedText(str(models["t5"]), None, 32).embed(["a red circle"])
    for found in (folder, cached):
        assert torch.equal(PretrainedText(str(found), None, 32).embed(["a red circle"])[0], expected)


@pytest.mark.parametrize(
    ("key", "value"),
    [("transformers_weights", "sub/model.safetensors.index.json"), ("attn_implementation", "stranger/kernel")],
)
@pytest.mark.parametrize("kind", LOADERS)
def test_keys_that_load_other_files_are_refused(
    kind: str, key: str, value: str, models: dict[str, Path], tmp_path: Path
) -> None:
    folder = shutil.copytree(models[kind], tmp_path / "model")
    settings = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**settings, key: value}), encoding="utf-8")
    with pytest.raises(UsageError, match=f"sets {key} to .*remove the key"):
        LOADERS[kind](folder)


@pytest.mark.parametrize("kind", LOADERS)
def test_an_adapter_is_refused(kind: str, models: dict[str, Path], tmp_path: Path) -> None:
    folder = shutil.copytree(models[kind], tmp_path / "model")
    (folder / "adapter_config.json").write_text('{"base_model_name_or_path": "somebody/else"}', encoding="utf-8")
    with pytest.raises(UsageError, match="holds an adapter"):
        LOADERS[kind](folder)


@pytest.mark.parametrize("known", [True, False], ids=["known type", "unknown type"])
@pytest.mark.parametrize("kind", LOADERS)
def test_code_in_a_folder_is_never_executed(
    kind: str, known: bool, models: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trap = tmp_path / "executed"
    monkeypatch.setattr("builtins.input", lambda *_: "y")  # `transformers` asks, and must not
    folder = shutil.copytree(models[kind], tmp_path / "model")
    (folder / "code.py").write_text(f"import os\nos.mkdir({str(trap)!r})\nclass Any: pass\n", encoding="utf-8")
    own = dict.fromkeys(("AutoConfig", "AutoModel", "AutoModelForTextEncoding", "AutoFeatureExtractor"), "code.Any")
    code = {"auto_map": {**own, "AutoTokenizer": ["code.Any", "code.Any"]}}
    for name in ("config.json", "tokenizer_config.json", "preprocessor_config.json"):
        settings = json.loads((folder / name).read_text()) if (folder / name).exists() else {}
        changes = {**code, **({} if known else {"model_type": "strange"})}
        (folder / name).write_text(json.dumps({**settings, **changes}), encoding="utf-8")
    for load in (LOADERS[kind], lambda path: TokenizerFolder(str(path)).encode(["a"], 8)):
        with suppress(UsageError):  # refused, or read without its code
            load(folder)
    assert not trap.exists()
