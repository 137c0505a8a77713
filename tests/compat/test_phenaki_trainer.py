"""`PhenakiTrainer` and `CViViTTrainer` of phenaki-pytorch: the user's model and data stay as they are."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from compat.trainers import Items, make_cvivit, make_phenaki, phenaki
from quintet.common.rng import ItemRNG
from quintet.compat.phenaki_pytorch import PhenakiTrainer, TokenCritic
from quintet.errors import UsageError

pytestmark = pytest.mark.filterwarnings("ignore::quintet.compat.CompatibilityNotice")


def shapes(model: torch.nn.Module) -> dict[str, tuple[int, ...]]:
    return {name: tuple(value.shape) for name, value in model.state_dict().items()}


def make(folder: Path, model: Any, **options: Any) -> Any:
    data = options.pop("dataset", None) or Items(lambda index: (torch.rand(3, 5, 16, 16), f"clip {index}"))
    settings = {"num_frames": 5, "batch_size": 2, "train_num_steps": 2, "save_and_sample_every": 2, "num_samples": 1}
    results = {"results_folder": str(folder / "results"), "config": {"data.num_workers": 0}}
    return PhenakiTrainer(model, dataset=data, **{**settings, **results, **options})


def test_a_trainer_on_short_clips_leaves_the_window_of_the_model(tmp_path: Path) -> None:
    model = phenaki()
    before = shapes(model)
    trainer = make(tmp_path, model, sample_texts=["a clip"])
    trainer.train()
    assert shapes(model) == before
    model(torch.rand(2, 3, 9, 16, 16), texts=["a", "b"]).backward()  # longer than the clips
    assert model.sample(texts="a", num_frames=9).shape[2] == 9
    assert trainer.sample_num_frames == 5
    loaded = phenaki().load(tmp_path / "results" / "model-1.pt")
    assert torch.equal(loaded.maskgit.model.embedding.weight, model.maskgit.model.embedding.weight)


def test_clips_longer_than_the_window_are_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="more than max_seq_len=40"):
        make(tmp_path, phenaki(), num_frames=65)


def test_videos_of_any_range_have_the_codes_of_a_hand_written_loop(tmp_path: Path) -> None:
    videos = [torch.rand(3, 5, 16, 16, generator=torch.Generator().manual_seed(index)) * 2 - 1 for index in range(8)]
    model = phenaki()
    trainer = make(tmp_path, model, dataset=Items(lambda index: (videos[index], "a clip")))
    split = trainer.own.splits.train
    items = [split.load(number, ItemRNG(0, [0], [number])) for number in range(len(split))]
    numbers = [int(split.name(number).removeprefix("item ")) for number in range(len(split))]
    expected = model.cvivit(torch.stack([videos[number] for number in numbers]), return_only_codebook_ids=True)
    assert torch.equal(torch.stack([item["codes"] for item in items]), expected)


@pytest.mark.parametrize("make_trainer", [make_cvivit, make_phenaki])
def test_train_on_images_wins_over_the_number_of_frames(make_trainer: Any, tmp_path: Path) -> None:
    trainer = make_trainer(tmp_path, train_on_images=True, num_frames=17)
    assert trainer.own.config.data.frames == 1
    trainer.train_step()


EMBEDDED = {
    "by type": (lambda index: (torch.rand(3, 5, 16, 16), torch.randn(2 + index % 2, 768)), None),
    "by name": (lambda index: (torch.randn(3, 768), torch.rand(3, 5, 16, 16)), ("text_embeds", "videos")),
}


@pytest.mark.parametrize("kind", EMBEDDED)
def test_text_embeddings_of_items_train_the_projection(kind: str, tmp_path: Path) -> None:
    make_item, fields = EMBEDDED[kind]
    model = phenaki()
    before = model.maskgit.project.project.weight.detach().clone()
    trainer = make(tmp_path, model, dataset=Items(make_item), dataset_fields=fields)
    trainer.train()
    assert not torch.equal(model.maskgit.project.project.weight, before)
    loaded = phenaki().load(tmp_path / "results" / "model-1.pt")
    assert torch.equal(loaded.maskgit.project.project.weight, model.maskgit.project.project.weight)
    videos, embeds = torch.rand(2, 3, 5, 16, 16), torch.randn(2, 3, 768)
    torch.manual_seed(3)
    expected = model.eval()(videos, text_embeds=embeds)
    torch.manual_seed(3)
    loaded.cvivit.load_state_dict(model.cvivit.state_dict())
    assert torch.allclose(loaded.eval()(videos, text_embeds=embeds), expected)


@pytest.mark.parametrize("is_separate", [False, True])
def test_text_embeddings_train_beside_a_critic(is_separate: bool, tmp_path: Path) -> None:
    sizes: dict[str, Any] = {"num_tokens": 16, "max_seq_len": 40, "dim": 16, "depth": 1, "heads": 2, "dim_head": 8}
    critic = TokenCritic(**sizes, dim_context=768, has_cross_attn=True) if is_separate else None
    model = phenaki(critic=critic, self_token_critic=not is_separate)
    trainer = make(tmp_path, model, dataset=Items(EMBEDDED["by type"][0]))
    assert trainer.train_step() > 0


def test_text_embeddings_of_another_dimension_are_refused(tmp_path: Path) -> None:
    data = Items(lambda index: (torch.rand(3, 5, 16, 16), torch.randn(3, 24)))
    with pytest.raises(UsageError, match="dimension 24, but the model takes 768; pass text_embed_dim=24"):
        make(tmp_path, phenaki(), dataset=data)


def test_captions_of_a_file_are_the_sample_texts(tmp_path: Path) -> None:
    file = tmp_path / "captions.txt"
    file.write_text("a red ball\na blue ball\n", encoding="utf-8")
    trainer = make(tmp_path, phenaki(), sample_texts_file_path=str(file))
    assert trainer.sample_texts == ["a red ball", "a blue ball"]
