"""`SoundStorm` of soundstorm-pytorch: padded semantic tokens, masks, the critic's weight, and loading."""

from __future__ import annotations

import warnings
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest
import torch

from compat.trainers import Items, make_soundstorm, storm
from compat.usages.soundstorm_pytorch import SEMANTIC, codes, soundstream, wrapper
from quintet.common.rng import ItemRNG
from quintet.compat import CompatibilityNotice
from quintet.compat.soundstorm_pytorch import SoundStorm, SoundStormTrainer
from quintet.errors import UsageError


@pytest.fixture(autouse=True)
def no_notices() -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", CompatibilityNotice)
        yield


def test_codes_behind_the_mask_are_valid() -> None:
    mask = torch.arange(32) < torch.tensor([32, 20])[:, None]
    generated = SoundStorm(wrapper(), steps=2).generate(32, mask=mask, batch_size=2)
    assert 0 <= int(generated.min()) <= int(generated.max()) < 64
    assert (
        SoundStorm(wrapper(), soundstream=soundstream(), steps=2).generate(32, mask=mask, batch_size=2).isfinite().all()
    )


@pytest.mark.parametrize("count", [40, 64, 90])
def test_semantic_tokens_of_another_length_are_padded_or_cut(count: int) -> None:
    model = SoundStorm(wrapper(), steps=2, **SEMANTIC)
    loss, _ = model(codes(), cond_semantic_token_ids=torch.randint(0, 50, (2, count)))
    loss.backward()
    assert loss.isfinite()


@pytest.mark.parametrize("pad_id", [-1, 0, 50])
def test_padding_of_semantic_tokens_is_no_condition(pad_id: int) -> None:
    model = SoundStorm(wrapper(), steps=2, semantic_pad_id=pad_id, **SEMANTIC).eval()
    tokens = torch.randint(1, 50, (2, 64))
    tokens[1, 20:] = pad_id
    assert model.generate(cond_semantic_token_ids=tokens).shape == (2, 32 * 3)
    vectors = model.maybe_get_condition(tokens)
    assert vectors.shape == (2, 32, 32)
    assert torch.equal(vectors[1, 10:], vectors[1, 10:11].expand(22, 32))
    shorter = model.maybe_get_condition(tokens[1:, :20], length=32)
    assert torch.equal(shorter[0], vectors[1])


def test_there_is_no_condition_without_semantic_tokens() -> None:
    assert SoundStorm(wrapper()).maybe_get_condition() is None
    with pytest.raises(UsageError, match="needs cond_semantic_token_ids"):
        SoundStorm(wrapper(), **SEMANTIC).maybe_get_condition()


def test_semantic_tokens_outside_of_the_vocabulary_are_named_by_the_argument_of_the_user() -> None:
    with pytest.raises(UsageError, match="num_semantic_token_ids=50"):
        SoundStorm(wrapper(), **SEMANTIC)(codes(), cond_semantic_token_ids=torch.full((2, 64), 50))


@pytest.mark.parametrize("pad_id", [-1, 4])
def test_a_trainer_takes_semantic_tokens_that_are_padded_or_too_short(pad_id: int, tmp_path: Path) -> None:
    def item(index: int) -> tuple[torch.Tensor, torch.Tensor]:
        semantic = torch.randint(0, 4, (4,))
        padded = torch.cat([semantic, torch.full((index,), pad_id)]) if index % 2 else semantic
        return padded, torch.randint(0, 9, (20, 3))

    trainer = make_soundstorm(tmp_path, model=storm(semantic_pad_id=pad_id), dataset=Items(item), num_train_steps=2)
    trainer.train()
    assert trainer.own.step == 2
    assert not trainer.own.splits.skipped
    for position in (0, 1):
        loaded = trainer.own.splits.train.load(position, ItemRNG(0, [0], [position]))
        assert loaded["semantic"].shape == (10,)
        assert (loaded["semantic"][4:] < 0).all()


def test_a_trainer_names_the_arguments_of_the_user(tmp_path: Path) -> None:
    data = Items(lambda index: (torch.randint(0, 5, (10,)), torch.randint(0, 9, (20, 4))))
    with pytest.raises(UsageError, match=r"codes of 4 quantizers; the conformer has 3 \(num_quantizers"):
        make_soundstorm(tmp_path, dataset=data).train()


def test_waveforms_of_a_random_data_set_are_read_at_every_step(tmp_path: Path) -> None:
    class Noise:
        def __len__(self) -> int:
            return 4

        def __getitem__(self, index: int) -> torch.Tensor:
            return torch.randn(3200)

    model = SoundStorm(wrapper(), soundstream=soundstream(), steps=2)
    trainer = SoundStormTrainer(
        model,
        num_train_steps=2,
        num_warmup_steps=1,
        batch_size=2,
        dataset=Noise(),
        results_folder=str(tmp_path / "out"),
    )
    first, second = (trainer.own.splits.train.load(0, ItemRNG(0, [0], [0]))["codes"] for _ in range(2))
    assert first.shape == (10, 3)
    assert not torch.equal(first, second)
    trainer.train_step()


def test_the_loss_of_the_critic_has_its_weight(tmp_path: Path) -> None:
    model = SoundStorm(wrapper(), self_token_critic=True, critic_loss_weight=0.25)
    loss, parts = model(codes())
    torch.testing.assert_close(loss, parts.generator_loss + 0.25 * parts.critic_loss)
    trained = storm(self_token_critic=True, critic_loss_weight=0.25)
    logs = make_soundstorm(tmp_path, model=trained, num_train_steps=2).train_step()
    assert logs["loss"] == pytest.approx(logs["generator_loss"] + 0.25 * logs["critic_loss"])


def test_the_critic_judges_codes_sampled_at_the_temperature() -> None:
    model = SoundStorm(wrapper(), self_token_critic=True).eval()
    for parameter in model.model.to_score.parameters():  # they start at 0, where all codes have the same score
        torch.nn.init.normal_(parameter)
    x = codes()

    def critic_loss(temperature: float | None) -> float:
        torch.manual_seed(0)  # with a copy: the same masks and random numbers
        parts = deepcopy(model)(x, generator_sample_temperature=temperature)[1]
        return float(parts.critic_loss.detach())

    assert critic_loss(None) == critic_loss(1.0)
    assert critic_loss(0.0) != critic_loss(1.0)


def test_sum_embeds_reach_the_conformer() -> None:
    model = SoundStorm(wrapper(), steps=1).eval()
    x, embeds = codes(), torch.randn(2, 32 * 3, 32, requires_grad=True)
    model(x, sum_embeds=embeds)[0].backward()
    assert bool((embeds.grad != 0).any())
    assert model.generate(32, batch_size=2, sum_embeds=embeds).shape == (2, 96)


def test_load_returns_the_weights_and_the_step(tmp_path: Path) -> None:
    model = storm()
    trainer = make_soundstorm(tmp_path, model=model, num_train_steps=2, save_model_every=1)
    trainer.train()
    package = storm().load(tmp_path / "results" / "soundstorm.2.pt")
    assert package["step"] == 2
    assert package["model"].keys() == model.state_dict().keys()
    model.save(tmp_path / "saved.pt")
    assert "step" not in storm().load(tmp_path / "saved.pt")
