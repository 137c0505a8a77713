"""Usages of the models of soundstorm-pytorch."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from compat.usage import usage
from quintet.compat.soundstorm_pytorch import Conformer, ConformerWrapper, SoundStorm, SoundStream, TextToSemantic

CONFORMER: dict[str, Any] = {"dim": 32, "depth": 1, "heads": 2, "dim_head": 16}
SEMANTIC: dict[str, Any] = {
    "num_semantic_token_ids": 50,
    "wav2vec_target_sample_hz": 16000,
    "wav2vec_downsample_factor": 320,
    "codec_target_sample_hz": 16000,
    "codec_downsample_factor": 640,
}


def wrapper(num_quantizers: int = 3, **options: Any) -> ConformerWrapper:
    return ConformerWrapper(codebook_size=64, num_quantizers=num_quantizers, conformer=dict(CONFORMER), **options)


def soundstream() -> SoundStream:
    return SoundStream(
        codebook_size=64, rq_num_quantizers=3, attn_window_size=128, attn_depth=2, channels=4, codebook_dim=16
    )


def codes(batch: int = 2, frames: int = 32, quantizers: int = 3) -> Tensor:
    return torch.randint(0, 64, (batch, frames, quantizers))


@usage("SoundStorm", "README: train on codes and generate codes")
def readme_codes() -> None:
    conformer = ConformerWrapper(codebook_size=64, num_quantizers=3, conformer=dict(dim=32, depth=2))  # noqa: C408
    model = SoundStorm(conformer, steps=4, schedule="cosine")
    loss, _ = model(codes())
    loss.backward()
    generated = model.generate(32, batch_size=2)
    assert generated.shape == (2, 32 * 3)
    assert 0 <= int(generated.min()) <= int(generated.max()) < 64


@usage("SoundStorm", "README: train on raw audio with a SoundStream, and generate seconds of audio")
def readme_audio() -> None:
    model = SoundStorm(wrapper(), soundstream=soundstream(), steps=2)
    audio = torch.randn(2, 10080)
    loss, _ = model(audio)
    loss.backward()
    generated = model.generate(seconds=0.5, batch_size=2)
    assert generated.shape == (2, 8000)
    assert all(parameter.grad is None for parameter in model.soundstream.parameters())


@usage("SoundStorm", "README: texts, through a text-to-semantic model", refused="no model that makes semantic tokens")
def readme_texts() -> None:
    SoundStorm(wrapper(), spear_tts_text_to_semantic=object()).generate(texts=["the rain in spain"])


@usage("SoundStorm", "generate with texts", refused="no model that makes semantic tokens")
def generate_texts() -> None:
    SoundStorm(wrapper()).generate(texts=["the rain in spain"])


@usage("SoundStorm", "the loss and its breakdown, with a self-critic")
def breakdown() -> None:
    model = SoundStorm(wrapper(), self_token_critic=True, self_cond=True)
    loss, (generator_loss, critic_loss) = model(codes())
    torch.testing.assert_close(loss, generator_loss + critic_loss)
    loss.backward()
    loss, parts = model(codes(), only_train_generator=True)
    assert parts.critic_loss is None
    assert loss is parts.generator_loss
    loss, parts = model(codes(), only_train_critic=True)
    assert parts.generator_loss is None
    loss.backward()
    assert model.generate(8, batch_size=1, noise_level_scale=2.0).shape == (1, 24)


@usage("SoundStorm", "masks of clips of different lengths")
def masks() -> None:
    model = SoundStorm(wrapper(), steps=2)
    mask = torch.arange(32) < torch.tensor([32, 20])[:, None]
    model(codes(), mask=mask)[0].backward()
    generated = model.generate(32, mask=mask, batch_size=2).view(2, 32, 3)
    assert 0 <= int(generated.min()) <= int(generated.max()) < 64


@usage("SoundStorm", "padding with pad_id")
def padding() -> None:
    padded = codes()
    padded[1, 20:] = -1
    SoundStorm(wrapper(), pad_id=-1)(padded)[0].backward()


@usage("SoundStorm", "conditioning on semantic tokens")
def semantic() -> None:
    model = SoundStorm(wrapper(), steps=2, **SEMANTIC)
    tokens = torch.randint(0, 50, (2, 64))
    model(codes(), cond_semantic_token_ids=tokens)[0].backward()
    assert model.generate(cond_semantic_token_ids=tokens).shape == (2, 32 * 3)
    tokens[1, 40:] = -1
    mask = torch.arange(32) < torch.tensor([32, 20])[:, None]
    model(codes(), mask=mask, cond_semantic_token_ids=tokens)[0].backward()


@usage("SoundStorm", "conditioning without semantic tokens", refused="needs cond_semantic_token_ids")
def no_semantic() -> None:
    SoundStorm(wrapper(), **SEMANTIC)(codes())


@usage("SoundStorm", "semantic tokens of a wav2vec", refused="pass semantic token ids")
def wav2vec() -> None:
    SoundStorm(wrapper(), wav2vec=object())


@usage("SoundStorm", "a prompt of acoustic tokens, several full levels, one clip")
def prompt() -> None:
    model = SoundStorm(wrapper(), steps=3)
    start = codes(1, 8)
    generated = model.generate(
        24,
        prompt_acoustic_token_ids=start,
        num_full_sampling_levels=2,
        filter_thres=0.9,
        start_temperature=0.5,
    )
    assert generated.shape == (24 * 3,)
    assert torch.equal(generated.view(24, 3)[:8], start[0])
    assert model.training


@usage("SoundStorm", "grouped quantizers")
def grouped() -> None:
    model = SoundStorm(wrapper(2, grouped_quantizers=2), steps=2)
    model(codes(quantizers=4))[0].backward()
    assert model.generate(8, batch_size=2).shape == (2, 32)


@usage("SoundStorm", "a cosine or linear schedule, without re-masking")
def schedules() -> None:
    for schedule in ("linear", "cosine"):
        model = SoundStorm(wrapper(), steps=3, schedule=schedule, can_mask_prev_unmasked=False)
        model(codes())[0].backward()
        model.generate(8)


@usage("SoundStorm", "another schedule", refused="is not one of cosine, linear")
def unknown_schedule() -> None:
    SoundStorm(wrapper(), schedule="quadratic")


@usage("SoundStorm", "save and load")
def save_and_load(folder: Path) -> None:
    one, other = SoundStorm(wrapper()), SoundStorm(wrapper())
    one.save(folder / "soundstorm.pt")
    other.load(folder / "soundstorm.pt")
    for name, tensor in one.state_dict().items():
        assert torch.equal(tensor, other.state_dict()[name])


@usage("SoundStorm", "load a pickled checkpoint", refused="never opens pickled checkpoints")
def load_pickle(folder: Path) -> None:
    (folder / "soundstorm.pt").write_bytes(b"\x80\x02.")
    SoundStorm(wrapper()).load(folder / "soundstorm.pt")


@usage("SoundStorm", "codes that do not fit the conformer", refused="are not (batch, frames, 3)")
def wrong_codes() -> None:
    SoundStorm(wrapper())(codes(quantizers=4))


@usage("SoundStream", "encode and decode")
def encode_and_decode() -> None:
    codec = soundstream()
    audio = torch.randn(2, 3 * 320 + 100)
    quantized, indices, _ = codec(audio, return_encoded=True)
    assert quantized.shape == (2, 3, 16)
    assert torch.equal(indices, codec.tokenize(audio))
    assert indices.shape == (2, 3, 3)
    assert codec.decode_from_codebook_indices(indices).shape == (2, 1, 960)
    assert codec(audio, return_recons_only=True).shape == (2, 1, 960)


@usage("SoundStream", "save and init_and_load_from")
def soundstream_folder(folder: Path) -> None:
    codec = soundstream()
    codec.save(folder / "soundstream.pt")
    audio = torch.randn(1, 640)
    assert torch.equal(SoundStream.init_and_load_from(folder / "soundstream.pt").tokenize(audio), codec.tokenize(audio))


@usage("SoundStream", "forward for its own training loss", refused="recipe audio-codec")
def soundstream_loss() -> None:
    soundstream()(torch.randn(2, 640))


@usage("SoundStream", "grouped quantizers", refused="rq_groups=2")
def soundstream_groups() -> None:
    SoundStream(codebook_size=64, rq_groups=2)


@usage("TextToSemantic", "README: the model of spear-tts-pytorch", refused="TextToSemantic is refused")
def text_to_semantic() -> None:
    TextToSemantic(dim=512, source_depth=12, target_depth=12, num_text_token_ids=50000, num_semantic_token_ids=20000)


@usage("Conformer", "vectors of frames")
def conformer() -> None:
    model = Conformer(**CONFORMER)
    mask = torch.arange(16) < torch.tensor([16, 9])[:, None]
    assert model(torch.randn(2, 16, 32), mask=mask).shape == (2, 16, 32)
    assert ConformerWrapper(codebook_size=64, num_quantizers=3, conformer=model).conformer is model


@usage("Conformer", "a causal convolution", refused="conv_causal=True")
def causal() -> None:
    Conformer(**CONFORMER, conv_causal=True)


@usage("ConformerWrapper", "logits and embeddings of codes")
def logits() -> None:
    net = wrapper()
    x = codes().flatten(1)
    logits, embeds = net(x, return_logits_and_embeddings=True)
    assert (logits.shape, embeds.shape) == ((2, 96, 64), (2, 96, 32))
    changed = net(x, cond=torch.randn(2, 32), sum_embeds=torch.randn(2, 96, 32))
    assert not torch.allclose(changed, logits)
    SoundStorm(net)
    torch.testing.assert_close(net(x), logits)
