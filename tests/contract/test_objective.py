"""Every recipe: the loss of its model in a hand-written loop, by `Objective`."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from contract.cases import Case
from contract.worlds import make_task
from quintet import Objective, VQGanVAE
from quintet.common.rng import ItemRNG
from quintet.errors import UsageError


def test_the_loss_of_a_model_falls_in_a_hand_written_loop(recipe: str, case: Case, data: Path) -> None:
    made = make_task(recipe, data, case.tiny)
    source = made.splits().train
    items = [source.load(item, ItemRNG(0, [0], [item])) for item in range(2)]
    model = made.modules[made.pipeline_class.exported]
    keys = {"data": made.config.data.model_dump(mode="json")}
    if "discriminator" in made.modules:
        keys["loss"] = {"discriminator_start": 0}
    objective = Objective(model, recipe=recipe, keys=keys, **made.frozen)
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    losses = []
    for _ in range(8):
        loss = objective(items)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert loss.shape == ()
    assert sum(losses[-4:]) < sum(losses[:4])
    if "discriminator" in made.modules:
        objective(items, phase="discriminator").backward()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    with torch.no_grad():
        model.eval()
        objective(items)
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())


def test_fields_are_the_values_of_all_items() -> None:
    torch.manual_seed(0)
    vae = VQGanVAE(dim=8, image_size=16, layers=2, codebook_size=16)
    images = torch.rand(3, 3, 16, 16)
    losses = [
        objective(images=images) if by_field else objective([{"images": image} for image in images])
        for by_field in (True, False)
        for objective in [Objective(vae.eval(), seed=1)]
    ]
    assert torch.equal(*losses)


def test_a_model_of_two_recipes_or_of_none_needs_a_recipe() -> None:
    with pytest.raises(UsageError, match=r"Objective\(Linear\) needs recipe="):
        Objective(torch.nn.Linear(2, 2))
    vae = VQGanVAE(dim=8, image_size=16, layers=2, codebook_size=16)
    with pytest.raises(UsageError, match="has no phase 'critic'; it has generator"):
        Objective(vae)(images=torch.rand(1, 3, 16, 16), phase="critic")
