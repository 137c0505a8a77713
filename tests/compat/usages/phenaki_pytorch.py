"""Usages of the models of phenaki-pytorch, and of its trainers with them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor
from torch.utils.data import Dataset

from compat.usage import usage
from quintet.compat.phenaki_pytorch import (
    CViViT,
    CViViTTrainer,
    MaskGit,
    Phenaki,
    PhenakiTrainer,
    TokenCritic,
    make_video,
)

TEXTS = ["a whale breaching from afar", "fireworks"]


def tiny_cvivit(**changes: Any) -> CViViT:
    sizes = {"dim": 32, "codebook_size": 64, "image_size": (16, 8), "patch_size": 8, "temporal_patch_size": 2}
    depths = {"spatial_depth": 1, "temporal_depth": 1, "dim_head": 16, "heads": 2}
    return CViViT(**{**sizes, **depths, **changes})


def tiny_maskgit(**changes: Any) -> MaskGit:
    sizes = {"num_tokens": 64, "max_seq_len": 40, "dim": 32, "dim_context": 768, "depth": 1, "heads": 2, "dim_head": 16}
    return MaskGit(**{**sizes, **changes})


def tiny_critic(**changes: Any) -> TokenCritic:
    sizes = {"num_tokens": 64, "max_seq_len": 40, "dim": 32, "dim_context": 768, "depth": 1, "heads": 2, "dim_head": 16}
    return TokenCritic(**{**sizes, "has_cross_attn": True, **changes})


def tiny_phenaki(**changes: Any) -> Phenaki:
    return Phenaki(**{"cvivit": tiny_cvivit(), "maskgit": tiny_maskgit(), "steps": 2, **changes})


def random_videos(frames: int = 5) -> Tensor:
    return torch.randn(2, 3, frames, 16, 8)


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


@usage("CViViT", "forward returns the loss, of videos and of images")
def cvivit_loss() -> None:
    cvivit, videos = tiny_cvivit(), random_videos()
    loss, recons = cvivit(videos, return_recons=True)
    loss.backward()
    assert recons.shape == videos.shape
    loss, recons = cvivit(videos[:, :, 0], return_recons=True)
    loss.backward()
    assert recons.shape == (2, 3, 16, 8)


@usage("CViViT", "a training loop without GAN")
def cvivit_loop() -> None:
    cvivit, videos = tiny_cvivit(use_vgg_and_gan=False, lookup_free_quantization=False), random_videos()
    values = steps_of(cvivit, lambda: cvivit(videos))
    assert cvivit.discr is None
    assert values[-1] < values[0]


@usage("CViViT", "mask of videos of different lengths")
def cvivit_mask() -> None:
    mask = torch.tensor([[True] * 5, [True] * 3 + [False] * 2])
    tiny_cvivit()(random_videos(), mask=mask).backward()


@usage("CViViT", "return_discr_loss and apply_grad_penalty")
def cvivit_discriminator() -> None:
    cvivit = tiny_cvivit()
    optimizer = torch.optim.Adam(cvivit.discr.parameters(), lr=1e-3)
    for penalty in (True, False):
        cvivit(random_videos(), return_discr_loss=True, apply_grad_penalty=penalty).backward()
        optimizer.step()


@usage("CViViT", "return_recons_only and return_only_codebook_ids")
def cvivit_codes() -> None:
    cvivit, videos = tiny_cvivit(), random_videos()
    ids = cvivit(videos, return_only_codebook_ids=True)
    assert ids.shape == (2, *cvivit.get_video_patch_shape(5)) == (2, 3, 2, 1)
    assert ids[0].numel() == cvivit.num_tokens_per_frames(5)
    assert cvivit(videos, return_recons_only=True).shape == videos.shape
    assert cvivit.decode_from_codebook_indices(ids.flatten(1)).shape == videos.shape


@usage("CViViT", "save, load and copy_for_eval")
def cvivit_saves() -> None:
    cvivit, other = tiny_cvivit(), tiny_cvivit()
    cvivit.save("./cvivit.pt")
    other.load("./cvivit.pt")
    videos = random_videos()
    first, second = (each.copy_for_eval()(videos, return_recons_only=True) for each in (cvivit, other))
    assert torch.equal(first, second)


@usage("CViViT", "channels=1", refused="videos are RGB")
def cvivit_gray() -> None:
    tiny_cvivit(channels=1)


@usage("MaskGit", "forward returns logits of codes")
def maskgit_logits() -> None:
    maskgit, ids = tiny_maskgit(), torch.randint(0, 64, (2, 3, 2, 1))
    context = torch.randn(2, 4, 768)
    assert maskgit(ids, context=context, cond_drop_prob=0.5).shape == (2, 6, 64)
    flat = ids.flatten(1)
    assert maskgit.forward_with_cond_scale(flat, context=context, video_patch_shape=(3, 2, 1)).shape == (2, 6, 64)


@usage("MaskGit", "gradient_shrink_alpha other than the default", refused="gradients of embeddings are not shrunk")
def maskgit_shrink() -> None:
    tiny_maskgit(gradient_shrink_alpha=0.5)


@usage("TokenCritic", "forward returns one logit per code")
def critic_logits() -> None:
    ids = torch.randint(0, 64, (2, 3, 2, 1))
    assert tiny_critic()(ids, context=torch.randn(2, 4, 768), cond_drop_prob=0.0).shape == (2, 6)
    assert tiny_critic(has_cross_attn=False)(ids).shape == (2, 6)


@usage("Phenaki", "forward with videos, texts and video_frame_mask returns the loss (README)")
def phenaki_readme() -> None:
    phenaki, videos = tiny_phenaki(maskgit=tiny_maskgit(num_tokens=50)), random_videos()
    mask = torch.ones((2, 5)).bool()
    values = steps_of(phenaki, lambda: phenaki(videos, texts=TEXTS, video_frame_mask=mask))
    assert values[-1] < values[0]


@usage("Phenaki", "sample continues prime_frames and returns only new frames (README)")
def phenaki_prime() -> None:
    phenaki = tiny_phenaki()
    video = phenaki.sample(texts="a squirrel examines an acorn", num_frames=17, cond_scale=5.0)
    assert video.shape == (1, 3, 17, 16, 8)
    video_prime = video[:, :, -3:]
    video_next = phenaki.sample(texts="a cat watches the squirrel", prime_frames=video_prime, num_frames=14)
    assert video_next.shape == (1, 3, 14, 16, 8)
    assert torch.cat((video, video_next), dim=2).shape == (1, 3, 17 + 14, 16, 8)


@usage("Phenaki", "images as input; sample_images")
def phenaki_images() -> None:
    phenaki = tiny_phenaki()
    phenaki(torch.randn(2, 3, 16, 8), texts=TEXTS).backward()
    assert phenaki.sample_images(texts=TEXTS, starting_temperature=0.7).shape == (2, 3, 16, 8)


@usage("Phenaki", "video_codebook_ids, text_embeds and cond_drop_prob")
def phenaki_ids() -> None:
    ids = torch.randint(0, 64, (2, 3, 2, 1))
    tiny_phenaki()(video_codebook_ids=ids, text_embeds=torch.randn(2, 4, 768), cond_drop_prob=0.9).backward()
    tiny_phenaki(text_embed_dim=32)(video_codebook_ids=ids, text_embeds=torch.randn(2, 4, 32)).backward()


@usage("Phenaki", "critic, only_train_generator and only_train_critic (README)")
def phenaki_critic() -> None:
    trainer = tiny_phenaki(critic=tiny_critic())
    for options in ({}, {"only_train_generator": True}, {"only_train_critic": True}):
        trainer(videos=random_videos(3), texts=TEXTS, **options).backward()
    assert trainer.sample(texts="a whale", num_frames=3, noise_K=0.5).shape == (1, 3, 3, 16, 8)


@usage("Phenaki", "self_token_critic (README)")
def phenaki_self_critic() -> None:
    phenaki = tiny_phenaki(self_token_critic=True, critic_loss_weight=0.5, critic_train_sample_temperature=0.8)
    phenaki(random_videos(), texts=TEXTS).backward()
    assert phenaki.sample(texts="a whale", num_frames=3).shape == (1, 3, 3, 16, 8)


@usage("Phenaki", "unconditional")
def phenaki_unconditional() -> None:
    phenaki = tiny_phenaki(maskgit=tiny_maskgit(unconditional=True))
    phenaki(random_videos()).backward()
    assert phenaki.sample(num_frames=3, batch_size=2).shape == (2, 3, 3, 16, 8)


@usage("Phenaki", "save and load")
def phenaki_saves() -> None:
    phenaki, other = tiny_phenaki(), tiny_phenaki()
    phenaki.save("./phenaki.pt")
    other.load("./phenaki.pt")
    assert all(torch.equal(value, other.state_dict()[name]) for name, value in phenaki.state_dict().items())


@usage("Phenaki", "critic_noise_anneal_schedule='fixed'", refused="always decays")
def phenaki_noise() -> None:
    tiny_phenaki(critic_noise_anneal_schedule="fixed")


@usage("make_video", "scenes that continue each other (README)")
def scenes() -> None:
    entire_video, parts = make_video(
        tiny_phenaki(), texts=["a squirrel", "a cat", "a room"], num_frames=(17, 14, 14), prime_lengths=(5, 5)
    )
    assert entire_video.shape == (1, 3, 17 + 14 + 14, 16, 8)
    assert [part.shape[2] for part in parts] == [17, 14, 14]


def images_in(folder: Path, count: int = 6) -> str:
    for number in range(count):
        pixels = np.full((16, 16, 3), 40 * number, np.uint8)
        Image.fromarray(pixels).save(folder / f"{number}.png")
    return str(folder)


class MockTextVideoDataset(Dataset[Any]):
    def __init__(self, length: int = 10, image_size: int = 16, num_frames: int = 5) -> None:
        super().__init__()
        self.num_frames, self.image_size, self.len = num_frames, image_size, length

    def __len__(self) -> int:
        return self.len

    def __getitem__(self, idx: int) -> Any:
        video = torch.randn(3, self.num_frames, self.image_size, self.image_size // 2)
        return video, "video caption"


@usage("CViViTTrainer", "a folder of images, train_on_images and use_ema=False (README)")
def cvivit_trainer(folder: Path) -> None:
    (folder / "images").mkdir()
    trainer = CViViTTrainer(
        tiny_cvivit(),
        folder=images_in(folder / "images"),
        batch_size=2,
        grad_accum_every=2,
        train_on_images=True,
        use_ema=False,
        num_train_steps=2,
    )
    trainer.train()
    assert int(trainer.steps.item()) == 2


@usage("PhenakiTrainer", "a data set of random videos and captions (README)")
def phenaki_trainer(folder: Path) -> None:
    (folder / "captions.txt").write_text("a whale\nfireworks\n")
    phenaki = tiny_phenaki()
    trainer = PhenakiTrainer(
        phenaki=phenaki,
        batch_size=2,
        grad_accum_every=2,
        train_on_images=False,
        dataset=MockTextVideoDataset(),
        num_frames=5,
        train_num_steps=2,
        num_samples=3,
        sample_num_frames=3,
        sample_texts_file_path=str(folder / "captions.txt"),
    )
    trainer.train()
    assert len(list(folder.glob("results/*/samples/*/0*.gif"))) == 3
    assert phenaki.sample(texts="a whale", num_frames=3).shape == (1, 3, 3, 16, 8)


@usage("PhenakiTrainer", "unconditional, a folder of images (README)")
def phenaki_trainer_images(folder: Path) -> None:
    (folder / "images").mkdir()
    trainer = PhenakiTrainer(
        phenaki=tiny_phenaki(maskgit=tiny_maskgit(unconditional=True)),
        batch_size=2,
        grad_accum_every=2,
        train_on_images=True,
        dataset=images_in(folder / "images"),
        train_num_steps=2,
        num_samples=2,
    )
    trainer.train()
