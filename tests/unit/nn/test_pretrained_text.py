"""Tiny random text encoders of `transformers`, and their cache under damage, kills and concurrency."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from quintet.errors import RunError, UsageError
from quintet.nn.pretrained_text import PretrainedText
from text_models import WORDS, make_folder

TEXTS = ["a red circle", "blue", "", "a blue square left", "a red circle"]


@pytest.fixture(scope="module")
def t5(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_folder(tmp_path_factory.mktemp("models") / "t5")


@pytest.fixture(autouse=True)
def no_network(monkeypatch: pytest.MonkeyPatch) -> None:
    import socket

    def refuse(*_: Any) -> None:
        raise AssertionError("the network was used")

    monkeypatch.setattr(socket.socket, "connect", refuse)
    monkeypatch.setattr(socket, "getaddrinfo", refuse)


def entries(cache: Path) -> list[Path]:
    return sorted(cache.rglob("*.safetensors"))


def forbid_the_model(encoder: PretrainedText) -> None:
    def refuse(*_: Any, **__: Any) -> Tensor:
        raise AssertionError("the model was called")

    encoder._model = refuse  # type: ignore[assignment]


# --- embeddings ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["t5", "whole t5", "bert"])
def test_embeddings_equal_those_of_transformers(kind: str, tmp_path: Path) -> None:
    from transformers import AutoModel, AutoTokenizer

    folder = make_folder(tmp_path / "model", kind)
    encoder = PretrainedText(f"hf:{folder}", None, 32)
    vectors, mask = encoder.embed(TEXTS)
    assert encoder.dim == 16
    assert vectors.dtype == torch.float32
    assert vectors.shape == (5, 8, 16)
    assert mask.sum(1).tolist() == [4, 2, 1, 5, 4]
    assert (vectors[~mask] == 0).all()
    model, tokenizer = AutoModel.from_pretrained(folder).eval(), AutoTokenizer.from_pretrained(folder)
    network = model.encoder if kind == "whole t5" else model
    for text, row, valid_mask in zip(TEXTS, vectors, mask, strict=True):
        if kind == "t5":  # its folder holds the encoder alone, which AutoModel does not read
            network = encoder._model
        tokens = tokenizer([text], return_tensors="pt")
        expected = network(input_ids=tokens.input_ids).last_hidden_state[0]
        torch.testing.assert_close(row[valid_mask], expected, rtol=1e-3, atol=1e-3)
    assert not any(parameter.requires_grad for parameter in encoder._model.parameters())
    assert not encoder._model.training


def test_a_tokenizer_that_is_only_a_sentencepiece_file(t5: Path, tmp_path: Path) -> None:
    """As in the folders of T5 1.1."""
    import sentencepiece

    sentences = iter(["a red circle", "a blue square left", "red square", "blue circle"] * 5)
    with (tmp_path / "spiece.model").open("wb") as file:
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=sentences, model_writer=file, vocab_size=22, pad_id=0, eos_id=1, unk_id=2, bos_id=-1,
            minloglevel=2,
        )  # fmt: skip
    make_folder(tmp_path, vocabulary=256)
    for name in ("tokenizer.json", "tokenizer_config.json"):
        (tmp_path / name).unlink()
    encoder = PretrainedText(str(tmp_path), None, 32)
    _, mask = encoder.embed(["a red circle"])
    pieces = sentencepiece.SentencePieceProcessor(model_file=str(tmp_path / "spiece.model")).encode("a red circle")
    assert mask.sum() == len(pieces) + 1
    assert encoder._tokenizer("a red circle")["input_ids"] == [*pieces, 1]


def test_a_text_does_not_depend_on_the_batch(t5: Path) -> None:
    encoder = PretrainedText(str(t5), None, 32)
    together, mask = encoder.embed(TEXTS)
    for number, text in enumerate(TEXTS):
        single, own = encoder.embed([text])
        torch.testing.assert_close(together[number][mask[number]], single[0][own[0]], rtol=1e-3, atol=1e-3)


def test_several_batches_of_texts_keep_their_order(t5: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("quintet.nn.pretrained_text._MAX_BATCH_SIZE", 2)
    texts = [f"{colour} {shape}" for colour in ("red", "blue", "a") for shape in ("circle", "square", "left")]
    encoder = PretrainedText(str(t5), None, 32)
    together, _ = encoder.embed(texts)
    singly = torch.cat([encoder.embed([text])[0] for text in texts])
    torch.testing.assert_close(together, singly, rtol=1e-3, atol=1e-3)
    assert len({tuple(row.flatten().tolist()) for row in together}) == 9


def test_embeddings_can_be_used_in_an_autograd_graph(t5: Path) -> None:
    vectors, _ = PretrainedText(str(t5), None, 32).embed(["a red circle"])
    layer = torch.nn.Linear(16, 4)
    layer(vectors).sum().backward()
    assert layer.weight.grad is not None


def test_no_texts_and_invalid_unicode(t5: Path, tmp_path: Path) -> None:
    encoder = PretrainedText(str(t5), tmp_path, 32)
    vectors, mask = encoder.embed([])
    assert (vectors.shape, mask.shape) == ((0, 8, 16), (0, 8))
    assert encoder.embed(["red \udcff"])[1].sum() == 3
    assert encoder.embed(["red ?"])[1].sum() == 3
    assert encoder.hits == 1


def test_long_texts_are_truncated_with_one_warning(t5: Path, tmp_path: Path) -> None:
    cond: list[str] = []
    encoder = PretrainedText(str(t5), tmp_path, 4, notice=cond.append)
    assert encoder.embed(["a red circle"])[1].sum() == 4
    assert cond == []
    vectors, mask = encoder.embed(["a red circle left", "a blue square left a"])
    assert (vectors.shape, mask.sum().item()) == ((2, 4, 16), 8)
    encoder.embed(["blue " * 9])
    assert len(cond) == 1
    assert "max_length is 4 tokens" in cond[0]
    again: list[str] = []
    PretrainedText(str(t5), tmp_path, 4, notice=again.append).embed(["a red circle left"])
    assert again == cond, "also where the cache knew the text"
    with pytest.warns(UserWarning, match="max_length is 4 tokens"):
        PretrainedText(str(t5), None, 4).embed(["blue " * 9])


def test_the_limit_of_the_model_holds_too(tmp_path: Path) -> None:
    cond: list[str] = []
    encoder = PretrainedText(str(make_folder(tmp_path / "m")), None, 1000, notice=cond.append)
    assert encoder.embed(["red " * 100])[1].sum() == 64
    assert "lower limit" in cond[0]


# --- the cache ----------------------------------------------------------------------------------------------------


def test_cached_texts_need_no_model(t5: Path, tmp_path: Path) -> None:
    first = PretrainedText(str(t5), tmp_path, 32)
    fresh = first.embed(TEXTS)
    assert (first.hits, first.misses) == (0, 4)
    assert len(entries(tmp_path)) == 4
    second = PretrainedText(str(t5), tmp_path, 32)
    forbid_the_model(second)
    cached = second.embed(TEXTS)
    assert (second.hits, second.misses, second.damaged) == (4, 0, 0)
    assert torch.equal(fresh[0], cached[0])
    assert torch.equal(fresh[1], cached[1])
    assert "_tokenizer" not in vars(second), "nor a tokenizer"
    with pytest.raises(AssertionError, match="the model was called"):
        second.embed(["left"])


def test_model_tokenizer_and_length_are_part_of_the_cache_key(t5: Path, tmp_path: Path) -> None:
    def cache_of(folder: Path, length: int = 32) -> Path | None:
        return PretrainedText(str(folder), tmp_path / "cache", length).cache

    same, other = make_folder(tmp_path / "same"), make_folder(tmp_path / "other", seed=1)
    assert cache_of(same) == cache_of(t5)
    assert len({cache_of(t5), cache_of(other), cache_of(t5, 16)}) == 3
    text = (same / "tokenizer.json").read_text()
    (same / "tokenizer.json").write_text(text.replace('"red"', '"green"'))
    assert cache_of(same) != cache_of(t5)


def damage(path: Path, how: str) -> None:
    raw = bytearray(path.read_bytes())
    if how == "cut":
        del raw[-5:]
    elif how == "empty":
        raw.clear()
    elif how == "garbage":
        raw[:] = os.urandom(300)
    elif how == "zeros":
        raw[len(raw) // 2 :] = bytes(len(raw) - len(raw) // 2)
    else:
        raw[int(how)] ^= 0x10
    path.write_bytes(raw)


@pytest.mark.parametrize("how", ["cut", "empty", "garbage", "zeros", "-1", "-40", "-100", "3", "30", "60", "100"])
def test_a_damaged_entry_is_computed_again(how: str, t5: Path, tmp_path: Path) -> None:
    sound = PretrainedText(str(t5), tmp_path, 32).embed(["a red circle"])[0]
    (entry,) = entries(tmp_path)
    raw = entry.read_bytes()
    damage(entry, how)
    encoder = PretrainedText(str(t5), tmp_path, 32)
    assert torch.equal(encoder.embed(["a red circle"])[0], sound)
    assert (encoder.hits, encoder.misses, encoder.damaged) == (0, 1, 1)
    assert entry.read_bytes() == raw
    assert encoder.embed(["a red circle"])[0].equal(sound)
    assert encoder.hits == 1


def test_every_flipped_bit_is_harmless(t5: Path, tmp_path: Path) -> None:
    """A damaged entry is refused, or has the same content."""
    encoder = PretrainedText(str(t5), tmp_path, 32)
    sound = encoder.embed(["blue"])[0]
    (entry,) = entries(tmp_path)
    raw = entry.read_bytes()
    for position in range(len(raw)):
        flipped = bytearray(raw)
        flipped[position] ^= 1 << position % 8
        entry.write_bytes(flipped)
        read = encoder._read("blue")
        assert read is None or torch.equal(read.vectors.float(), sound[0, :2]), position


def test_an_entry_of_another_text_is_refused(t5: Path, tmp_path: Path) -> None:
    encoder = PretrainedText(str(t5), tmp_path, 32)
    blue, red = encoder.embed(["blue"])[0], encoder.embed(["red"])[0]
    one, two = encoder._path("blue"), encoder._path("red")
    assert one is not None
    assert two is not None
    two.write_bytes(one.read_bytes())
    assert not torch.equal(blue, red)
    assert torch.equal(encoder.embed(["red"])[0], red)
    assert encoder.damaged == 1


KILLED = """
import io, os, signal, sys
from pathlib import Path
from quintet.common import files
from quintet.nn.pretrained_text import PretrainedText
encoder = PretrainedText(sys.argv[1], Path(sys.argv[2]), 32)
encoder.embed(["red"])
opened = files.open_no_follow
class Half(io.RawIOBase):
    def __init__(self, file): self.file = file
    def writable(self): return True
    def write(self, raw):
        self.file.write(raw[: len(raw) // 2])
        os.kill(os.getpid(), signal.SIGKILL)
files.open_no_follow = lambda path, mode: Half(opened(path, mode))
encoder.embed(["red", "blue"])
"""


def test_a_kill_during_writing_leaves_only_complete_entries(t5: Path, tmp_path: Path) -> None:
    done = subprocess.run([sys.executable, "-c", KILLED, str(t5), str(tmp_path)], check=False, timeout=120)
    assert done.returncode == -signal.SIGKILL
    assert len(entries(tmp_path)) == 1
    assert len([path for path in tmp_path.rglob("*") if path.is_file()]) == 2, "the half one has another name"
    encoder = PretrainedText(str(t5), tmp_path, 32)
    encoder.embed(["red", "blue"])
    assert (encoder.hits, encoder.misses, encoder.damaged) == (1, 1, 0)


OTHER = """
import sys
from pathlib import Path
from quintet.nn.pretrained_text import PretrainedText
encoder = PretrainedText(sys.argv[1], Path(sys.argv[2]), 32)
encoder.embed([])
print("ready", flush=True)
for text in sys.stdin.read().splitlines():
    encoder.embed([text])
assert encoder.damaged == 0
"""


def test_two_processes_at_once(t5: Path, tmp_path: Path) -> None:
    texts = [f"{first} {second}" for first in WORDS[3:] for second in WORDS[3:]]
    command = [sys.executable, "-c", OTHER, str(t5), str(tmp_path)]
    encoder = PretrainedText(str(t5), tmp_path, 32)
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as other:
        assert other.stdin is not None
        assert other.stdout is not None
        assert other.stdout.readline() == "ready\n"
        other.stdin.write("\n".join(texts))
        other.stdin.close()
        for text in texts:
            encoder.embed([text])
        assert other.wait(timeout=120) == 0
    assert encoder.damaged == 0
    assert len(entries(tmp_path)) == len([path for path in tmp_path.rglob("*") if path.is_file()]) == 36
    encoder = PretrainedText(str(t5), tmp_path, 32)
    forbid_the_model(encoder)
    encoder.embed(texts)
    assert encoder.hits == 36


def test_an_unwritable_cache_is_named(t5: Path, tmp_path: Path) -> None:
    (tmp_path / "text").write_text("a file where a folder should be")
    with pytest.raises(RunError, match=rf"cannot write to the cache folder {tmp_path}.*XDG_CACHE_HOME"):
        PretrainedText(str(t5), tmp_path, 32).embed(["red"])


def test_large_values_are_stored_in_fp32(t5: Path, tmp_path: Path) -> None:
    encoder = PretrainedText(str(t5), tmp_path, 32)
    encoder._model.get_parameter("encoder.final_layer_norm.weight").mul_(1e6)
    fresh = encoder.embed(["red"])[0]
    assert fresh.abs().max() > 70_000
    assert torch.equal(encoder.embed(["red"])[0], fresh)
    assert encoder.hits == 1


def test_non_finite_embeddings_are_not_cached(t5: Path, tmp_path: Path) -> None:
    encoder = PretrainedText(str(t5), tmp_path, 32)
    encoder._model.get_parameter("encoder.final_layer_norm.weight").fill_(torch.nan)
    with pytest.raises(RunError, match="non-finite embeddings for 'red'"):
        encoder.embed(["red"])
    assert entries(tmp_path) == []


# --- what cannot be loaded ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["google/t5-none", "no-such-model"])
def test_a_missing_model_says_how_to_download_it(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
    with pytest.raises(UsageError, match=f"hf download {name}"):
        PretrainedText(f"hf:{name}", None, 32)


def test_a_missing_folder_is_refused() -> None:
    with pytest.raises(UsageError, match="/no/such/folder is neither a folder"):
        PretrainedText("hf:/no/such/folder", None, 32)


def test_a_name_in_the_hugging_face_cache_is_found(t5: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
    revision = "0123456789abcdef0123456789abcdef01234567"
    retained = tmp_path / "models--someone--tiny"
    (retained / "refs").mkdir(parents=True)
    (retained / "refs" / "main").write_text(revision)
    (retained / "snapshots").mkdir()
    (retained / "snapshots" / revision).symlink_to(t5)
    encoder = PretrainedText("hf:someone/tiny", None, 32)
    assert encoder.embed(["red"])[0].equal(PretrainedText(str(t5), None, 32).embed(["red"])[0])


def test_a_folder_without_a_model_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="not a text encoder"):
        PretrainedText(str(tmp_path), None, 32)
    (tmp_path / "config.json").write_text('{"model_type": "vit", "hidden_size": 8}')
    with pytest.raises(UsageError, match="no safetensors weights"):
        PretrainedText(str(tmp_path), tmp_path / "cache", 32)


def test_pickled_weights_are_refused(t5: Path, tmp_path: Path) -> None:
    folder = make_folder(tmp_path / "model")
    (folder / "model.safetensors").rename(folder / "pytorch_model.bin")
    with pytest.raises(UsageError, match="reads no pickle"):
        PretrainedText(str(folder), None, 32)


def test_missing_weights_are_refused(tmp_path: Path) -> None:
    """The library would initialise them randomly."""
    from safetensors.torch import load_file, save_file

    folder = make_folder(tmp_path / "model")
    weights = load_file(folder / "model.safetensors")
    del weights["encoder.final_layer_norm.weight"]
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(UsageError, match=r"lacks weights.*final_layer_norm"):
        PretrainedText(str(folder), None, 32).embed(["red"])


def test_damaged_weights_give_a_one_line_error(tmp_path: Path) -> None:
    folder = make_folder(tmp_path / "model")
    (folder / "model.safetensors").write_bytes(b"not weights")
    with pytest.raises(UsageError, match="not a text encoder"):
        PretrainedText(str(folder), None, 32).embed(["red"])


def test_a_missing_package_says_what_to_install(t5: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "transformers", None)
    for reference in (str(t5), "google/t5-v1_1-base"):
        with pytest.raises(UsageError, match=r"pip install 'quintet\[hf\]'"):
            PretrainedText(f"hf:{reference}", None, 32)


def test_transformers_is_imported_on_demand() -> None:
    code = "import sys, quintet.nn.pretrained_text; print('transformers' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=120)
    assert done.stdout.strip() == "False"
