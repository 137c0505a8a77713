"""Scripts without a trainer: the user's own optimizer and `torch.manual_seed` work as with the original packages."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from compat.trainers import storm
from compat.usages import meshgpt_pytorch as mesh
from compat.usages import muse_maskgit_pytorch as muse
from compat.usages import phenaki_pytorch as phenaki

pytestmark = pytest.mark.filterwarnings("ignore::quintet.compat.CompatibilityNotice")


def surviving(optimizer: torch.optim.Optimizer, model: nn.Module) -> tuple[int, int]:
    """How many parameters of the optimizer the model still has, and how many there are."""
    own = {id(parameter) for parameter in model.parameters()}
    chosen = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    return sum(id(parameter) in own for parameter in chosen), len(chosen)


def changed_by_a_step(optimizer: torch.optim.Optimizer, loss: torch.Tensor) -> bool:
    chosen = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    before = [parameter.detach().clone() for parameter in chosen]
    loss.backward()
    optimizer.step()
    return any(not torch.equal(old, new) for old, new in zip(before, chosen, strict=True))


@pytest.mark.parametrize("self_token_critic", [False, True])
def test_an_optimizer_built_before_a_phenaki_trains_the_maskgit_in_it(self_token_critic: bool) -> None:
    maskgit = phenaki.tiny_maskgit()
    optimizer = torch.optim.Adam(maskgit.parameters(), lr=0.1)
    model = phenaki.tiny_phenaki(maskgit=maskgit, self_token_critic=self_token_critic)
    kept, count = surviving(optimizer, model)
    assert kept == count
    assert changed_by_a_step(optimizer, model(phenaki.random_videos(), texts=phenaki.TEXTS))


def test_another_dimension_of_text_embeddings_keeps_the_parameters() -> None:
    maskgit = phenaki.tiny_maskgit()
    optimizer = torch.optim.Adam(maskgit.parameters(), lr=0.1)
    model = phenaki.tiny_phenaki(maskgit=maskgit, text_embed_dim=24)
    kept, count = surviving(optimizer, model)
    assert kept == count
    assert changed_by_a_step(optimizer, model(phenaki.random_videos(), text_embeds=torch.randn(2, 3, 24)))


def test_a_maskgit_alone_keeps_its_parameters_at_the_first_call() -> None:
    maskgit = phenaki.tiny_maskgit()
    optimizer = torch.optim.Adam(maskgit.parameters(), lr=0.1)
    logits = maskgit(torch.randint(0, 64, (2, 5, 2, 1)), context=torch.randn(2, 3, 768))
    kept, count = surviving(optimizer, maskgit)
    assert kept == count
    assert changed_by_a_step(optimizer, logits.square().mean())


@pytest.mark.parametrize(
    "options", [{"self_token_critic": True}, {"cond_image_size": 8}, {}], ids=["critic", "super-resolution", "longer"]
)
def test_an_optimizer_built_before_a_muse_maskgit_trains_the_transformer_in_it(options: dict[str, Any]) -> None:
    transformer = muse.tiny_transformer(seq_len=muse.tiny_transformer().seq_len * (1 if options else 2))
    optimizer = torch.optim.Adam(transformer.parameters(), lr=0.1)
    model = muse.tiny_maskgit(transformer=transformer, **options)
    kept, count = surviving(optimizer, model)
    assert kept == count
    images = torch.rand(2, 3, model.image_size, model.image_size)
    assert changed_by_a_step(optimizer, model(images, texts=["a", "b"]))


def test_a_gradient_of_an_unchanged_parameter_is_kept() -> None:
    maskgit = phenaki.tiny_maskgit()
    for parameter in maskgit.parameters():
        parameter.grad = torch.ones_like(parameter)
    embedding = maskgit.model.embedding.weight
    phenaki.tiny_phenaki(maskgit=maskgit)
    assert maskgit.model.embedding.weight is embedding
    assert embedding.grad is not None
    for parameter in maskgit.parameters():
        assert parameter.grad is None or parameter.grad.shape == parameter.shape


def phenaki_samples() -> Callable[[], torch.Tensor]:
    model = phenaki.tiny_phenaki()
    return lambda: model.sample(texts=phenaki.TEXTS, num_frames=5)


def muse_samples() -> Callable[[], torch.Tensor]:
    model = muse.tiny_maskgit()
    return lambda: model.generate(texts=muse.TEXTS, timesteps=2)


def soundstorm_samples() -> Callable[[], torch.Tensor]:
    model, semantic = storm(), torch.randint(0, 5, (2, 10))
    return lambda: torch.as_tensor(model.generate(cond_semantic_token_ids=semantic))


def mesh_samples() -> Callable[[], torch.Tensor]:
    model = mesh.transformer()
    return lambda: torch.nn.functional.pad(model.generate(max_seq_len=24, return_codes=True), (0, 0, 0, 24))[:, :8]


def phenaki_losses() -> Callable[[], torch.Tensor]:
    model, videos = phenaki.tiny_phenaki(), phenaki.random_videos()
    return lambda: model(videos, texts=phenaki.TEXTS).detach()


def muse_losses() -> Callable[[], torch.Tensor]:
    model, images = muse.tiny_maskgit(), muse.random_images()
    return lambda: model(images, texts=muse.TEXTS).detach()


@pytest.mark.parametrize(
    "make", [phenaki_samples, muse_samples, soundstorm_samples, mesh_samples, phenaki_losses, muse_losses]
)
def test_manual_seed_before_a_call_reproduces_it_and_two_calls_in_a_row_differ(
    make: Callable[[], Callable[[], torch.Tensor]],
) -> None:
    torch.manual_seed(0)
    call = make()
    torch.manual_seed(7)
    first, second = call(), call()
    torch.manual_seed(7)
    assert torch.equal(call(), first)
    assert not torch.equal(second, first)
