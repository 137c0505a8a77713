"""Usages of the models of muse-maskgit-pytorch, and of its trainer with them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from PIL import Image
from torch import Tensor

from compat.usage import usage
from quintet.compat.muse_maskgit_pytorch import (
    MaskGit,
    MaskGitTransformer,
    Muse,
    TokenCritic,
    Transformer,
    VQGanVAE,
    VQGanVAETrainer,
)

TEXTS = ["a lizard runs across the desert", "seashells in shallow water"]


def tiny_vae(**changes: Any) -> VQGanVAE:
    return VQGanVAE(**{"dim": 16, "layers": 2, "codebook_size": 64, **changes})


def tiny_transformer(seq_len: int = 16, **changes: Any) -> MaskGitTransformer:
    sizes = {"num_tokens": 64, "seq_len": seq_len, "dim": 32, "depth": 1, "dim_head": 16, "heads": 2, "ff_mult": 4}
    return MaskGitTransformer(**{**sizes, "t5_name": "t5-small", **changes})


def tiny_maskgit(**changes: Any) -> MaskGit:
    parts = {"vae": tiny_vae(), "transformer": tiny_transformer(), "image_size": 16, "cond_drop_prob": 0.25}
    return MaskGit(**{**parts, **changes})


def random_images(side: int = 16) -> Tensor:
    return torch.randn(2, 3, side, side)


def steps_of(model: Any, loss: Any) -> list[float]:
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    values = []
    for _ in range(8):
        value = loss()
        value.backward()
        optimizer.step()
        optimizer.zero_grad()
        values.append(value.item())
    return values


@usage("VQGanVAE", "forward returns reconstructions")
def vae_reconstructs() -> None:
    assert tiny_vae()(random_images()).shape == (2, 3, 16, 16)


@usage("VQGanVAE", "return_loss in a training loop")
def vae_loss() -> None:
    vae, images = tiny_vae(use_vgg_and_gan=False), random_images()
    values = steps_of(vae, lambda: vae(images, return_loss=True))
    assert values[-1] < values[0]


@usage("VQGanVAE", "return_discr_loss, add_gradient_penalty and return_recons, with an optimizer of discr.parameters()")
def vae_discriminator() -> None:
    vae, images = tiny_vae(), random_images()
    discr_parameters = set(vae.discr.parameters())
    optimizer = torch.optim.Adam(discr_parameters, lr=1e-3)
    loss, recons = vae(images, return_discr_loss=True, add_gradient_penalty=True, return_recons=True)
    loss.backward()
    optimizer.step()
    assert recons.shape == images.shape
    assert set(vae.parameters()) > discr_parameters


@usage("VQGanVAE", "encode, decode, decode_from_ids and get_encoded_fmap_size")
def vae_codes() -> None:
    vae = tiny_vae()
    fmap, ids, aux_loss = vae.encode(random_images())
    assert fmap.shape == (2, vae.encoded_dim, 4, 4)
    assert ids.shape == (2, vae.get_encoded_fmap_size(16), 4)
    assert aux_loss.ndim == 0
    assert vae.decode(fmap).shape == vae.decode_from_ids(ids).shape == (2, 3, 16, 16)


@usage("VQGanVAE", "save, load and copy_for_eval")
def vae_saves() -> None:
    vae, other = tiny_vae(), tiny_vae()
    vae.save("./vae.pt")
    other.load("./vae.pt")
    images = random_images()
    assert torch.equal(vae.copy_for_eval()(images), other.copy_for_eval()(images))


@usage("VQGanVAE", "load of a file that the original package wrote", refused="never opens pickled checkpoints")
def vae_old_file() -> None:
    Path("vae.pt").write_bytes(b"PK")
    tiny_vae().load("vae.pt")


@usage("VQGanVAE", "grayscale, l2_recon_loss, lookup_free_quantization=False, without GAN")
def vae_options() -> None:
    vae = tiny_vae(channels=1, l2_recon_loss=True, lookup_free_quantization=False, use_vgg_and_gan=False)
    images = torch.rand(2, 1, 16, 16)
    values = steps_of(vae, lambda: vae(images, return_loss=True))
    assert vae.discr is None
    assert values[-1] < values[0]


@usage("VQGanVAE", "use_hinge_loss=False", refused="only the hinge loss")
def vae_bce() -> None:
    tiny_vae(use_hinge_loss=False)


@usage("VQGanVAE", "vgg= a module of torchvision", refused="path of a safetensors file of VGG-16")
def vae_vgg() -> None:
    tiny_vae(vgg=torch.nn.Identity())


@usage("Transformer", "forward returns logits, or the loss of labels")
def transformer_forward() -> None:
    transformer = Transformer(num_tokens=64, seq_len=16, dim=32, depth=1, heads=2, dim_head=16)
    ids = torch.randint(0, 64, (2, 16))
    assert transformer(ids, texts=TEXTS).shape == (2, 16, 64)
    loss, logits = transformer(ids, texts=TEXTS, labels=ids, ignore_index=-1, return_logits=True, cond_drop_prob=0.5)
    loss.backward()
    assert logits.shape == (2, 16, 64)
    assert transformer.forward_with_cond_scale(ids, texts=TEXTS, cond_scale=3.0).shape == (2, 16, 64)


@usage("Transformer", "text_embeds of the dimension of its T5")
def transformer_embeds() -> None:
    transformer = Transformer(num_tokens=64, seq_len=16, dim=32, depth=1, heads=2, dim_head=16, t5_name="t5-small")
    logits, embeds = transformer(torch.randint(0, 64, (2, 16)), text_embeds=torch.randn(2, 5, 512), return_embed=True)
    assert logits.shape == (2, 16, 64)
    assert embeds.shape == (2, 16, 32)


@usage("MaskGitTransformer", "encode_text without a local T5", refused="pass texts instead of text_embeds")
def transformer_encode_text() -> None:
    tiny_transformer().encode_text(TEXTS)


@usage("MaskGitTransformer", "ff_mult other than 4", refused="feed-forward layers have a fixed width")
def transformer_ff_mult() -> None:
    tiny_transformer(ff_mult=2)


@usage("MaskGit", "forward with images and texts returns the loss; generate returns images (README)")
def maskgit_readme() -> None:
    base_maskgit = tiny_maskgit()
    images = random_images()
    values = steps_of(base_maskgit, lambda: base_maskgit(images, texts=TEXTS))
    assert values[-1] < values[0]
    generated = base_maskgit.generate(texts=["a whale", "a candle", "fireworks"], cond_scale=3.0, timesteps=3)
    assert generated.shape == (3, 3, 16, 16)


@usage("MaskGit", "super-resolution with cond_image_size and cond_images (README)")
def maskgit_superres() -> None:
    superres_maskgit = tiny_maskgit(transformer=tiny_transformer(64), image_size=32, cond_image_size=16)
    images = random_images(32)
    superres_maskgit(images, texts=TEXTS).backward()
    superres_maskgit(images, texts=TEXTS, cond_images=random_images(16)).backward()
    low = F.interpolate(images, 16)
    assert superres_maskgit.generate(texts=TEXTS, cond_images=low, cond_scale=3.0, timesteps=2).shape == images.shape


@usage("MaskGit", "forward with ids, cond_token_ids, text_embeds and cond_drop_prob")
def maskgit_ids() -> None:
    maskgit = tiny_maskgit(transformer=tiny_transformer(64), image_size=32, cond_vae=tiny_vae(), cond_image_size=16)
    ids, low = torch.randint(0, 64, (2, 8, 8)), torch.randint(0, 64, (2, 4, 4))
    maskgit(ids, cond_token_ids=low, text_embeds=torch.randn(2, 5, 512), cond_drop_prob=0.9).backward()


@usage("MaskGit", "token_critic, self_token_critic, train_only_generator and sample_temperature")
def maskgit_critics() -> None:
    critic = TokenCritic(num_tokens=64, seq_len=16, dim=32, depth=1, heads=2, dim_head=16)
    for maskgit in (tiny_maskgit(token_critic=critic), tiny_maskgit(self_token_critic=True, critic_loss_weight=0.5)):
        images = random_images()
        maskgit(images, texts=TEXTS, sample_temperature=0.7).backward()
        maskgit(images, texts=TEXTS, train_only_generator=True).backward()
        for skip in (False, True):
            options = {"force_not_use_token_critic": skip, "critic_noise_scale": 0.5}
            assert maskgit.generate(texts=TEXTS, timesteps=2, **options).shape == images.shape


@usage("MaskGit", "self_cond, no_mask_token_prob and can_remask_prev_masked")
def maskgit_remask() -> None:
    maskgit = tiny_maskgit(transformer=tiny_transformer(self_cond=True), no_mask_token_prob=0.2)
    maskgit(random_images(), texts=TEXTS).backward()
    options = {"temperature": 0.9, "topk_filter_thres": 0.8, "fmap_size": 4}
    assert maskgit.generate(texts=TEXTS, timesteps=2, can_remask_prev_masked=True, **options).shape == (2, 3, 16, 16)


@usage("MaskGit", "generate with negative_texts")
def maskgit_negative() -> None:
    generated = tiny_maskgit().generate(texts=TEXTS, negative_texts=["blurry", "dark"], timesteps=2)
    assert generated.shape == (2, 3, 16, 16)


@usage("MaskGit", "noise_schedule= a function")
def maskgit_schedule() -> None:
    maskgit = tiny_maskgit(noise_schedule=lambda t: 1 - t)
    maskgit(random_images(), texts=TEXTS).backward()
    assert maskgit.generate(texts=TEXTS, timesteps=2).shape == (2, 3, 16, 16)


@usage("MaskGit", "save and load")
def maskgit_saves() -> None:
    maskgit, other = tiny_maskgit(), tiny_maskgit()
    maskgit.save("./base.pt")
    other.load("./base.pt")
    assert all(torch.equal(value, other.state_dict()[name]) for name, value in maskgit.state_dict().items())


@usage("MaskGit", "fmap_size of another image size", refused="the model was built for 4 x 4 codes")
def maskgit_fmap_size() -> None:
    tiny_maskgit().generate(texts=TEXTS, fmap_size=8)


@usage("TokenCritic", "forward returns one logit per token")
def critic_forward() -> None:
    critic = TokenCritic(num_tokens=64, seq_len=16, dim=32, depth=1, heads=2, dim_head=16)
    ids = torch.randint(0, 64, (2, 16))
    assert critic(ids, texts=TEXTS).shape == (2, 16, 1)
    critic(ids, texts=TEXTS, labels=torch.ones(2, 16)).backward()


@usage("Muse", "base and superres return a list of PIL images (README)")
def muse_images() -> None:
    superres = tiny_maskgit(transformer=tiny_transformer(64), image_size=32, cond_image_size=16)
    muse = Muse(base=tiny_maskgit(), superres=superres)
    images = muse(TEXTS, timesteps=2)
    assert [type(image) for image in images] == [Image.Image] * 2
    assert images[0].size == (32, 32)
    high, low = muse(
        TEXTS, cond_scale=2.0, timesteps=2, superres_timesteps=1, return_lowres=True, return_pil_images=False
    )
    assert (high.shape, low.shape) == ((2, 3, 32, 32), (2, 3, 16, 16))


@usage("Muse", "superres without cond_image_size", refused="cond_image_size")
def muse_without_superres() -> None:
    Muse(base=tiny_maskgit(), superres=tiny_maskgit())


@usage("VQGanVAETrainer", "a folder of images (README)")
def vae_trainer(folder: Path) -> None:
    (folder / "images").mkdir()
    for number in range(6):
        Image.fromarray(np.full((20, 20, 3), 40 * number, np.uint8)).save(folder / "images" / f"{number}.png")
    vae = tiny_vae()
    trainer = VQGanVAETrainer(
        vae=vae, image_size=16, folder=str(folder / "images"), batch_size=2, grad_accum_every=2, num_train_steps=2
    )
    trainer.train()
    base_maskgit = tiny_maskgit(vae=vae)
    base_maskgit(random_images(), texts=TEXTS).backward()
