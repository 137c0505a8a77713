"""`SoundStormTask` and its pipeline: data, conditioning, candidates, metrics and samples."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

from contract.cases import GOLDEN, TINY_SOUNDSTORM
from contract.worlds import make_task
from helpers import quintet, succeed
from quintet.common.batch import Batch
from quintet.common.rng import ItemRNG
from quintet.common.statistics import Statistics
from quintet.common.weights import checkpoint, tensor_groups
from quintet.data.token_files import CODES, code_contents
from quintet.errors import UnreadableItem, UsageError
from quintet.families.soundstorm.config import SoundStormOptions
from quintet.families.soundstorm.data import ClipDataset
from quintet.families.soundstorm.pipeline import SoundStormPipeline
from quintet.families.soundstorm.task import SoundStormTask
from quintet.media.audio import read_audio, write_audio
from quintet.pipelines.loading import open_pipeline
from quintet.pipelines.prompts import Prompts
from quintet.synthetic.sounds import make_sounds
from quintet.synthetic.sounds_judge import SoundsJudge
from quintet.training.judge import mean_scores

CODEC, MULAN = (GOLDEN / f"{name}-format-1" / "hub" for name in ("audio-codec", "mulan"))
FRAME_RATE = 250.0
"""Frames per second of the golden codec, at 8 kHz."""


def build_task(sounds: Path, *keys: str) -> SoundStormTask:
    task = make_task("soundstorm", sounds, (*TINY_SOUNDSTORM, *keys))
    assert isinstance(task, SoundStormTask)
    return task


def train_source(task: SoundStormTask) -> ClipDataset:
    source = task.splits().train
    assert isinstance(source, ClipDataset)
    return source


def batch_of(task: SoundStormTask, items: range, epoch: int = 0) -> Batch:
    source = train_source(task)
    fields = task.collate([source.load(item, ItemRNG(0, [epoch], [item])) for item in items])
    return Batch(fields, tuple(source.name(item) for item in items), ItemRNG(0, [epoch] * len(items), list(items)))


def in_epoch(batch: Batch, epoch: int) -> Batch:
    return replace(batch, rng=ItemRNG(0, [epoch] * len(batch), batch.rng.items))


# --- training data ------------------------------------------------------------------------------------------------


def test_an_item_is_the_start_of_a_clip_encoded_by_codec_and_mulan(sounds: Path) -> None:
    task = build_task(sounds)
    item = train_source(task).load(3, ItemRNG(0, [5], [3]))
    codec, mulan = (open_pipeline(folder) for folder in (CODEC, MULAN))
    wave = torch.from_numpy(read_audio(sounds / train_source(task).name(3), codec.model.sample_rate, frames=2400))
    assert torch.equal(item["codes"], codec.model.encode(wave)[0])
    assert item["codes"].shape == (75, 2)
    torch.testing.assert_close(item["clip"], mulan.model.embed_audio(wave)[0], rtol=1e-4, atol=1e-5)
    assert item["texts"]


def test_codes_and_embeddings_are_computed_once(
    sounds: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    keys = (f"data.cache_dir={tmp_path}",)
    build_task(sounds, *keys).splits()
    first = capsys.readouterr().err
    assert "clips encoded: 0 of" in first
    assert "clips embedded: 0 of" in first
    build_task(sounds, *keys).splits()
    assert "clips" not in capsys.readouterr().err
    build_task(sounds, *keys, "data.seconds=0.2").splits()
    again = capsys.readouterr().err
    assert "clips encoded: 0 of" in again
    assert "clips embedded: 0 of" in again


def test_initial_embeddings_have_the_distances_of_the_codebooks(sounds: Path) -> None:
    task = build_task(sounds, "model.dim=64")
    codebooks = task.frozen["tokenizer"].model.codebooks
    embedded = task.soundstorm.net.embedding.weight.view(2, -1, 64)[:, : codebooks.shape[1]]
    for own, theirs in zip(embedded, codebooks, strict=True):
        distances = torch.stack([torch.pdist(own), torch.pdist(theirs)])
        assert torch.corrcoef(distances)[0, 1] > 0.99


def test_the_codec_and_the_mulan_are_not_trained(sounds: Path) -> None:
    task = build_task(sounds)
    assert list(task.modules) == ["soundstorm"]
    frozen = [parameter for pipeline in task.frozen.values() for parameter in pipeline.model.parameters()]
    assert frozen
    own = {id(parameter) for parameter in task.soundstorm.parameters()}
    assert not any(parameter.requires_grad or id(parameter) in own for parameter in frozen)


# --- conditioning -------------------------------------------------------------------------------------------------


def conditioning_clips(task: SoundStormTask, batch: Batch, epochs: int) -> tuple[Tensor, Tensor]:
    """The clip embedding of each row in each epoch, and whether it is valid."""
    outputs = [task.forward(task.modules, in_epoch(batch, epoch), 0)["conditioning"] for epoch in range(epochs)]
    return torch.cat([each["clip"] for each in outputs]), torch.cat([each["clip_valid"] for each in outputs])


def test_conditioning_is_dropped_or_that_of_the_caption_for_some_clips(sounds: Path) -> None:
    task = build_task(sounds, "loss.cond_drop_prob=0.3", "loss.caption_cond_prob=0.25")
    batch = batch_of(task, range(20))
    clips, valid = conditioning_clips(task, batch, 60)
    assert valid.float().mean().item() == pytest.approx(0.7, abs=0.05)
    captions = torch.cat([batch["caption"]] * 60)
    is_caption = (clips == captions).all(1)
    assert is_caption.float().mean().item() == pytest.approx(0.25, abs=0.05)
    assert torch.equal(clips[~is_caption], torch.cat([batch["clip"]] * 60)[~is_caption])
    assert task.conditioner is not None
    torch.testing.assert_close(batch["caption"], task.conditioner.embed_texts(batch["texts"]), rtol=1e-4, atol=1e-5)


def test_quantized_conditioning_is_the_decoded_embedding(sounds: Path) -> None:
    task = build_task(sounds, "model.condition_form=quantized")
    batch = batch_of(task, range(6))
    clips, _ = conditioning_clips(task, batch, 1)
    quantizer = open_pipeline(MULAN).modules["quantizer"]
    expected = quantizer.decode(quantizer.encode(batch["clip"]))  # type: ignore[operator]
    assert torch.equal(clips, expected)
    assert not torch.equal(clips, batch["clip"])


def test_padding_does_not_change_the_loss(sounds: Path) -> None:
    task = build_task(sounds, "data.seconds=4", "engine.precision=fp64")
    task.soundstorm.double()
    batch = batch_of(task, range(4)).to(torch.device("cpu"), torch.float64)
    lengths = batch["frames"].sum(1)
    assert len(set(lengths.tolist())) > 1
    assert (batch["codes"][~batch["frames"]] == -1).all()
    whole = task.measure(task.modules, batch).sums
    alone = [
        task.measure(task.modules, batch_of(task, range(row, row + 1)).to(torch.device("cpu"), torch.float64))
        for row in range(4)
    ]
    for name, value in whole.items():
        torch.testing.assert_close(sum(each.sums[name] for each in alone), value, rtol=1e-9, atol=1e-9)


# --- semantic tokens ----------------------------------------------------------------------------------------------


def write_tokens(folder: Path, tokens: dict[str, list[int]], num_codes: int = 10, rate: float = 25.0) -> Path:
    rows = [{"file": file, "row": row} for row, file in enumerate(tokens)]
    contents = code_contents([torch.tensor([each], dtype=torch.int32) for each in tokens.values()], rows)
    contents.json[CODES] = {"num_codes": num_codes, "rate": rate}
    checkpoint.write_folder(folder, contents)
    return folder


def tokens_of(sounds: Path, rate: float = 25.0) -> dict[str, list[int]]:
    """Tokens for the length of each file of the synthetic data."""
    tokens = {}
    for path in sorted((sounds / "sounds").iterdir()):
        count = round(read_audio(path).shape[1] / 16_000 * rate)
        tokens[f"sounds/{path.name}"] = [(len(path.name) + position) % 10 for position in range(count)]
    return tokens


def test_semantic_tokens_are_found_by_file_name_and_truncated_with_the_clip(sounds: Path, tmp_path: Path) -> None:
    tokens = tokens_of(sounds)
    folder = write_tokens(tmp_path / "tokens", tokens)
    task = build_task(sounds, f"data.semantic_tokens={folder}", "condition=null")
    model = task.config.model
    assert (model.semantic_codes, model.semantic_rate, model.condition_dim) == (10, 25.0, None)
    source = train_source(task)
    for item in range(3):
        assert source.load(item, ItemRNG(0, [0], [item]))["semantic"].tolist() == tokens[source.name(item)][:8]
    output = task.forward(task.modules, batch_of(task, range(4)), 0)
    assert output["conditioning"]["semantic"].shape == (4, 75, 1)


def test_a_file_without_tokens_is_skipped_and_named(sounds: Path, tmp_path: Path) -> None:
    tokens = tokens_of(sounds)
    skipped = train_source(build_task(sounds)).name(2)
    del tokens[skipped]
    task = build_task(sounds, f"data.semantic_tokens={write_tokens(tmp_path / 'tokens', tokens)}")
    splits = task.splits()
    assert "no semantic tokens" in splits.skipped[skipped]
    with pytest.raises(UnreadableItem, match="no semantic tokens"):
        splits.train.load(2, ItemRNG(0, [0], [2]))
    assert task.lengths(splits.train)[2] == 0  # type: ignore[index]


def test_other_tokens_have_another_fingerprint(sounds: Path, tmp_path: Path) -> None:
    tokens = tokens_of(sounds)
    fingerprints: list[str] = []
    for name in ("one", "two"):
        tokens["sounds/00000.flac"][0] = len(fingerprints)
        task = build_task(sounds, f"data.semantic_tokens={write_tokens(tmp_path / name, tokens)}")
        fingerprints.append(task.splits().fingerprint)
    assert len({*fingerprints, build_task(sounds).splits().fingerprint}) == 3


# --- metrics ------------------------------------------------------------------------------------------------------


def test_validation_masks_the_same_codes_every_time(sounds: Path) -> None:
    task = build_task(sounds)
    batch = batch_of(task, range(4))
    with torch.no_grad():
        first, second = (task.summarise(task.measure(task.modules, batch)) for _ in range(2))
    assert first == second
    assert first["loss"] == pytest.approx((first["loss_level_1"] + first["loss_level_2"]) / 2)
    assert set(first) == {f"{kind}{suffix}" for kind in ("loss", "accuracy") for suffix in ("", "_level_1", "_level_2")}


def test_generated_clips_are_scored_by_judge_and_mulan(sounds: Path) -> None:
    task = build_task(sounds)
    batch = batch_of(task, range(4))
    with torch.no_grad():
        generated = task.measure_generated(task.modules, batch, "validation")
        metrics = task.summarise(task.measure(task.modules, batch) + generated)
    weights = task.frozen["condition"].digest[:8]
    assert {"match_timbre", "match_timbre_reconstruction", "mulan_score", f"frechet_mulan_{weights}"} <= metrics.keys()
    assert metrics[f"frechet_mulan_{weights}"] > 0
    assert "best_of" not in metrics
    assert task.conditioner is not None
    real = (batch["clip"] * task.conditioner.embed_texts(batch["texts"])).sum(1).mean()
    assert metrics["mulan_score_real"] == pytest.approx(float(real), abs=1e-4)
    # The withheld split has one metric; the test split has none.
    withheld = task.measure_generated(task.modules, batch, "withheld").rows
    assert {name for name in withheld if name.startswith("match_")} == {
        "match_withheld",
        "match_withheld_reconstruction",
    }
    assert task.measure_generated(task.modules, batch, "test") == Statistics()


def test_the_judge_recognises_correct_and_wrong_captions(tmp_path: Path) -> None:
    make_sounds(tmp_path / "data", 20, seed=3)
    rows = [json.loads(line) for line in (tmp_path / "data" / "metadata.jsonl").read_text().splitlines()]
    waves = [(torch.from_numpy(read_audio(tmp_path / "data" / row["file_name"])[0]), 16_000) for row in rows]
    judge = SoundsJudge()
    right = mean_scores(judge.metrics(waves, rows, "validation"))
    assert right["match_timbre"] > 0.85
    assert right["match_register"] > 0.85
    wrong = mean_scores(judge.metrics(waves, [*rows[7:], *rows[:7]], "validation"))
    assert wrong["match_timbre"] < 0.5
    assert all(map(judge.knows, rows))
    assert not judge.knows({"sound": "a dog"})
    assert not judge.knows({"sound": {"timbre": "flute"}})


# --- generation ---------------------------------------------------------------------------------------------------


def pipeline_of(task: SoundStormTask) -> SoundStormPipeline:
    pipeline = task.pipeline(task.modules)
    assert isinstance(pipeline, SoundStormPipeline)
    return pipeline


def test_best_of_returns_the_candidate_most_similar_to_the_text(sounds: Path) -> None:
    pipeline = pipeline_of(build_task(sounds, "sample.best_of=3"))
    texts = ["a low flute", "a fast kick drum"]
    best = pipeline.generate_texts(Prompts(texts, seed=4), 0.16, None)
    single = pipeline.with_keys({"sample.best_of": 1})
    first = single.generate_texts(Prompts(texts, seed=4), 0.16, None)
    assert best.scores is not None
    assert first.scores is not None
    assert (best.scores >= first.scores).all()
    assert pipeline.conditioner is not None
    vectors = pipeline.conditioner.embed_audio(best.waves, pipeline.sample_rate)
    target = pipeline.conditioner.embed_texts(texts)
    torch.testing.assert_close((vectors * target).sum(1), best.scores, rtol=1e-4, atol=1e-5)
    # Candidates differ, and the first one equals the result without best_of.
    assert any(not torch.equal(ours, theirs) for ours, theirs in zip(best.waves, first.waves, strict=True))
    (alone,) = single(texts[0], seed=4, seconds=0.16)
    torch.testing.assert_close(alone, first.waves[0], rtol=1e-4, atol=1e-5)


def test_a_generated_clip_starts_with_its_prompt(sounds: Path, tmp_path: Path) -> None:
    pipeline = pipeline_of(build_task(sounds))
    prompt = tmp_path / "prompt.wav"
    write_audio(0.5 * np.sin(np.arange(1300) * 0.3), prompt, 8000)
    options = SoundStormOptions(num=2, prompt=prompt, seconds=0.28)
    pipeline.files(["a flute"], options)[1].write(tmp_path / "generated.wav")
    whole = read_audio(prompt)[:, : 1300 // 32 * 32]
    expected = pipeline.codec.decode(pipeline.codec.encode(torch.from_numpy(whole)))[0].numpy()
    continued = read_audio(tmp_path / "generated.wav")[0]
    assert len(continued) == 0.28 * 8000
    # The last frames of the prompt depend on the frames behind them.
    np.testing.assert_allclose(continued[:600], expected[:600], atol=1e-3)


def test_an_exported_model_is_called_with_texts(sounds: Path, tmp_path: Path) -> None:
    task = build_task(sounds, "sample.guidance_scale=2")
    pipeline_of(task).save_pretrained(tmp_path / "hub")
    pipeline = SoundStormPipeline.from_pretrained(tmp_path / "hub")
    assert (pipeline.sample_rate, pipeline.prompted, pipeline.unconditional) == (8000, True, False)
    waves = pipeline(["a low flute", "a fast kick drum"], num=2, seed=3, seconds=0.16)
    assert [wave.shape for wave in waves] == [(1280,)] * 4
    assert all(wave.device.type == "cpu" and not wave.requires_grad and wave.abs().max() <= 1 for wave in waves)
    again = pipeline(["a low flute", "a fast kick drum"], num=2, seed=3, seconds=0.16)
    assert all(torch.equal(one, other) for one, other in zip(waves, again, strict=True))
    (other,) = pipeline("a low flute", seed=4, seconds=0.16)
    assert not torch.equal(other, waves[0])
    assert pipeline("a low flute")[0].shape == (2400,)


def test_a_clip_does_not_depend_on_the_number_of_clips(sounds: Path) -> None:
    pipeline = pipeline_of(build_task(sounds))
    (alone,) = pipeline("a flute", num=1, seed=2, seconds=0.2)
    many = pipeline("a flute", num=20, seed=2, seconds=0.2)
    torch.testing.assert_close(alone, many[0], rtol=0, atol=1e-3)
    assert len(many) == 20


def test_files_record_their_settings(sounds: Path, tmp_path: Path) -> None:
    pipeline = pipeline_of(build_task(sounds))
    sheet, clip, _ = pipeline.files(["a flute"], SoundStormOptions(num=2, seed=5, seconds=0.2))
    assert (sheet.file, clip.file) == ("spectrograms.png", "000.wav")
    assert list(clip.metadata) == ["text", "number", "mulan_score", "seed", "settings", "seconds"]
    assert (clip.metadata["text"], clip.metadata["number"], clip.metadata["seed"]) == ("a flute", 0, 5)
    assert clip.metadata["seconds"] == pytest.approx(0.2)
    assert list(sheet.metadata) == ["texts", "seed", "settings", "seconds"]
    assert sheet.metadata["texts"] == ["a flute"] * 2


def test_a_model_without_condition_takes_no_text(sounds: Path) -> None:
    pipeline = pipeline_of(build_task(sounds, "condition=null"))
    assert (pipeline.prompted, pipeline.unconditional) == (False, True)
    assert [wave.shape for wave in pipeline(num=2, seconds=0.1)] == [(800,)] * 2
    with pytest.raises(UsageError, match="trained without --condition"):
        pipeline("a flute")


def test_the_critic_alone_is_trained_on_a_trained_generator(sounds: Path, tmp_path: Path) -> None:
    run, keys = tmp_path / "run", (*TINY_SOUNDSTORM, "model.self_critic=true")
    outcome = quintet("train", "soundstorm", sounds, "--out", run, *keys, "loss.train_only=critic")
    assert outcome.code == 2
    assert "needs a trained generator: use --init RUN" in outcome.errors
    succeed("train", "soundstorm", sounds, "--out", tmp_path / "first", *keys, "loss.train_only=generator")
    succeed("train", "soundstorm", sounds, "--out", run, *keys, "loss.train_only=critic", "--init", tmp_path / "first")
    last = Path("checkpoints", "step-00000012")
    before = tensor_groups.read_tensors(tmp_path / "first" / last / "ema", "soundstorm")
    after = tensor_groups.read_tensors(run / last, "soundstorm")
    changed = {name for name in before if not torch.equal(before[name], after[name])}
    assert changed == {"to_score.weight", "to_score.bias"}


def test_keys_that_contradict_codec_or_mulan_are_refused(sounds: Path) -> None:
    for keys, message in (
        (("model.num_codes=7",), "model.num_codes=7, but the tokenizer"),
        (("model.condition_dim=7",), "model.condition_dim=7, but the condition"),
        (("model.max_frames=10",), "data.seconds=0.3 gives clips of 75 frames, more than model.max_frames=10"),
        (("condition=null", "model.condition_dim=8"), "model.condition_dim needs --condition RUN"),
        (("condition=null", "loss.caption_cond_prob=0.5"), "loss.caption_cond_prob needs --condition RUN"),
        (("condition=null", "sample.best_of=2"), "sample.best_of above 1 needs --condition RUN"),
        ((f"condition={CODEC}",), "--condition takes a run of recipe 'mulan'"),
    ):
        with pytest.raises(UsageError, match=message):
            build_task(sounds, *keys)


def test_steps_of_levels_that_the_codec_does_not_have_are_ignored(sounds: Path) -> None:
    task = build_task(sounds, "sample.steps=[3,2,1,1]")
    assert [each.steps for each in pipeline_of(task).sampling()] == [3, 2]


def test_fewer_quantizers_than_the_codec_has_are_generated_and_decoded(sounds: Path, tmp_path: Path) -> None:
    whole, coarse = build_task(sounds), build_task(sounds, "model.num_quantizers=1")
    assert (
        build_task(sounds, "model.num_quantizers=9").soundstorm.num_quantizers == whole.soundstorm.num_quantizers == 2
    )
    of_whole, of_coarse = (train_source(task).load(3, ItemRNG(0, [0], [3]))["codes"] for task in (whole, coarse))
    assert torch.equal(of_coarse, of_whole[:, :1])
    prompt = tmp_path / "prompt.wav"
    write_audio(0.5 * np.sin(np.arange(640) * 0.3), prompt, 8000)
    pipeline = pipeline_of(coarse)
    (wave,) = pipeline("a flute", prompt=prompt, seconds=0.2)
    codes = pipeline.codec.encode(torch.from_numpy(read_audio(prompt)), num_quantizers=1)
    torch.testing.assert_close(wave[:200], pipeline.codec.decode(codes)[0, :200], rtol=0, atol=1e-3)
