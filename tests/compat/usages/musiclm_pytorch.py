"""Usages of the models of musiclm-pytorch."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from compat.usage import usage
from quintet.compat.musiclm_pytorch import (
    AudioLM,
    AudioSpectrogramTransformer,
    MuLaN,
    MuLaNEmbedQuantizer,
    MusicLM,
    SigmoidContrastiveLearning,
    SoftmaxContrastiveLearning,
    TextTransformer,
)


def audio_transformer(**options: Any) -> AudioSpectrogramTransformer:
    return AudioSpectrogramTransformer(dim=32, depth=2, heads=2, dim_head=16, max_seconds=1.0, **options)


def text_transformer(**options: Any) -> TextTransformer:
    return TextTransformer(**{"dim": 32, "depth": 2, "heads": 2, "dim_head": 16, "num_tokens": 300, **options})


def mulan(**options: Any) -> MuLaN:
    return MuLaN(audio_transformer=audio_transformer(), text_transformer=text_transformer(), **options)


def pairs(count: int = 2) -> tuple[Tensor, Tensor]:
    return torch.randn(count, 1024), torch.randint(0, 300, (count, 256))


@usage("MuLaN", "README: train on pairs, then embed sounds and texts")
def readme_mulan() -> None:
    audio = AudioSpectrogramTransformer(
        dim=32, depth=2, heads=2, dim_head=16, spec_n_fft=128, spec_win_length=24, spec_aug_stretch_factor=0.8
    )
    text = TextTransformer(dim=32, depth=2, heads=2, dim_head=16)
    model = MuLaN(audio_transformer=audio, text_transformer=text)
    wavs, texts = torch.randn(2, 1024), torch.randint(0, 20000, (2, 256))
    loss = model(wavs, texts)
    loss.backward()
    assert loss.shape == ()
    assert all(parameter.grad is not None for parameter in model.parameters())
    for embeds in (model.get_audio_latents(wavs), model.get_text_latents(texts)):
        assert embeds.shape == (2, 128)
        torch.testing.assert_close(embeds.norm(dim=-1), torch.ones(2))


@usage("MuLaN", "raw texts instead of token ids")
def raw_texts() -> None:
    model, (wavs, _) = mulan(), pairs()
    model(wavs, raw_texts=["a flute", "a drum"]).backward()
    assert model.get_text_latents(raw_texts=["a flute"]).shape == (1, 128)


@usage("MuLaN", "latents and similarities")
def similarities() -> None:
    model, (wavs, texts) = mulan().eval(), pairs(3)
    audio, text = model(wavs, texts, return_latents=True)
    torch.testing.assert_close(model(wavs, texts, return_similarities=True), (audio * text).sum(-1))
    torch.testing.assert_close(model(wavs, texts, return_pairwise_similarities=True), audio @ text.t())


@usage("MuLaN", "sigmoid, softmax and hierarchical losses")
def losses() -> None:
    wavs, texts = pairs(3)
    for options in (
        {"sigmoid_contrastive_loss": True},
        {"decoupled_contrastive_learning": False},
        {"hierarchical_contrastive_loss": True},
        {"hierarchical_contrastive_loss": True, "hierarchical_contrastive_loss_layers": 1},
    ):
        mulan(**options)(wavs, texts).backward()


@usage("MuLaN", "the loss in eval mode does not change from call to call")
def eval_loss() -> None:
    model, (wavs, texts) = mulan(), pairs(4)
    model(wavs, texts)
    model.eval()
    assert torch.equal(model(wavs, texts), model(wavs, texts))


@usage("MuLaN", "state_dict and load_state_dict")
def state() -> None:
    one, other, (wavs, texts) = mulan().eval(), mulan().eval(), pairs()
    other.load_state_dict(one.state_dict())
    assert torch.equal(one(wavs, texts, return_similarities=True), other(wavs, texts, return_similarities=True))


@usage("MuLaN", "save and load")
def save_and_load(folder: Path) -> None:
    one, other, (wavs, texts) = mulan().eval(), mulan().eval(), pairs()
    one.save(folder / "mulan.pt")
    other.load(folder / "mulan.pt")
    assert torch.equal(one(wavs, texts, return_similarities=True), other(wavs, texts, return_similarities=True))


@usage("MuLaN", "a batch of one clip", refused="at least two clips")
def one_clip() -> None:
    mulan()(*pairs(1))


@usage("AudioSpectrogramTransformer", "vectors, and the states of all layers")
def audio_layers() -> None:
    tower = audio_transformer()
    out, layers = tower(torch.randn(2, 1024), return_all_layers=True)
    assert out.shape == (2, 32)
    assert (layers.shape[0], layers.shape[1], layers.shape[3]) == (1, 2, 32)
    assert tower.eval()(torch.randn(2, 1024), force_no_patch_dropout=True).shape == (2, 32)


@usage("AudioSpectrogramTransformer", "without patch dropout all patches are used")
def no_patch_dropout() -> None:
    tower, wavs = audio_transformer(), torch.randn(2, 1024)
    dropped, kept = (
        tower(wavs, force_no_patch_dropout=force, return_all_layers=True)[1].shape[2] for force in (False, True)
    )
    assert dropped < kept


@usage("AudioSpectrogramTransformer", "spectrograms instead of waveforms", refused="accept_spec=True")
def spectrograms() -> None:
    audio_transformer(accept_spec=True)


@usage("AudioSpectrogramTransformer", "patches that are not square", refused="patches are square")
def oblong_patches() -> None:
    audio_transformer(patch_size=(16, 8))


@usage("AudioSpectrogramTransformer", "dropout")
def dropout() -> None:
    audio_transformer(attn_dropout=0.1, ff_dropout=0.1)(torch.randn(2, 1024))


@usage("AudioSpectrogramTransformer", "two different dropout probabilities", refused="must be the same")
def two_dropouts() -> None:
    audio_transformer(attn_dropout=0.1)


@usage("TextTransformer", "vectors, masks, and the states of all layers")
def text_layers() -> None:
    tower, texts = text_transformer(), torch.randint(1, 300, (2, 16))
    out, layers = tower(texts, return_all_layers=True)
    assert (out.shape, layers.shape) == ((2, 32), (1, 2, 16, 32))
    padded = torch.cat([texts, torch.zeros(2, 8, dtype=torch.long)], dim=1)
    torch.testing.assert_close(tower(padded), tower(texts))
    mask = torch.arange(24) < torch.tensor([16, 16])[:, None]
    torch.testing.assert_close(tower(padded, mask=mask), tower(texts))


@usage("TextTransformer", "raw texts with a small vocabulary", refused="num_tokens of at least 259")
def small_vocabulary() -> None:
    text_transformer(num_tokens=100)(raw_texts=["a drum"])


@usage("MuLaNEmbedQuantizer", "README: conditioning vectors by namespace")
def readme_quantizer() -> None:
    quantizer = MuLaNEmbedQuantizer(
        mulan=mulan(), conditioning_dims=(24, 24, 16), namespaces=("semantic", "coarse", "fine"), codebook_size=16
    )
    wavs, texts = pairs()
    assert quantizer(wavs=wavs, namespace="semantic").shape == (2, 8, 24)
    assert quantizer(texts=texts, namespace="fine").shape == (2, 8, 16)


@usage("MuLaNEmbedQuantizer", "its vectors are trained, the MuLaN is not")
def trained_vectors() -> None:
    quantizer = MuLaNEmbedQuantizer(mulan(), (8,), rq_num_quantizers=2, codebook_size=4, namespaces=("semantic",))
    optimizer = torch.optim.Adam(quantizer.parameters(), lr=0.1)
    wavs, _ = pairs(4)
    losses = []
    for _ in range(20):
        loss = (quantizer(wavs=wavs) - 1).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(float(loss.detach()))
    assert losses[-1] < losses[0] / 2
    assert all(parameter.grad is None for parameter in quantizer.mulan.parameters())


@usage("MuLaNEmbedQuantizer", "codes do not change in eval mode")
def eval_codes() -> None:
    quantizer = MuLaNEmbedQuantizer(mulan(), (8,), codebook_size=4, namespaces=("semantic",))
    wavs, _ = pairs(4)
    quantizer(wavs=wavs)
    quantizer.eval()
    assert torch.equal(quantizer(wavs=wavs), quantizer(wavs=wavs))


@usage("MuLaNEmbedQuantizer", "an unknown namespace", refused="is not among")
def unknown_namespace() -> None:
    MuLaNEmbedQuantizer(mulan(), (8,), namespaces=("semantic",))(wavs=pairs()[0], namespace="fine")


@usage("SoftmaxContrastiveLearning", "the loss of latents, also of several layers")
def softmax() -> None:
    audio, text = (torch.nn.functional.normalize(torch.randn(2, 5, 8), dim=-1) for _ in range(2))
    for decoupled in (False, True):
        one = SoftmaxContrastiveLearning(decoupled_contrastive_learning=decoupled)
        two = SoftmaxContrastiveLearning(layers=2, decoupled_contrastive_learning=decoupled)
        torch.testing.assert_close(two(audio, text), one(audio[0], text[0]) + one(audio[1], text[1]))
        two(audio, text).backward()
        assert two.temperatures.grad is not None


@usage("SigmoidContrastiveLearning", "the loss of latents, with a learned bias")
def sigmoid() -> None:
    audio, text = (torch.nn.functional.normalize(torch.randn(5, 8), dim=-1) for _ in range(2))
    model = SigmoidContrastiveLearning()
    scores = audio @ text.t() * 10 - 10
    labels = 2 * torch.eye(5) - 1
    torch.testing.assert_close(model(audio, text), -torch.nn.functional.logsigmoid(labels * scores).sum() / 5)


@usage("AudioLM", "README: the model of audiolm-pytorch", refused="AudioLM is refused")
def audio_lm() -> None:
    AudioLM(wav2vec=None, codec=None)


@usage("MusicLM", "text to music", refused="which quintet does not have")
def music_lm() -> None:
    quantizer = MuLaNEmbedQuantizer(mulan(), (8,), codebook_size=4, namespaces=("semantic",))
    MusicLM(audio_lm=None, mulan_embed_quantizer=quantizer)
