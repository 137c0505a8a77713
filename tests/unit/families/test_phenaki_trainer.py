"""Phenaki in Python: datasets of videos and of codebook ids in every form, and the original trainer's keywords."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from contract.cases import GOLDEN
from quintet import CViViT, CViViTPipeline, PhenakiPipeline
from quintet.common.rng import ItemRNG
from quintet.compat import phenaki_pytorch
from quintet.config import build
from quintet.errors import UsageError
from quintet.families.phenaki.config import PhenakiConfig
from quintet.families.phenaki.data import collate_clips, python_clip_splits
from quintet.families.phenaki.model import Phenaki
from quintet.families.phenaki.trainer import PhenakiTrainer
from quintet.nn.maskgit import MaskGit, TokenCritic
from quintet.pipelines.base import Tokenizer
from quintet.sampling.guidance import encode_prompts
from quintet.sampling.masked import Sampling, linear

TOKENIZER = str(GOLDEN / "cvivit-format-1" / "hub")
"""32 codes on a grid of 2 x 2; each code covers 8 x 8 pixels and two frames."""
SMALL: dict[str, Any] = {"dim": 16, "depth": 1, "heads": 2, "text_dim": 16, "text_length": 32}
QUICK: dict[str, Any] = {
    **{f"model.{key}": value for key, value in SMALL.items()},
    **{
        "data.num_workers": 0,
        "data.frames": 5,
        "log.trackers": [],
        "eval.batches": 1,
        "sample.num": 2,
        "sample.steps": 2,
    },
}
EMBEDDING_DIM = 6


class Clips:
    """Twelve clips of different lengths, in one of the forms that datasets have; one item may be changed."""

    def __init__(self, form: str, changed: dict[str, Any] | None = None) -> None:
        self.form = form
        self.changed = changed or {}

    def __len__(self) -> int:
        return 12

    def __getitem__(self, index: int) -> Any:
        generator = torch.Generator().manual_seed(index)
        latent_frames = 1 + index % 3
        videos = torch.rand(3, 5, 16, 16, generator=generator)
        codes = torch.randint(0, 32, (latent_frames, 2, 2), generator=generator)
        vectors = torch.randn(2 + index % 4, EMBEDDING_DIM, generator=generator)
        mask = torch.arange(5) < 1 + index % 5
        if index == 4:
            codes = self.changed.get("codes", codes)
            vectors = self.changed.get("vectors", vectors)
            mask = self.changed.get("mask", mask)
        if index % 2 and self.form == "partly embedded":
            return {"video_codebook_ids": codes}
        text = f"clip {index}"
        return {
            "videos": (videos, text),
            "masked": (text, mask, videos),
            "image": (videos[:, 0], text),
            "masked image": {"videos": videos[:, 0], "texts": text, "video_frame_mask": mask[:1]},
            "array": ((videos.permute(1, 2, 3, 0) * 255).byte().numpy(), text),
            "embedded": (videos, vectors),
            "codes": (codes, text),
            "flat codes": {"video_codebook_ids": codes.flatten().numpy(), "texts": text},
            "embedded codes": (codes, vectors),
            "partly embedded": {"video_codebook_ids": codes, "text_embeds": vectors},
            "names": {"videos": videos, "texts": text, "video_frame_mask": mask},
            "declared": (text, videos, mask),
            "no text": (videos,),
        }[self.form]


DECLARED = ["texts", "videos", "video_frame_mask"]
EMBEDDED = {"model.text": "vectors", "model.vector_dim": EMBEDDING_DIM}


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer[Any]:
    return CViViTPipeline.from_pretrained(TOKENIZER)


def trained(form: str, out: Path, tokenizer: Tokenizer[Any] | None, **keys: Any) -> PhenakiTrainer:
    config = {**QUICK, **keys.pop("config", {})}
    if form == "declared":
        keys["declared"] = DECLARED
    trainer = PhenakiTrainer(
        **({} if tokenizer is None else {"tokenizer": tokenizer}),
        **{"data": Clips(form), "out": out, "steps": 3, "batch_size": 4, "config": config, **keys},
    )
    trainer.train()
    trainer.close()
    return trainer


@pytest.mark.parametrize("form", ["masked", "array", "codes", "flat codes", "declared"])
def test_dataset_of_any_form_trains(form: str, tokenizer: Tokenizer[Any], tmp_path: Path) -> None:
    trainer = trained(form, tmp_path / "run", tokenizer)
    assert trainer.step == 3
    record = json.loads((tmp_path / "run" / "data.json").read_text())
    assert record["skipped"] == {}
    assert (tmp_path / "run" / "samples" / "step-00000003" / "filmstrips.png").exists()


def test_trainer_takes_settings_from_the_model(tokenizer: Tokenizer[Any], tmp_path: Path) -> None:
    """frame_autoregressive, the overlap and the critic; training only the critic leaves the generator unchanged."""
    maskgit = MaskGit(grid=(3, 2, 2), num_codes=32, rotary=True, **SMALL)
    before = {name: tensor.clone() for name, tensor in maskgit.state_dict().items()}
    phenaki = Phenaki(
        maskgit, tokenizer.model, critic=TokenCritic(maskgit.config), overlap=3, frame_autoregressive=True
    )
    keys = {**QUICK, **{f"model.{key}": value for key, value in maskgit.config.model_dump(mode="json").items()}}
    trainer = PhenakiTrainer(
        phenaki,
        data=Clips("codes"),
        out=tmp_path / "run",
        steps=2,
        batch_size=4,
        config={**keys, "loss.train_only": "critic"},
    )
    trainer.train()
    trainer.close()
    config = trainer.task.config
    assert (config.loss.frame_autoregressive, config.sample.overlap, config.loss.critic) == (True, 3, True)
    assert [phase.name for phase in trainer.task.phases] == ["critic"]
    assert all(torch.equal(before[name], tensor) for name, tensor in maskgit.state_dict().items())


def test_tokenizer_of_another_type_is_refused(tmp_path: Path) -> None:
    class Other:
        pass

    with pytest.raises(UsageError, match=r"takes a run, an exported folder or a pipeline as tokenizer, not a Other"):
        trained("codes", tmp_path / "run", Other())  # type: ignore[arg-type]
    with pytest.raises(UsageError, match=r"runs/vtok does not exist; pass the folder of a run"):
        trained("codes", tmp_path / "run", "runs/vtok")  # type: ignore[arg-type]


@pytest.mark.parametrize("form", ["embedded", "embedded codes"])
def test_model_is_conditioned_on_text_embeddings_of_the_data(
    form: str, tokenizer: Tokenizer[Any], tmp_path: Path
) -> None:
    trainer = trained(form, tmp_path / "run", tokenizer, config=EMBEDDED)
    phenaki = trainer.task.pipeline(trainer.task.modules).phenaki()
    videos = phenaki.sample(text_embeds=torch.randn(2, 3, EMBEDDING_DIM), seed=1)
    assert videos.shape == (2, 3, 5, 16, 16)
    with pytest.raises(UsageError, match="it cannot encode texts"):
        phenaki.sample("a red ball")
    with pytest.raises(UsageError, match="pass either texts or text_embeds"):
        phenaki.sample(text_embeds=torch.randn(2, 3, EMBEDDING_DIM), negative="a red ball")
    with pytest.raises(UsageError, match="text embeddings of dimension 7 do not fit this model, which takes 6"):
        phenaki.sample(text_embeds=torch.randn(1, 3, 7))
    first, second = (
        phenaki.maskgit.text_vectors(torch.randn(1, 3, EMBEDDING_DIM), torch.ones(1, 3).bool()) for _ in range(2)
    )
    tokens = torch.full((1, 12), phenaki.maskgit.mask_id)
    assert not torch.allclose(phenaki.maskgit(tokens, first), phenaki.maskgit(tokens, second))


class Four:
    """Four clips of one to three latent frames, distinguished only by their texts."""

    def __len__(self) -> int:
        return 4

    def __getitem__(self, index: int) -> tuple[torch.Tensor, str]:
        generator = torch.Generator().manual_seed(index)
        return torch.randint(0, 32, (1 + index % 3, 2, 2), generator=generator), f"clip {'abcd'[index]}"


def test_model_learns_the_clip_of_each_text(tokenizer: Tokenizer[Any], tmp_path: Path) -> None:
    quick = {"optim.name": "muon", "optim.lr": 1e-2, "optim.muon_lr": 0.03, "optim.warmup_steps": 5}
    wide = {"model.dim": 32, "model.depth": 2, "model.rotary": True, "loss.label_smoothing": 0.0, "sample.steps": 4}
    keys = {**quick, **wide, "data.validation_fraction": 0.0, "ema.enabled": False}
    trainer = trained("codes", tmp_path / "run", tokenizer, data=Four(), steps=150, config=keys)
    phenaki = trainer.task.pipeline(trainer.task.modules).phenaki()
    expected = [Four()[index] for index in range(4)]
    conditioning = encode_prompts(phenaki.maskgit, [text for _, text in expected], None)
    valid_frames = torch.arange(3) < torch.tensor([[len(codes)] for codes, _ in expected])
    generated = phenaki.generate_codes(conditioning, ItemRNG(0, [0] * 4, range(4)), valid_frames)
    accuracy = [
        (each[: len(codes)] == codes).float().mean() for each, (codes, _) in zip(generated, expected, strict=True)
    ]
    assert sum(accuracy) / 4 > 0.9


def test_codebook_ids_need_no_tokenizer(tmp_path: Path) -> None:
    codes = {"model.grid": [3, 2, 2], "model.num_codes": 32}
    trainer = trained("codes", tmp_path / "run", None, config=codes)
    assert trainer.step == 3
    with pytest.raises(UsageError, match="a dataset of videos needs a tokenizer"):
        trained("videos", tmp_path / "other", None, config=codes)


def loaded(form: str, tokenizer: Tokenizer[Any], config: dict[str, Any] | None = None) -> list[dict[str, Any]]:
    trainer_keys = {**QUICK, **(config or {}), "model.num_codes": 32, "model.grid": [3, 2, 2]}
    settings = build(PhenakiConfig, overrides={**trainer_keys, "data.validation_fraction": 0.0})
    declared = DECLARED if form == "declared" else None
    split = python_clip_splits(Clips(form), settings, tokenizer, declared=declared).train
    return [split.load(item, ItemRNG(0, [0], [item])) for item in range(len(split))]


def test_masked_frames_are_removed(tokenizer: Tokenizer[Any]) -> None:
    full = loaded("videos", tokenizer)
    for form in ("masked", "names", "declared"):
        items = loaded(form, tokenizer)
        assert [len(item["codes"]) for item in items] == [1 + -(-(index % 5) // 2) for index in range(12)]
        assert [item["texts"] for item in items] == [f"clip {index}" for index in range(12)]
        # The codes of the first frames are the first codes.
        assert torch.equal(items[2]["codes"], full[2]["codes"][:2])
    assert [len(item["codes"]) for item in loaded("image", tokenizer)] == [1] * 12


@pytest.mark.parametrize(
    ("changed", "reason"),
    [
        ({"codes": torch.full((2, 2, 2), 32)}, "codebook ids from 32 to 32; the codebook has 32"),
        ({"codes": torch.full((2, 2, 2), -1)}, "codebook ids from -1 to -1"),
        ({"codes": torch.zeros(2, 3, 3, dtype=torch.long)}, r"of shape \(2, 3, 3\); the model takes at most"),
        ({"codes": torch.zeros(4, 2, 2, dtype=torch.long)}, r"of shape \(4, 2, 2\); the model takes at most"),
    ],
)
def test_codebook_ids_of_another_codebook_are_skipped(changed: dict[str, Any], reason: str, tmp_path: Path) -> None:
    data = {"data": Clips("codes", changed), "config": {"model.grid": [3, 2, 2], "model.num_codes": 32}}
    trained("codes", tmp_path / "run", None, steps=6, **data)
    skipped = json.loads((tmp_path / "run" / "data.json").read_text())["skipped"]
    assert list(skipped) == ["item 4"]
    assert re.search(reason, skipped["item 4"])


def test_items_without_the_conditioning_of_the_model_are_refused(tokenizer: Tokenizer[Any]) -> None:
    with pytest.raises(UsageError, match=r"model\.text=vectors and model\.vector_dim=6"):
        loaded("embedded", tokenizer)
    with pytest.raises(UsageError, match=r"model\.text=vectors and model\.vector_dim=6"):
        loaded("embedded", tokenizer, {"model.text": "words"})
    with pytest.raises(UsageError, match="needs items with text embeddings"):
        loaded("videos", tokenizer, EMBEDDED)
    with pytest.raises(UsageError, match="the items have no texts"):
        loaded("no text", tokenizer)
    assert len(loaded("no text", tokenizer, {"model.text": "none"})) == 12


def test_image_with_a_mask_is_the_image(tokenizer: Tokenizer[Any]) -> None:
    alone, masked = loaded("image", tokenizer), loaded("masked image", tokenizer)
    assert all(torch.equal(one["codes"], other["codes"]) for one, other in zip(alone, masked, strict=True))


def test_item_without_embedding_is_unconditional(tokenizer: Tokenizer[Any], tmp_path: Path) -> None:
    fields = collate_clips(loaded("partly embedded", tokenizer, EMBEDDED)[:3])
    assert fields["words"].sum(1).tolist() == [2, 0, 4]
    assert trained("partly embedded", tmp_path / "run", tokenizer, config=EMBEDDED).step == 3


def test_invalid_sample_frames_are_refused_before_training(tokenizer: Tokenizer[Any], tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"sample\.frames=4 is not 1 plus a multiple of 2.* numbers are 3 and 5"):
        trained("videos", tmp_path / "run", tokenizer, config={"sample.frames": 4})


def test_phenaki_model_is_trained_with_its_critic(tmp_path: Path) -> None:
    maskgit = MaskGit(grid=(3, 2, 2), num_codes=32, **SMALL)
    cvivit = CViViTPipeline.from_pretrained(TOKENIZER).cvivit
    phenaki = Phenaki(maskgit, cvivit, TokenCritic(maskgit.config))
    before = phenaki.critic.to_score.weight.clone()  # type: ignore[union-attr, operator]
    keys = {key: value for key, value in QUICK.items() if not key.startswith("model.")}
    trainer = phenaki_pytorch.PhenakiTrainer(
        phenaki=phenaki,
        dataset=Clips("videos"),
        train_num_steps=3,
        batch_size=4,
        results_folder=tmp_path / "run",
        sample_texts=["a red ball"],
        sample_num_frames=3,
        config=keys,
    )
    trainer.train()
    trainer.close()
    assert trainer.unwrapped_model is phenaki
    assert not torch.equal(phenaki.critic.to_score.weight, before)  # type: ignore[union-attr]
    run = tmp_path / "run" / "phenaki-1"
    assert (run / "samples" / "step-00000003" / "000-a-red-ball.mp4").exists()
    # The tokenizer is stored with the run.
    stored = PhenakiPipeline.from_pretrained(run).tokenizer.model
    assert all(torch.equal(stored.state_dict()[name], value) for name, value in cvivit.state_dict().items())


def test_prompts_are_repeated_up_to_the_number_of_samples(tokenizer: Tokenizer[Any], tmp_path: Path) -> None:
    keys = {"sample.num": 4, "sample.texts": ["a red ball", "a blue ball"], "sample.frames": 3}
    trained("videos", tmp_path / "run", tokenizer, config=keys)
    names = sorted(path.name for path in (tmp_path / "run" / "samples" / "step-00000003").glob("0*.gif"))
    assert names == ["000-a-red-ball.gif", "001-a-blue-ball.gif", "002-a-red-ball.gif", "003-a-blue-ball.gif"]


def test_settings_of_a_phenaki_are_those_of_its_run(tmp_path: Path) -> None:
    cvivit = CViViTPipeline.from_pretrained(TOKENIZER).cvivit
    settings = Sampling(steps=3, temperature=0.5, temperature_schedule=linear, top_k=0.5, guidance_scale=2.0)
    phenaki = Phenaki(MaskGit(grid=(3, 2, 2), num_codes=32, **SMALL), cvivit, settings=settings)
    keys = {key: value for key, value in QUICK.items() if not key.startswith(("model.", "sample."))}
    trainer = PhenakiTrainer(phenaki, data=Clips("videos"), out=tmp_path / "run", batch_size=4, config=keys)
    decoding = trainer.task.pipeline(trainer.task.modules).phenaki().settings
    assert decoding == replace(settings, top_k=16)
    trainer.close()
    other = Phenaki(phenaki.maskgit, cvivit, settings=replace(settings, schedule=linear))
    with pytest.raises(UsageError, match="a run decodes with the cosine schedule"):
        PhenakiTrainer(other, data=Clips("videos"), out=tmp_path / "other", batch_size=4, config=keys)


def test_custom_tokenizer_class_is_refused(tmp_path: Path) -> None:
    class Other(CViViT):
        pass

    tokenizer = Other(CViViT.from_pretrained(TOKENIZER).config)
    phenaki = Phenaki(MaskGit(grid=(3, 2, 2), num_codes=32, **SMALL), tokenizer)
    with pytest.raises(UsageError, match="cannot do for Other: it is not a model of quintet"):
        PhenakiTrainer(phenaki, data=Clips("videos"), out=tmp_path / "run")
