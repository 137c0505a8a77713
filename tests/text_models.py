"""Tiny, random encoders of `transformers`, made from a configuration and written into a folder."""

from __future__ import annotations

import os
from pathlib import Path

# Before `transformers` is imported: nothing here may look for the hub.
os.environ["HF_HUB_OFFLINE"] = "1"

import torch

WORDS = ["<pad>", "</s>", "<unk>", "a", "red", "blue", "circle", "square", "left"]


def make_folder(folder: Path, kind: str = "t5", seed: int = 0, vocabulary: int = len(WORDS)) -> Path:
    """A model of a few hundred weights with a tokenizer of nine words."""
    from tokenizers import Tokenizer, models, pre_tokenizers, processors
    from transformers import BertConfig, BertModel, PreTrainedTokenizerFast, T5Config, T5EncoderModel, T5Model
    from transformers.utils import logging

    logging.disable_progress_bar()
    words = Tokenizer(models.WordLevel({word: number for number, word in enumerate(WORDS)}, unk_token="<unk>"))
    words.pre_tokenizer = pre_tokenizers.Whitespace()
    words.post_processor = processors.TemplateProcessing(single="$A </s>", special_tokens=[("</s>", 1)])
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=words, pad_token="<pad>", eos_token="</s>", unk_token="<unk>", model_max_length=64
    )
    tokenizer.save_pretrained(folder)
    torch.manual_seed(seed)
    if kind == "bert":
        sizes = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 16}
        BertModel(BertConfig(vocab_size=vocabulary, **sizes)).save_pretrained(folder)
    else:
        config = T5Config(vocab_size=vocabulary, d_model=16, d_kv=4, d_ff=32, num_layers=2, num_heads=2)
        (T5EncoderModel if kind == "t5" else T5Model)(config).save_pretrained(folder)
    return folder
