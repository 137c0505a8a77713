"""Phenaki in Python: data sets of videos and of codebook ids in every form, and the original trainer's keywords."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
import torch

from contract.cases import GOLDEN
from quintet import CViViT, CViViTPipeline, PhenakiPipeline, compat
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

TOKENIZER = str(GOLDEN / "cvivit-format-1" / "hub")
"""32 codes of 2 x 2 places, of 8 pixels and two frames each."""
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
WIDTH = 6
"""Of text embeddings."""


class Clips:
    """Twelve clips of different lengths, in one of the forms people's data sets have; one item may be changed."""

    def __init__(self, form: str, changed: dict[str, Any] | None = None) -> None:
        self.form = form
        self.changed = changed or {}

    def __len__(self) -> int:
        return 12

    def __getitem__(self, index: int) -> Any:
        generator = torch.Generator().manual_seed(index)
        moments = 1 + index % 3
        videos = torch.rand(3, 5, 16, 16, generator=generator)
        codes = torch.randint(0, 32, (moments, 2, 2), generator=generator)
        vectors = torch.randn(2 + index % 4, WIDTH, generator=generator)
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
            "picture": (videos[:, 0], text),
            "masked picture": {"videos": videos[:, 0], "texts": text, "video_frame_mask": mask[:1]},
            "array": ((videos.permute(1, 2, 3, 0) * 255).byte().numpy(), text),
            "embedded": (videos, vectors),
            "codes": (codes, text),
            "flat codes": {"video_codebook_ids": codes.flatten().numpy(), "texts": text},
            "embedded codes": (codes, vectors),
            "partly embedded": {"video_codebook_ids": codes, "text_embeds": vectors},
            "names": {"videos": videos, "texts": text, "video_frame_mask": mask},
            "declared": (text, videos, mask),
            "untold": (videos,),
        }[self.form]


DECLARED = ["texts", "videos", "video_frame_mask"]
EMBEDDED = {"model.text": "vectors", "model.vector_dim": WIDTH}


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
def test_a_data_set_of_any_form_trains(form: str, tokenizer: Tokenizer[Any], tmp_path: Path) -> None:
    trainer = trained(form, tmp_path / "run", tokenizer)
    assert trainer.step == 3
    record = json.loads((tmp_path / "run" / "data.json").read_text())
    assert record["skipped"] == {}
    assert (tmp_path / "run" / "samples" / "step-00000003" / "filmstrips.png").exists()


def test_what_a_model_was_built_with_is_what_is_trained(tokenizer: Tokenizer[Any], tmp_path: Path) -> None:
    """The order of moments, the overlap, and the critic that learns to judge a generator that stays as it is."""
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


def test_a_tokenizer_of_another_kind_is_refused_by_its_type(tmp_path: Path) -> None:
    class Other:
        pass

    with pytest.raises(UsageError, match=r"takes a run, an exported folder or a pipeline as tokenizer, not a Other"):
        trained("codes", tmp_path / "run", Other())  # type: ignore[arg-type]
    with pytest.raises(UsageError, match=r"runs/vtok does not exist; give the folder of a run"):
        trained("codes", tmp_path / "run", "runs/vtok")  # type: ignore[arg-type]


@pytest.mark.parametrize("form", ["embedded", "embedded codes"])
def test_text_embeddings_of_the_data_tell_a_model(form: str, tokenizer: Tokenizer[Any], tmp_path: Path) -> None:
    trainer = trained(form, tmp_path / "run", tokenizer, config=EMBEDDED)
    phenaki = trainer.task.pipeline(trainer.task.modules).phenaki()
    made = phenaki.sample(text_embeds=torch.randn(2, 3, WIDTH), seed=1)
    assert made.shape == (2, 3, 5, 16, 16)
    with pytest.raises(UsageError, match="cannot encode texts"):
        phenaki.sample("a red ball")
    with pytest.raises(UsageError, match="give texts, or embeddings of texts"):
        phenaki.sample(text_embeds=torch.randn(2, 3, WIDTH), negative="a red ball")
    with pytest.raises(UsageError, match="text embeddings of dimension 7 do not fit this model, which takes 6"):
        phenaki.sample(text_embeds=torch.randn(1, 3, 7))
    told = [phenaki.maskgit.text_vectors(torch.randn(1, 3, WIDTH), torch.ones(1, 3).bool()) for _ in range(2)]
    tokens = torch.full((1, 12), phenaki.maskgit.mask_id)
    assert not torch.allclose(phenaki.maskgit(tokens, told[0]), phenaki.maskgit(tokens, told[1]))


class Four:
    """Four clips of one to three moments, which only their texts tell apart."""

    def __len__(self) -> int:
        return 4

    def __getitem__(self, index: int) -> tuple[torch.Tensor, str]:
        generator = torch.Generator().manual_seed(index)
        return torch.randint(0, 32, (1 + index % 3, 2, 2), generator=generator), f"clip {'abcd'[index]}"


def test_it_learns_which_clip_a_text_stands_for(tokenizer: Tokenizer[Any], tmp_path: Path) -> None:
    quick = {"optim.name": "muon", "optim.lr": 1e-2, "optim.muon_lr": 0.03, "optim.warmup_steps": 5}
    wide = {"model.dim": 32, "model.depth": 2, "model.rotary": True, "loss.label_smoothing": 0.0, "sample.steps": 4}
    keys = {**quick, **wide, "data.validation_fraction": 0.0, "ema.enabled": False}
    trainer = trained("codes", tmp_path / "run", tokenizer, data=Four(), steps=150, config=keys)
    phenaki = trainer.task.pipeline(trainer.task.modules).phenaki()
    wanted = [Four()[index] for index in range(4)]
    told = encode_prompts(phenaki.maskgit, [text for _, text in wanted], None)
    there = torch.arange(3) < torch.tensor([[len(codes)] for codes, _ in wanted])
    made = phenaki.codes(told, ItemRNG(0, [0] * 4, range(4)), there)
    right = [(one[: len(codes)] == codes).float().mean() for one, (codes, _) in zip(made, wanted, strict=True)]
    assert sum(right) / 4 > 0.9


def test_codebook_ids_need_no_tokenizer(tmp_path: Path) -> None:
    codes = {"model.grid": [3, 2, 2], "model.num_codes": 32}
    trainer = trained("codes", tmp_path / "run", None, config=codes)
    assert trainer.step == 3
    with pytest.raises(UsageError, match="videos need a tokenizer"):
        trained("videos", tmp_path / "other", None, config=codes)


def loaded(form: str, tokenizer: Tokenizer[Any], config: dict[str, Any] | None = None) -> list[dict[str, Any]]:
    trainer_keys = {**QUICK, **(config or {}), "model.num_codes": 32, "model.grid": [3, 2, 2]}
    settings = build(PhenakiConfig, overrides={**trainer_keys, "data.validation_fraction": 0.0})
    declared = DECLARED if form == "declared" else None
    source = python_clip_splits(Clips(form), settings, tokenizer, declared=declared).train
    return [source.load(item, ItemRNG(0, [0], [item])) for item in range(len(source))]


def test_frames_that_a_mask_leaves_out_are_none(tokenizer: Tokenizer[Any]) -> None:
    whole = loaded("videos", tokenizer)
    for form in ("masked", "names", "declared"):
        items = loaded(form, tokenizer)
        assert [len(item["codes"]) for item in items] == [1 + -(-(index % 5) // 2) for index in range(12)]
        assert [item["texts"] for item in items] == [f"clip {index}" for index in range(12)]
        # Codes of a beginning are the beginning of the codes.
        assert torch.equal(items[2]["codes"], whole[2]["codes"][:2])
    assert [len(item["codes"]) for item in loaded("picture", tokenizer)] == [1] * 12


@pytest.mark.parametrize(
    ("changed", "reason"),
    [
        ({"codes": torch.full((2, 2, 2), 32)}, "codebook ids from 32 to 32; the codebook has 32"),
        ({"codes": torch.full((2, 2, 2), -1)}, "codebook ids from -1 to -1"),
        ({"codes": torch.zeros(2, 3, 3, dtype=torch.long)}, r"of shape \(2, 3, 3\); those of the model are up to"),
        ({"codes": torch.zeros(4, 2, 2, dtype=torch.long)}, r"of shape \(4, 2, 2\); those of the model are up to"),
    ],
)
def test_codebook_ids_of_another_codebook_are_left_out(changed: dict[str, Any], reason: str, tmp_path: Path) -> None:
    data = {"data": Clips("codes", changed), "config": {"model.grid": [3, 2, 2], "model.num_codes": 32}}
    trained("codes", tmp_path / "run", None, steps=6, **data)
    skipped = json.loads((tmp_path / "run" / "data.json").read_text())["skipped"]
    assert list(skipped) == ["item 4"]
    assert re.search(reason, skipped["item 4"])


def test_items_that_do_not_tell_what_the_model_is_told_by_are_refused(tokenizer: Tokenizer[Any]) -> None:
    with pytest.raises(UsageError, match=r"model\.text=vectors and model\.vector_dim=6"):
        loaded("embedded", tokenizer)
    with pytest.raises(UsageError, match=r"model\.text=vectors and model\.vector_dim=6"):
        loaded("embedded", tokenizer, {"model.text": "words"})
    with pytest.raises(UsageError, match="needs items with text embeddings"):
        loaded("videos", tokenizer, EMBEDDED)
    with pytest.raises(UsageError, match="the items have no texts"):
        loaded("untold", tokenizer)
    assert len(loaded("untold", tokenizer, {"model.text": "none"})) == 12


def test_a_picture_with_a_mask_is_the_picture(tokenizer: Tokenizer[Any]) -> None:
    alone, masked = loaded("picture", tokenizer), loaded("masked picture", tokenizer)
    assert all(torch.equal(one["codes"], other["codes"]) for one, other in zip(alone, masked, strict=True))


def test_an_item_without_embedding_is_untold_and_the_others_are_not(tokenizer: Tokenizer[Any], tmp_path: Path) -> None:
    fields = collate_clips(loaded("partly embedded", tokenizer, EMBEDDED)[:3])
    assert fields["words"].sum(1).tolist() == [2, 0, 4]
    assert trained("partly embedded", tmp_path / "run", tokenizer, config=EMBEDDED).step == 3


def test_frames_to_sample_that_no_code_ends_with_are_refused_before_training(
    tokenizer: Tokenizer[Any], tmp_path: Path
) -> None:
    with pytest.raises(UsageError, match=r"sample\.frames=4 is not 1 and a multiple of 2.* nearest that are: 3 and 5"):
        trained("videos", tmp_path / "run", tokenizer, config={"sample.frames": 4})


def test_a_model_put_together_is_trained_with_its_critic(tmp_path: Path) -> None:
    maskgit = MaskGit(grid=(3, 2, 2), num_codes=32, **SMALL)
    cvivit = CViViTPipeline.from_pretrained(TOKENIZER).cvivit
    whole = Phenaki(maskgit, cvivit, TokenCritic(maskgit.config))
    before = whole.critic.to_score.weight.clone()  # type: ignore[union-attr, operator]
    keys = {key: value for key, value in QUICK.items() if not key.startswith("model.")}
    with pytest.warns(compat.CompatibilityNotice, match="train_num_steps -> train.steps"):
        trainer = phenaki_pytorch.PhenakiTrainer(
            phenaki=whole,
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
    assert trainer.unwrapped_model is maskgit
    assert not torch.equal(whole.critic.to_score.weight, before)  # type: ignore[union-attr]
    samples = tmp_path / "run" / "samples" / "step-00000003"
    assert (samples / "000-a-red-ball.mp4").exists()
    # The tokenizer lies with the run.
    kept = PhenakiPipeline.from_pretrained(tmp_path / "run").tokenizer.model
    assert all(torch.equal(kept.state_dict()[name], value) for name, value in cvivit.state_dict().items())


def test_a_tokenizer_of_ones_own_is_refused(tmp_path: Path) -> None:
    class Other(CViViT):
        pass

    tokenizer = Other(CViViT.from_pretrained(TOKENIZER).config)
    whole = Phenaki(MaskGit(grid=(3, 2, 2), num_codes=32, **SMALL), tokenizer)
    with pytest.raises(UsageError, match="keeps the tokenizer with the run, and a Other is no model of quintet"):
        PhenakiTrainer(whole, data=Clips("videos"), out=tmp_path / "run")
