"""Tiny, random models of sound of `transformers`, made from a configuration and written into a folder."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

# Before `transformers` is imported: nothing here may look for the hub.
os.environ["HF_HUB_OFFLINE"] = "1"

import soundfile
import torch
from torch import Tensor

RATE = 16_000
CODES = 16
QUANTIZED = {"sampling_rate": RATE, "codebook_size": CODES, "hidden_size": 16, "num_filters": 4, "codebook_dim": 8}
CONFIGS: dict[str, dict[str, Any]] = {
    "encodec": {
        **QUANTIZED, "codebook_dim": 16, "target_bandwidths": [0.4, 0.8], "upsampling_ratios": [8, 5, 4, 2],
        "num_lstm_layers": 1, "compress": 1,
    },
    "dac": {
        "sampling_rate": RATE, "codebook_size": CODES, "codebook_dim": 4, "encoder_hidden_size": 4,
        "decoder_hidden_size": 32, "downsampling_ratios": [2, 4, 5, 8], "n_codebooks": 3,
    },
    "mimi": {
        **QUANTIZED, "upsampling_ratios": [5, 4, 2, 2], "vector_quantization_hidden_dimension": 8,
        "num_hidden_layers": 1, "num_attention_heads": 2, "num_key_value_heads": 2, "head_dim": 8,
        "intermediate_size": 16, "num_quantizers": 5, "sliding_window": 8, "upsample_groups": 16,
    },
    "hubert": {
        "hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 16,
        "conv_dim": [8, 8, 8], "conv_stride": [5, 8, 8], "conv_kernel": [10, 8, 8], "num_feat_extract_layers": 3,
        "num_conv_pos_embeddings": 4, "num_conv_pos_embedding_groups": 2,
    },
    "clap": {
        "projection_dim": 8,
        "text_config": {
            "vocab_size": 20, "hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2,
            "intermediate_size": 16,
        },
        "audio_config": {
            "num_mel_bins": 16, "window_size": 4, "spec_size": 64, "patch_size": 2, "patch_stride": 2,
            "hidden_size": 16, "patch_embeds_hidden_size": 8, "depths": [1, 1], "num_attention_heads": [2, 2],
            "num_hidden_layers": 2,
        },
    },
    "wav2vec2-bert": {
        "hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 16,
        "feature_projection_input_dim": 160, "position_embeddings_type": None,
    },
}  # fmt: skip
"""HuBERT's steps are as long as the real one's, 20 ms; it hears 410 samples of each, not 400."""


def model_of(kind: str, seed: int = 0, **changes: Any) -> Any:
    from transformers import AutoConfig, AutoModel
    from transformers.utils import logging

    logging.disable_progress_bar()
    torch.manual_seed(seed)
    model = AutoModel.from_config(AutoConfig.for_model(kind, **{**CONFIGS[kind], **changes})).eval()
    with torch.no_grad():
        # Codebooks start as zeros, in which every sound has the same codes.
        for name, table in model.named_buffers():
            if name.endswith(("codebook.embed", "codebook.embed_sum")):
                table.normal_(std=0.05)
        if kind == "encodec" and "audio_channels" not in changes:
            # What it makes of sounds differs by little: the first codebook is of such vectors.
            vectors = model.encoder(torch.randn(1, 1, CODES * model.config.hop_length))[0].t()
            for number, level in enumerate(model.quantizer.layers):
                level.codebook.embed.copy_(vectors if number == 0 else vectors.roll(number, 0) - vectors)
    return model


def make_model(folder: Path, kind: str, seed: int = 0, **changes: Any) -> Path:
    model_of(kind, seed, **changes).save_pretrained(folder)
    if kind == "clap":
        from transformers import ClapFeatureExtractor

        preprocessor = ClapFeatureExtractor(
            feature_size=16, sampling_rate=RATE, hop_length=160, max_length_s=1, fft_window_size=512,
            frequency_max=8000, truncation="rand_trunc",
        )  # fmt: skip
        preprocessor.save_pretrained(folder)
    return folder


def sound_folder(folder: Path, *seconds: float) -> Path:
    """Files of noise, 00.wav and on."""
    folder.mkdir()
    for number, wave in enumerate(noise(*(round(each * RATE) for each in seconds))):
        soundfile.write(folder / f"{number:02d}.wav", wave.numpy(), RATE)
    return folder


def noise(*lengths: int) -> list[Tensor]:
    generator = torch.Generator().manual_seed(1)
    return [torch.randn(length, generator=generator) * 0.2 for length in lengths]
