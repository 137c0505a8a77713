"""The pipeline of every recipe, from an exported folder: used without the code that trains, and refused where it is
not what it should be."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import quintet
from contract.cases import GOLDEN
from helpers import copied, executed, python
from quintet import registry
from quintet.common.batch import Batch
from quintet.common.rng import ItemRNG
from quintet.errors import CheckpointError, QuintetError, UsageError
from quintet.pipelines.base import Pipeline

HERE = Path(__file__).parents[1]


@pytest.fixture
def golden(recipe: str) -> Path:
    return GOLDEN / f"{recipe}-format-1"


@pytest.fixture
def pipeline_class(recipe: str) -> type[Pipeline[Any]]:
    return registry.find(recipe).pipeline_class()


def test_an_export_is_used_where_nothing_of_training_can_be_imported(recipe: str, golden: Path, tmp_path: Path) -> None:
    words = python("-m", "contract.use_pipeline", recipe, golden / "hub", golden / "data", tmp_path)
    with executed(words, tmp_path / "said.txt", cwd=HERE) as process:
        assert process.end() == 0, process.seen


def test_a_process_without_training_is_one(tmp_path: Path) -> None:
    words = python("-c", "import contract.without_training, quintet.training.trainer")
    with executed(words, tmp_path / "said.txt", cwd=HERE) as process:
        assert process.end() == 1
    assert process.seen.endswith("ImportError: quintet.training is not there in this process\n")


# --- what cannot be opened ----------------------------------------------------------------------------------------


def refusal(kind: type[QuintetError], open_it: Callable[[], object]) -> str:
    with pytest.raises(kind) as raised:
        open_it()
    sentence = str(raised.value)
    assert "\n" not in sentence
    return sentence


def test_a_folder_that_is_not_there(pipeline_class: type[Pipeline[Any]], tmp_path: Path) -> None:
    sentence = refusal(UsageError, lambda: pipeline_class.from_pretrained(tmp_path / "none"))
    assert sentence == f"{tmp_path / 'none'} does not exist; pass the folder of a run"


def test_a_folder_that_is_none_of_ours(pipeline_class: type[Pipeline[Any]], tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("nothing here")
    sentence = refusal(UsageError, lambda: pipeline_class.from_pretrained(tmp_path))
    assert sentence == f"{tmp_path} is not a run: it has no config.yaml"


def test_an_export_of_another_family(recipe: str, golden: Path, pipeline_class: type[Pipeline[Any]]) -> None:
    others = [entry.pipeline_class() for name, entry in registry.RECIPES.items() if name != recipe]
    for other in others:
        sentence = refusal(UsageError, lambda other=other: other.from_pretrained(golden / "hub"))  # type: ignore[misc]
        assert sentence == f"{golden / 'hub'} is a model of recipe '{recipe}', not a {other.__name__}"
    assert isinstance(Pipeline.from_pretrained(golden / "hub"), pipeline_class)


@pytest.mark.parametrize("damage", ["bit of the header", "cut", "empty", "gone"])
def test_weights_that_are_damaged(
    damage: str, golden: Path, pipeline_class: type[Pipeline[Any]], tmp_path: Path
) -> None:
    hub = copied(golden / "hub", tmp_path / "hub")
    weights = hub / "model.safetensors"
    content = bytearray(weights.read_bytes())
    if damage == "bit of the header":
        content[8] ^= 1
    elif damage == "cut":
        content = content[: len(content) // 2]
    weights.write_bytes(b"" if damage == "empty" else content)
    if damage == "gone":
        weights.unlink()
    assert str(weights) in refusal(CheckpointError, lambda: pipeline_class.from_pretrained(hub))


@pytest.mark.parametrize("content", ["", "{", "[]", '{"model": {}}'])
def test_settings_that_are_damaged(
    content: str, golden: Path, pipeline_class: type[Pipeline[Any]], tmp_path: Path
) -> None:
    hub = copied(golden / "hub", tmp_path / "hub")
    (hub / "config.json").write_text(content)
    assert str(hub) in refusal(QuintetError, lambda: pipeline_class.from_pretrained(hub))


def test_a_run_without_a_checkpoint(golden: Path, pipeline_class: type[Pipeline[Any]], tmp_path: Path) -> None:
    run = tmp_path / "run"
    run.mkdir()
    shutil.copy(golden / "run" / "config.yaml", run)
    sentence = refusal(UsageError, lambda: pipeline_class.from_pretrained(run))
    assert sentence == f"{run} has no checkpoint yet; train it first"


def test_a_model_that_was_opened_can_be_trained_on(pictures: Path, tmp_path: Path) -> None:
    pipeline = quintet.VQGanPipeline.from_pretrained(GOLDEN / "vqgan-format-1" / "hub")
    before = [parameter.clone() for parameter in pipeline.vae.parameters()]
    keys = {"log.trackers": [], "data.num_workers": 0}
    trainer = quintet.VQGanVAETrainer(
        pipeline.vae, data=pictures, out=tmp_path / "run", steps=1, batch_size=2, config=keys
    )
    trainer.train()
    trainer.close()
    assert any(not torch.equal(old, new) for old, new in zip(before, pipeline.vae.parameters(), strict=True))


def test_a_tokenizer_in_float64_encodes_and_has_the_same_digest() -> None:
    tokenizer = quintet.VQGanPipeline.from_pretrained(GOLDEN / "vqgan-format-1" / "hub")
    images, digest = torch.rand(2, 3, 16, 16), tokenizer.digest
    codes = tokenizer.encode(images)
    wide = quintet.VQGanPipeline.from_pretrained(GOLDEN / "vqgan-format-1" / "hub").with_keys(
        {"engine.precision": "fp64"}
    )
    wide.move_to_device()
    assert wide.dtype == torch.float64
    assert wide.digest == digest
    batch = Batch({"images": images}, ("a", "b"), ItemRNG(0, [0, 0], [0, 1]))
    assert torch.equal(wide.token_encoder().encode(batch), codes)


def test_bytes_are_pixels_and_other_whole_numbers_are_refused() -> None:
    tokenizer = quintet.VQGanPipeline.from_pretrained(GOLDEN / "vqgan-format-1" / "hub")
    images = torch.randint(0, 256, (2, 3, 16, 16), dtype=torch.uint8)
    assert torch.equal(tokenizer.encode(images), tokenizer.encode(images.float() / 255))
    with pytest.raises(UsageError, match=r"the range of torch\.int64 values is unknown"):
        tokenizer.encode(images.long())
    codec = quintet.AudioCodecPipeline.from_pretrained(GOLDEN / "audio-codec-format-1" / "hub")
    with pytest.raises(UsageError, match=r"the range of torch\.int16 values is unknown"):
        codec.encode(torch.zeros(1, 800, dtype=torch.int16))


def test_one_text_is_one_text() -> None:
    mulan = quintet.MuLaNPipeline.from_pretrained(GOLDEN / "mulan-format-1" / "hub")
    assert torch.equal(mulan.embed_texts("slow"), mulan.embed_texts(["slow"]))
    phenaki = quintet.PhenakiPipeline.from_pretrained(GOLDEN / "phenaki-format-1" / "hub")
    assert torch.equal(phenaki(scenes="ab"), phenaki(scenes=["ab"]))


@pytest.mark.parametrize("name", ["MusePipeline", "PhenakiPipeline", "SoundStormPipeline", "MeshTransformerPipeline"])
def test_less_than_one_item_is_refused(name: str) -> None:
    kind = getattr(quintet, name)
    pipeline = kind.from_pretrained(GOLDEN / f"{kind.recipe}-format-1" / "hub")
    with pytest.raises(UsageError, match="num=0 is invalid; it must be at least 1"):
        pipeline([""], num=0)
