"""SoundStorm with a text encoder: its conditioning, guidance and training batches."""

from __future__ import annotations

from pathlib import Path
from shutil import copyfile
from typing import Any

import pytest
import torch
from torch import Tensor

from contract.cases import TINY_SOUNDSTORM
from contract.worlds import make_task
from quintet.common.batch import Batch
from quintet.common.rng import ItemRNG
from quintet.common.weights.run_reader import model_keys
from quintet.config import build
from quintet.errors import UsageError
from quintet.families.soundstorm import decoding
from quintet.families.soundstorm.captions import unknown_words
from quintet.families.soundstorm.config import SoundStormConfig
from quintet.families.soundstorm.model import SoundStorm
from quintet.families.soundstorm.task import SoundStormTask
from quintet.sampling.guidance import encode_prompts
from quintet.sampling.masked import Sampling

TEXTS = ("a low flute", "a loud high drum beat")
FRAMES = torch.ones(2, 6, dtype=torch.bool)
CODES = torch.arange(12).view(2, 6, 1).expand(-1, -1, 2) % 8
LEVELS = torch.tensor([0, 1])


def model(trained: bool = True, **keys: Any) -> SoundStorm:
    """A model whose cross-attention has an effect if it is `trained`."""
    torch.manual_seed(0)
    sizes = {"num_codes": 8, "num_quantizers": 2, "max_frames": 8, "dim": 16, "depth": 2, "heads": 2, "head_dim": 8}
    settings = {"text": "words", "text_dim": 16, "text_depth": 1, "text_heads": 2, **sizes, **keys}
    made = SoundStorm(**settings).double().eval()
    if trained and made.config.text != "none":
        for block in made.net.conformer.blocks:
            torch.nn.init.normal_(block.cross_attention.to_out.weight, std=0.3)  # type: ignore[union-attr,arg-type]
    return made


def logits(storm: SoundStorm, texts: dict[str, Tensor]) -> Tensor:
    out: Tensor = storm(CODES, storm.conditioning(FRAMES, text=texts), LEVELS)
    return out


def test_a_new_model_starts_as_one_without_text() -> None:
    storm = model(trained=False)
    plain = model(text="none")
    shared = storm.state_dict()
    plain.load_state_dict({name: shared[name] for name in plain.state_dict()})
    assert torch.equal(logits(storm, storm.texts(TEXTS)), logits(plain, {}))


def test_each_row_depends_on_its_own_words_and_on_their_order() -> None:
    storm = model()
    before = logits(storm, storm.texts(TEXTS))
    after = logits(storm, storm.texts(("a low flute", "a beat drum high loud")))
    torch.testing.assert_close(before[0], after[0])
    assert not torch.allclose(before[1], after[1])


def test_a_dropped_text_equals_any_other_dropped_text() -> None:
    storm = model()
    dropped = torch.tensor([False, False])
    torch.testing.assert_close(
        logits(storm, storm.texts(TEXTS, dropped)), logits(storm, storm.texts(("x", "y"), dropped))
    )
    conditioning = storm.conditioning(FRAMES, text=storm.texts(TEXTS))
    null = {**conditioning, **storm.net.conditions.null_conditioning(conditioning)}
    torch.testing.assert_close(storm(CODES, null, LEVELS), logits(storm, storm.texts(("x", "y"), dropped)))


def test_a_text_encoded_once_gives_the_same_logits() -> None:
    storm = model()
    conditioning = storm.conditioning(FRAMES, text=storm.texts(TEXTS, torch.tensor([True, False])))
    once = storm.net.precompute_conditioning(conditioning)
    assert "text" not in once
    torch.testing.assert_close(storm(CODES, once, LEVELS), storm(CODES, conditioning, LEVELS))


def generated(storm: SoundStorm, texts: tuple[str, ...], negative: str | None = None, scale: float = 3.0) -> Tensor:
    text, uncond = encode_prompts(storm, texts, negative)
    conditioning = storm.conditioning(FRAMES, text=text)
    settings = [Sampling(steps=2, guidance_scale=scale, temperature=0.5)] * 2
    rng = ItemRNG(0, [0, 0], [0, 1])
    canvas = decoding.canvas(FRAMES, 2)
    return decoding.generate(storm, canvas, conditioning, rng, settings, negative=uncond)


def test_text_guidance_and_a_negative_text_change_what_is_generated() -> None:
    storm = model()
    guided = generated(storm, TEXTS)
    assert torch.equal(guided, generated(storm, TEXTS))
    assert not torch.equal(guided, generated(storm, TEXTS, scale=1.0))
    assert not torch.equal(guided, generated(storm, TEXTS, negative="a bell"))
    assert not torch.equal(guided, generated(storm, ("a violin", "a violin")))
    # Without a text, there is nothing to steer towards.
    assert torch.equal(generated(storm, ("", "")), generated(storm, ("", ""), scale=1.0))


def test_an_undecided_text_encoder_is_refused() -> None:
    with pytest.raises(UsageError, match="is chosen by a run for its data"):
        model(text="auto")


# --- training -------------------------------------------------------------------------------------------------------


def build_task(sounds: Path, *keys: str) -> SoundStormTask:
    task = make_task("soundstorm", sounds, (*TINY_SOUNDSTORM, "model.text_dim=16", *keys))
    assert isinstance(task, SoundStormTask)
    return task


def batch_of(task: SoundStormTask, items: range) -> Batch:
    source = task.splits().train
    fields = task.collate([source.load(item, ItemRNG(0, [0], [item])) for item in items])
    return Batch(fields, tuple(source.name(item) for item in items), ItemRNG(0, [0] * len(items), list(items)))


def test_data_workers_prepare_the_captions_and_drop_some_of_them(sounds: Path) -> None:
    task = build_task(sounds, "condition=null", "model.text=words", "loss.cond_drop_prob=0.5")
    batch = batch_of(task, range(16))
    prepared = batch.prepared(task.prepare)
    kept = prepared["text_mask"].any(1)
    assert torch.equal(kept, prepared["keep_condition"])
    assert 2 < kept.sum() < 14
    output = task.forward(task.modules, batch, 0)
    task.generator_loss(task.modules, batch, output, 0).value.backward()
    # Every parameter has a gradient at every step, as DDP requires.
    assert not [name for name, parameter in task.soundstorm.named_parameters() if parameter.grad is None]


def test_the_text_encoder_is_chosen_by_the_data(sounds: Path, tmp_path: Path) -> None:
    assert build_task(sounds, "condition=null", "model.text=auto").config.model.text == "words"
    assert build_task(sounds, "model.text=auto").config.model.text == "none"
    for file in sorted((sounds / "sounds").iterdir())[:4]:
        copyfile(file, tmp_path / file.name)
    assert build_task(tmp_path, "condition=null", "model.text=auto").config.model.text == "none"


def test_words_that_no_caption_has_are_named(sounds: Path) -> None:
    config = build_task(sounds, "condition=null", "model.text=words").config
    assert "flute" in (config.model.known_words or ())
    assert unknown_words(config, "A low Flute, a zither and \u6728\u7434!") == ["zither", "\u6728\u7434"]
    assert unknown_words(build_task(sounds, "condition=null", "model.text=bytes").config, "a zither") == []


def test_fine_tuning_records_the_words_of_its_own_captions(tmp_path: Path) -> None:
    old = build(SoundStormConfig, overrides={"model.text": "words", "model.known_words": ["flute"], "model.dim": 32})
    (tmp_path / "config.yaml").write_text(old.to_yaml())
    assert "known_words" not in model_keys(str(tmp_path), "soundstorm", SoundStormConfig)["model"]
    assert model_keys(str(tmp_path), "soundstorm", SoundStormConfig)["model"]["dim"] == 32


def test_captions_and_a_mulan_condition_one_model(sounds: Path) -> None:
    task = build_task(sounds, "model.text=bytes")
    conditioning = task.forward(task.modules, batch_of(task, range(4)), 0)["conditioning"]
    assert {"clip", "clip_valid", "text", "text_mask"} <= conditioning.keys()
