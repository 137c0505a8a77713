"""`VQGanVAE` of `quintet.compat.muse_maskgit_pytorch`, and what it shares with every compat model."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from quintet.compat.muse_maskgit_pytorch import VQGanVAE
from quintet.errors import UsageError
from quintet.pipelines.loading import open_pipeline

pytestmark = pytest.mark.filterwarnings("ignore::quintet.compat.CompatibilityNotice")


def tiny(**changes: Any) -> VQGanVAE:
    return VQGanVAE(**{"dim": 16, "layers": 2, "codebook_size": 64, "discr_layers": 2, **changes})


def images(count: int = 2) -> Tensor:
    return torch.rand(count, 3, 16, 16, generator=torch.Generator().manual_seed(1))


def losses(seed: int, **changes: Any) -> list[float]:
    torch.manual_seed(seed)
    vae = tiny(**changes)
    optimizer = torch.optim.SGD(vae.parameters(), lr=1e-2)
    values = []
    for _ in range(3):
        loss = vae(images(), return_loss=True)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        values.append(loss.item())
    return values


def test_a_loop_with_the_same_seed_repeats_and_one_with_another_seed_does_not() -> None:
    assert losses(1) == losses(1)
    assert losses(1) != losses(2)


def test_the_codebook_changes_at_the_next_training_pass_and_not_before() -> None:
    vae = tiny(lookup_free_quantization=False)
    vae(images(), return_loss=True)
    initialised = vae.quantizer.codebook.clone()
    vae(images(), return_discr_loss=True)
    vae.eval()
    vae(images(), return_loss=True)
    assert torch.equal(vae.quantizer.codebook, initialised)
    vae.train()
    vae(images(), return_loss=True)
    assert not torch.equal(vae.quantizer.codebook, initialised)


def test_the_generator_loss_gives_the_discriminator_no_gradient_and_the_other_way_round() -> None:
    vae = tiny()
    assert vae.discr is not None
    vae(images(), return_loss=True).backward()
    assert all(parameter.grad is None for parameter in vae.discr.parameters())
    vae.zero_grad()
    vae(images(), return_discr_loss=True).backward()
    assert all(parameter.grad is not None for parameter in vae.discr.parameters())
    assert all(parameter.grad is None for parameter in vae.model.parameters())


def test_without_gradient_penalty_the_discriminator_loss_is_smaller_by_it() -> None:
    vae = tiny()
    with_penalty = vae(images(), return_discr_loss=True)
    without = vae(images(), return_discr_loss=True, add_gradient_penalty=False)
    assert with_penalty.item() > without.item()


def test_a_loss_without_gradients_is_the_loss_with_them() -> None:
    vae = tiny().eval()
    with torch.no_grad():
        loss = vae(images(), return_loss=True)
    assert not loss.requires_grad
    assert loss.item() == vae(images(), return_loss=True).item()


def test_a_saved_folder_loads_again_and_opens_as_a_tokenizer(tmp_path: Path) -> None:
    vae, other = tiny().eval(), tiny().eval()
    vae.save(tmp_path / "vae.pt")
    vae.save(tmp_path / "vae.pt")  # replaces the first
    other.load(tmp_path / "vae.pt")
    assert all(torch.equal(value, other.state_dict()[name]) for name, value in vae.state_dict().items())
    assert torch.equal(open_pipeline(tmp_path / "vae.pt").encode(images()), vae.encode(images())[1])
    assert [path.name for path in tmp_path.iterdir()] == ["vae.pt"]


def test_a_pickled_file_is_never_opened_and_never_replaced(tmp_path: Path) -> None:
    (tmp_path / "vae.pt").write_bytes(b"pickle")
    with pytest.raises(UsageError, match="never opens pickled checkpoints"):
        tiny().load(tmp_path / "vae.pt")
    with pytest.raises(UsageError, match="was not written by quintet"):
        tiny().save(tmp_path / "vae.pt")
    assert (tmp_path / "vae.pt").read_bytes() == b"pickle"


def test_codes_decode_to_the_reconstruction() -> None:
    vae = tiny().eval()
    fmap, codes, _ = vae.encode(images())
    assert fmap.shape == (2, 32, 4, 4)
    assert codes.shape == (2, 4, 4)
    for decoded in (vae.decode(fmap), vae.decode_from_ids(codes), vae.copy_for_eval()(images())):
        torch.testing.assert_close(decoded, vae(images()))
