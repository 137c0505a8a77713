"""`SoundStormTrainer`: datasets of audio and of token ids in every form, and the keywords of the original trainer."""

from __future__ import annotations

import json
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch

from contract.cases import GOLDEN
from quintet import compat
from quintet.common.rng import ItemRNG
from quintet.compat import soundstorm_pytorch
from quintet.errors import UsageError
from quintet.families.soundstorm.model import ConformerWrapper, SoundStorm
from quintet.families.soundstorm.pipeline import SoundStormPipeline
from quintet.families.soundstorm.trainer import SoundStormTrainer
from quintet.pipelines.loading import open_pipeline

CODEC, MULAN = (str(GOLDEN / f"{name}-format-1" / "hub") for name in ("audio-codec", "mulan"))
SMALL: dict[str, Any] = {"dim": 16, "depth": 1, "heads": 2, "head_dim": 8}
TOKENS: dict[str, Any] = {"num_codes": 9, "num_quantizers": 3, "frame_rate": 50.0, "max_frames": 40}
QUICK: dict[str, Any] = {
    "data.num_workers": 0,
    "log.trackers": [],
    "eval.batches": 1,
    "sample.num": 2,
    "sample.steps": [2],
}
FRAMES = 20


class Tokens:
    """Twelve clips as token ids, in one of the forms that datasets have; one may be invalid."""

    def __init__(self, form: str, invalid: dict[str, Any] | None = None) -> None:
        self.form = form
        self.invalid = invalid or {}

    def __len__(self) -> int:
        return 12

    def __getitem__(self, index: int) -> Any:
        frames = FRAMES + index
        generator = torch.Generator().manual_seed(index)
        acoustic = torch.randint(0, 9, (frames, 3), generator=generator)
        semantic = torch.randint(0, 5, (frames // 2,), generator=generator)
        if index == 4:
            acoustic, semantic = self.invalid.get("acoustic", acoustic), self.invalid.get("semantic", semantic)
        return {
            "tuple": (semantic, acoustic),
            "numpy": (semantic.numpy(), acoustic.numpy()),
            "padded": (semantic, torch.cat([acoustic, torch.full((5, acoustic.shape[1]), -1)])),
            "names": {"semantic_token_ids": semantic, "acoustic_token_ids": acoustic},
            "declared": (acoustic, semantic),
            "acoustic": acoustic,
        }[self.form]


class Tones:
    """Twelve tones of different lengths, with captions or without."""

    def __init__(self, captioned: bool) -> None:
        self.captioned = captioned

    def __len__(self) -> int:
        return 12

    def __getitem__(self, index: int) -> Any:
        wave = torch.sin(torch.arange(1600 + 100 * index) * (index + 1) * 0.05)
        return {"wavs": wave, "texts": f"tone {index}"} if self.captioned else wave


def storm(**keys: Any) -> SoundStorm:
    torch.manual_seed(0)
    return SoundStorm(ConformerWrapper(**SMALL, **{**TOKENS, "semantic_codes": 5, "semantic_rate": 25.0, **keys}))


def trained(out: Path, data: Any, model: SoundStorm | None = None, **more: Any) -> SoundStormTrainer:
    arguments: dict[str, Any] = {"steps": 2, "batch_size": 4, "config": QUICK, **more}
    trainer = SoundStormTrainer(model, data=data, out=out, **arguments)
    trainer.train()
    trainer.close()
    return trainer


@pytest.mark.parametrize("form", ["tuple", "numpy", "padded", "names", "declared"])
def test_pairs_of_semantic_and_acoustic_ids_train_in_any_form(form: str, tmp_path: Path) -> None:
    declared = {"declared": ("acoustic_token_ids", "semantic_token_ids")} if form == "declared" else {}
    trainer = trained(tmp_path / "run", Tokens(form), storm(), **declared)
    source = trainer.splits.train
    position = int(source.name(0).removeprefix("item "))
    semantic, acoustic = Tokens("tuple")[position]
    item = source.load(0, ItemRNG(0, [0], [0]))
    assert torch.equal(item["codes"], acoustic)
    assert torch.equal(item["semantic"], semantic)
    assert trainer.step == 2


def test_acoustic_ids_alone_train_an_unconditional_model(tmp_path: Path) -> None:
    unconditional = {"semantic_codes": None, "semantic_rate": None}
    trained(tmp_path / "run", Tokens("acoustic"), storm(**unconditional))
    model = SoundStormPipeline.from_pretrained(tmp_path / "run").model
    assert isinstance(model, SoundStorm)
    # Named pairs work as well: the semantic tokens are ignored.
    with pytest.raises(UsageError, match="fits no field"):
        trained(tmp_path / "other", Tokens("tuple"), storm(**unconditional))
    trained(tmp_path / "named", Tokens("names"), storm(**unconditional))


@pytest.mark.parametrize(
    ("invalid", "reason"),
    [
        ({"acoustic": torch.full((24, 3), 9)}, "acoustic tokens up to 9; the vocabulary ends at 8"),
        ({"acoustic": torch.tensor([[1, -1, 2]] * 24)}, "has no acoustic tokens"),
        ({"acoustic": torch.tensor([[-1] * 3, *[[1] * 3] * 23])}, "below 0 that are not padding at its end"),
        (
            {"acoustic": torch.ones(24, 2, dtype=torch.long)},
            "has acoustic tokens of 2 quantizers; model.num_quantizers=3",
        ),
        ({"acoustic": torch.ones(41, 3, dtype=torch.long)}, "has 41 frames, more than model.max_frames=40"),
        ({"acoustic": torch.ones(0, 3, dtype=torch.long)}, "has no acoustic tokens"),
        ({"semantic": torch.full((12,), 5)}, "semantic tokens up to 5; the vocabulary ends at 4"),
        (
            {"semantic": torch.ones(3, dtype=torch.long)},
            "3 semantic tokens do not fit 24 frames: with 25 tokens and 50 frames per second",
        ),
        ({"semantic": torch.ones(24, dtype=torch.long)}, "12 are expected"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_invalid_ids_make_an_item_unreadable_with_a_reason(
    invalid: dict[str, Any], reason: str, tmp_path: Path
) -> None:
    keys = {**QUICK, "data.validation_fraction": 0.0}
    trainer = trained(tmp_path / "run", Tokens("tuple", invalid), storm(), steps=6, config=keys)
    assert reason in json.loads((tmp_path / "run" / "data.json").read_text())["skipped"]["item 4"]
    assert trainer.step == 6


def test_audio_is_encoded_and_embedded(tmp_path: Path) -> None:
    frozen: dict[str, Any] = {"tokenizer": open_pipeline(CODEC), "condition": open_pipeline(MULAN)}
    keys = {**QUICK, **{f"model.{name}": value for name, value in SMALL.items()}, "data.seconds": 0.25}
    trainer = trained(tmp_path / "run", Tones(captioned=True), **frozen, config={**keys, "loss.caption_cond_prob": 0.5})
    item = trainer.splits.train.load(0, ItemRNG(0, [0], [0]))
    assert {"codes", "clip", "caption", "texts"} <= item.keys()
    assert item["codes"].shape[0] <= 63
    trained(tmp_path / "unconditional", Tones(captioned=False), tokenizer=frozen["tokenizer"], config=keys)


def test_invalid_data_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="set --tokenizer RUN"):
        SoundStormTrainer(data=Tokens("tuple"), out=tmp_path / "run", steps=2, batch_size=2)
    with pytest.raises(UsageError, match="pass a dataset of semantic and acoustic token ids"):
        trained(tmp_path / "run", Tones(captioned=False), storm())
    with pytest.raises(UsageError, match="trained on token ids without a codec"):
        trained(tmp_path / "run", Tones(captioned=False), storm(semantic_codes=None, semantic_rate=None))
    assert not (tmp_path / "run").exists()


def test_the_keywords_of_the_original_trainer(tmp_path: Path) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", compat.CompatibilityNotice)
        trainer = soundstorm_pytorch.SoundStormTrainer(
            storm(self_critic=True),
            num_train_steps=2,
            num_warmup_steps=1,
            batch_size=2,
            grad_accum_every=2,
            dataset=Tokens("tuple"),
            only_train_critic=True,
            initial_lr=1e-5,
            results_folder=str(tmp_path / "run"),
            config=QUICK,
        )
    config: Any = trainer.config
    assert (config.loss.train_only, config.train.batch_size, config.optim.warmup_steps) == ("critic", 4, 1)
    model = trainer.unwrapped_model
    assert isinstance(model, SoundStorm)
    before = model.head_weights.clone()
    trainer.train()
    trainer.close()
    assert torch.equal(model.head_weights, before)


# --- captions that the model reads ----------------------------------------------------------------------------------


class Described(Tones):
    """Tones with text embeddings instead of captions."""

    def __init__(self) -> None:
        super().__init__(captioned=True)

    def __getitem__(self, index: int) -> Any:
        wave = super().__getitem__(index)["wavs"]
        return {"wavs": wave, "text_embeds": torch.full((1 + index % 3, 6), float(index))}


def test_captions_and_text_embeddings_of_a_dataset_condition_the_model(tmp_path: Path) -> None:
    small = {"data.seconds": 0.2, "model.text_dim": 16, **{f"model.{key}": value for key, value in SMALL.items()}}
    codec = open_pipeline(CODEC)
    words = {**QUICK, **small, "model.text": "words"}
    trained(tmp_path / "words", Tones(captioned=True), tokenizer=codec, config=words)
    assert len(SoundStormPipeline.from_pretrained(tmp_path / "words")("tone 3", seconds=0.1)) == 1
    with pytest.raises(UsageError, match="neither raw_texts nor texts"):
        trained(tmp_path / "none", Tones(captioned=False), tokenizer=codec, config=words)
    vectors = {**QUICK, **small, "model.text": "vectors", "model.vector_dim": 6}
    trained(tmp_path / "vectors", Described(), tokenizer=codec, config=vectors)
    with pytest.raises(UsageError, match="cannot encode texts"):
        SoundStormPipeline.from_pretrained(tmp_path / "vectors")("tone 3", seconds=0.1)


def test_datasets_without_captions_or_files_are_refused(tmp_path: Path) -> None:
    texts = storm(semantic_codes=None, semantic_rate=None, text="words", text_dim=16)
    with pytest.raises(UsageError, match="a dataset of token ids has no captions"):
        trained(tmp_path / "ids", Tokens("acoustic"), texts)
    keys = {**QUICK, "data.windows": "all", "data.seconds": 0.2}
    with pytest.raises(UsageError, match=r"data\.windows needs a folder of audio files"):
        trained(tmp_path / "windows", Tones(captioned=False), tokenizer=open_pipeline(CODEC), config=keys)
