"""MuLaN: towers, augmentation, quantizer, retrieval metrics, task and pipeline."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from quintet import MuLaN, MuLaNEmbedQuantizer
from quintet.common.batch import Batch
from quintet.common.rng import ItemRNG
from quintet.common.statistics import Statistics
from quintet.config import build
from quintet.data.audio import pad_windows
from quintet.embeddings import embed_media
from quintet.errors import UsageError
from quintet.families.mulan.augment import drop_patches, drop_words, spec_augment, swap_parts
from quintet.families.mulan.config import AudioTowerConfig, MuLaNConfig
from quintet.families.mulan.pipeline import MuLaNPipeline
from quintet.families.mulan.retrieval import best_ranks, caption_number, first_per_group, label_in, retrieval_metrics
from quintet.families.mulan.task import MuLaNTask
from quintet.families.mulan.towers import AudioSpectrogramTransformer, SpecAugmentNoise, TextTransformer
from quintet.media.audio import read_audio, write_audio
from quintet.training.prepare import check_processes
from quintet.training.task import Task
from text_models import make_folder

RATE = 8000
TOWER = {"dim": 16, "depth": 2, "heads": 2, "head_dim": 8}
AUDIO = {
    **TOWER,
    "sample_rate": RATE,
    "n_fft": 256,
    "hop_length": 80,
    "n_mels": 16,
    "patch_size": 8,
    "frequency_mask": 8,
    "max_seconds": 2,
}


def waves(*lengths: int) -> list[Tensor]:
    generator = torch.Generator().manual_seed(0)
    return [torch.randn(length, generator=generator) * 0.1 for length in lengths]


def padded(rows: list[Tensor]) -> tuple[Tensor, Tensor]:
    longest = max(map(len, rows))
    return torch.stack([F.pad(row, (0, longest - len(row))) for row in rows]), torch.tensor([len(row) for row in rows])


def audio_tower(**keywords: object) -> AudioSpectrogramTransformer:
    torch.manual_seed(0)
    return AudioSpectrogramTransformer(**{**AUDIO, **keywords})


# --- the audio tower ----------------------------------------------------------------------------------------------


def test_a_clip_has_the_same_embedding_alone_and_in_a_padded_batch() -> None:
    tower = audio_tower()
    rows = waves(3000, 11_111, 16_000)
    together = tower(*padded(rows))
    for number, row in enumerate(rows):
        torch.testing.assert_close(tower(*padded([row]))[0], together[number], rtol=1e-5, atol=1e-5)


def test_the_augmentation_of_a_clip_does_not_depend_on_the_others() -> None:
    tower = audio_tower(patch_dropout=0.5, time_mask=40)
    rows = waves(3000, 11_111, 16_000)
    together = tower(*padded(rows), SpecAugmentNoise.sampled(tower.config, ItemRNG(1, [3] * 3, [7, 8, 9])))
    for number, row in enumerate(rows):
        alone = tower(*padded([row]), SpecAugmentNoise.sampled(tower.config, ItemRNG(1, [3], [7 + number])))
        torch.testing.assert_close(alone[0], together[number], rtol=1e-5, atol=1e-5)
    other = tower(*padded(rows), SpecAugmentNoise.sampled(tower.config, ItemRNG(1, [4] * 3, [7, 8, 9])))
    assert not torch.allclose(other, together)


def test_samples_behind_the_end_of_a_clip_are_ignored() -> None:
    tower = audio_tower()
    (row,) = waves(5000)
    noisy = torch.cat([row, torch.full((3000,), torch.nan)])[None]
    quiet = torch.cat([row, torch.zeros(3000)])[None]
    lengths = torch.tensor([5000])
    torch.testing.assert_close(tower(quiet, lengths), tower(quiet[:, :5000], lengths), rtol=1e-5, atol=1e-5)
    assert not tower(noisy, lengths).isfinite().all()  # non-finite samples are not masked, so that they are detected


@pytest.mark.parametrize("seed", range(20))
def test_masks_cover_at_most_half(seed: int) -> None:
    config = AudioTowerConfig(**{**AUDIO, "time_mask": 1000})
    frames = torch.tensor([2, 5, 100])
    masked = spec_augment(
        torch.ones(3, 16, 100), frames, ItemRNG(seed, [0] * 3, range(3)).uniform("spectrogram masks", 4), config
    )
    for row, count in zip(masked, frames.tolist(), strict=True):
        valid = row[:, :count]
        assert (valid.sum(0) > 0).sum() >= count / 2
        assert (valid.sum(1) > 0).sum() >= 16 / 2
    assert (masked == 0).any()


def test_masks_differ_from_row_to_row() -> None:
    config = AudioTowerConfig(**AUDIO)
    numbers = ItemRNG(0, [0] * 8, range(8)).uniform("spectrogram masks", 4)
    masked = spec_augment(torch.ones(8, 16, 100), torch.full((8,), 100), numbers, config)
    assert len({tuple(row.flatten().tolist()) for row in masked}) > 4


def test_every_clip_loses_the_same_fraction_of_its_own_patches() -> None:
    valid_mask = torch.arange(20) < torch.tensor([[20], [8], [1]])
    retained, still_valid = drop_patches(valid_mask, ItemRNG(0, [0] * 3, range(3)).uniform("patches", 20), 0.25)
    assert still_valid.sum(1).tolist() == [15, 6, 1]
    for row, real, own in zip(retained, still_valid, valid_mask, strict=True):
        chosen = row[real]
        assert own[chosen].all()
        assert len(set(chosen.tolist())) == len(chosen)


def test_a_frequency_mask_above_half_the_bins_is_refused() -> None:
    with pytest.raises(UsageError, match=r"frequency_mask=9 could mask more than half"):
        audio_tower(frequency_mask=9)


def test_a_clip_longer_than_max_seconds_is_refused() -> None:
    with pytest.raises(UsageError, match=r"longer than model.audio.max_seconds"):
        audio_tower()(torch.zeros(1, 17_000), torch.tensor([17_000]))


def test_spectrograms_are_normalised() -> None:
    tower = audio_tower()
    clips, lengths = padded(waves(16_000, 4000))
    tower.set_normalisation(tower.moments(clips, lengths))
    spectrogram = tower._normalised(clips, tower.log_mel.frames(lengths))
    valid = torch.cat([spectrogram[0].flatten(), spectrogram[1, :, : 4000 // 80 + 1].flatten()])
    assert valid.mean().item() == pytest.approx(0, abs=1e-4)
    assert valid.std().item() == pytest.approx(1, abs=1e-3)


# --- the text tower -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("encoder", ["bytes", "tokens", "hf"])
def test_a_text_has_the_same_embedding_alone_and_in_a_padded_batch(encoder: str, tmp_path: Path) -> None:
    if encoder != "bytes":
        pytest.importorskip("transformers", reason="the extra hf is not installed")
        encoder = f"{encoder}:{make_folder(tmp_path / 'text')}"
    tower = TextTransformer(**TOWER, encoder=encoder).eval()
    texts = ["a red circle", "a", "a blue square a red circle left"]
    together = tower(*tower.prepare(texts))
    assert together.shape == (3, 1, 16)
    for number, text in enumerate(texts):
        torch.testing.assert_close(tower(*tower.prepare([text]))[0], together[number], rtol=1e-4, atol=1e-5)
    assert not torch.allclose(together[0], together[1])


def test_a_text_that_is_too_long_is_truncated(tmp_path: Path) -> None:
    tower = TextTransformer(**TOWER, max_length=16)
    texts = ["a flute that plays on and on", "flute"]
    ids, mask = tower.prepare(texts)
    assert mask[0].all()
    assert bytes(ids[0, 1:15].tolist()).decode() == "a flute that p"
    assert tower.too_long(texts) == texts[:1]
    pytest.importorskip("transformers", reason="the extra hf is not installed")
    words = TextTransformer(**TOWER, max_length=8, encoder=f"tokens:{make_folder(tmp_path / 'text')}")
    assert words.too_long(["a red circle", "a red circle " * 4]) == ["a red circle " * 4]


def test_texts_may_be_token_ids() -> None:
    tower = TextTransformer(**TOWER, vocab_size=20)
    _, mask = tower.prepare_ids([torch.tensor([3, 4, 5]), torch.tensor([19])])
    assert mask.sum(1).tolist() == [3, 1]
    with pytest.raises(UsageError, match=r"between 0 and 19 .* the largest is 20"):
        tower.prepare_ids([torch.tensor([20])])


# --- the model ----------------------------------------------------------------------------------------------------


def small_model(**keywords: object) -> MuLaN:
    torch.manual_seed(0)
    return MuLaN(audio=AUDIO, text=TOWER, latent_dim=8, **keywords)


def test_a_model_takes_two_towers() -> None:
    towers = audio_tower(), TextTransformer(**TOWER)
    model = MuLaN(audio_transformer=towers[0], text_transformer=towers[1], latent_dim=8)
    assert (model.audio, model.text) == towers
    assert model.config.audio == towers[0].config
    with pytest.raises(UsageError, match="not both"):
        MuLaN(audio_transformer=towers[0], audio=AUDIO)


def test_embeddings_are_unit_vectors_one_for_each_loss() -> None:
    model = small_model(intermediate_losses=1)
    texts = model.text.prepare(["a flute", "a drum"])
    vectors = model(*padded(waves(4000, 8000)), *texts, None)
    assert vectors.audio.shape == vectors.text.shape == (2, 2, 8)
    torch.testing.assert_close(vectors.audio.norm(dim=-1), torch.ones(2, 2))
    torch.testing.assert_close(model.embed_audio(*padded(waves(4000, 8000))), vectors.audio[:, -1])
    torch.testing.assert_close(model.embed_texts(["a flute", "a drum"]), vectors.text[:, -1])
    assert vectors.scale.tolist() == pytest.approx([10, 10])


def test_an_exported_model_gives_the_same_embeddings(tmp_path: Path) -> None:
    model = small_model(contrastive_loss="sigmoid").eval()
    model.audio.set_normalisation(torch.tensor([-30.0, 100.0, 10.0], dtype=torch.float64))
    model.save_pretrained(tmp_path / "hub")
    again = MuLaN.from_pretrained(tmp_path / "hub")
    clips = padded(waves(4000, 8000))
    assert torch.equal(again.embed_audio(*clips), model.embed_audio(*clips))
    assert torch.equal(again.embed_texts(["a flute"]), model.embed_texts(["a flute"]))


def test_codes_approximate_embeddings() -> None:
    torch.manual_seed(0)
    vectors = F.normalize(torch.randn(64, 8), dim=-1)
    quantizer = MuLaNEmbedQuantizer(8, num_quantizers=4, codebook_size=16)
    quantizer.quantizer.init_from_data(vectors, 0)
    codes = quantizer.encode(vectors)
    assert codes.shape == (64, 4)
    assert F.cosine_similarity(quantizer.decode(codes), vectors).mean() > 0.9
    fewer = codes.clone()
    fewer[:, 1:] = -1
    assert F.cosine_similarity(quantizer.decode(fewer), vectors).mean() < 0.9


# --- retrieval ----------------------------------------------------------------------------------------------------


def test_the_rank_counts_candidates_before_the_correct_one() -> None:
    queries = torch.eye(3)
    candidates = torch.tensor([[1.0, 0.9, 0.2], [0.5, 1.0, 0.1], [0.6, 0.0, 0.0]])
    assert best_ranks(queries, candidates, torch.arange(3)).tolist() == [1, 1, 3]


def test_constant_embeddings_have_the_worst_metrics() -> None:
    same = torch.ones(10, 4)
    metrics = retrieval_metrics(same, same, torch.arange(10))
    assert metrics["text_to_audio_r1"] == metrics["audio_to_text_r5"] == 0
    assert metrics["text_to_audio_median_rank"] == 10


def test_any_clip_with_the_same_caption_is_correct() -> None:
    queries, candidates = torch.eye(2)[[0, 0, 1]], torch.eye(2)[[1, 0, 1]]
    assert best_ranks(queries, candidates, torch.tensor([7, 7, 8])).tolist() == [1, 1, 2]


def test_captions_are_compared_by_their_words() -> None:
    assert caption_number("A slow drum.") == caption_number("a slow drum")
    assert caption_number("a slow drum") != caption_number("a fast drum")
    numbers = torch.tensor([caption_number(text) for text in ("a", "b", "a", "c")])
    assert first_per_group(numbers, 10).tolist() == [0, 1, 3]
    assert first_per_group(numbers, 2).tolist() == [0, 1]


def test_the_label_of_a_caption_is_the_longest_it_contains() -> None:
    labels = ("drum", "snare drum", "flute")
    assert label_in("A loud Snare Drum beat", labels) == 1
    assert label_in("a flute", labels) == 2
    assert label_in("fluted glass, drums", labels) is None


# --- the task -----------------------------------------------------------------------------------------------------


def small_task(**keys: object) -> MuLaNTask:
    torch.manual_seed(0)
    overrides = {"model.audio": AUDIO, "model.text": TOWER, "model.latent_dim": 8, "data.seconds": 1.0}
    return MuLaNTask(build(MuLaNConfig, overrides={**overrides, **keys}))


def test_the_temperature_never_falls_below_its_limit() -> None:
    task = small_task(**{"model.min_temperature": 0.05})
    with torch.no_grad():
        task.mulan.log_scale.fill_(50.0)
    task.after_step(Statistics(), 1)
    assert task.mulan.log_scale.exp().item() == pytest.approx(20)


def test_a_loss_at_chance_level_is_warned_about(capsys: pytest.CaptureFixture[str]) -> None:
    task = small_task()
    same = F.normalize(torch.ones(30, 8), dim=-1)
    rows = {"audio": same, "text": same, "captions": torch.arange(30)}
    sums = {"log_scale": torch.tensor(5.0), "batches": torch.tensor(2.0)}
    metrics = task.summarise(Statistics(sums, rows))
    assert metrics["loss"] == pytest.approx(math.log(30))
    assert "ln(30) = 3.401" in capsys.readouterr().err
    apart = F.normalize(torch.randn(30, 8), dim=-1)
    task.summarise(Statistics(sums, {**rows, "audio": apart, "text": apart}))
    assert capsys.readouterr().err == ""


def test_the_loss_uses_the_temperature_of_the_evaluated_weights() -> None:
    task = small_task()
    averaged = small_model()
    with torch.no_grad():
        averaged.log_scale.fill_(math.log(3.0))
    clips = [{"wavs": wave[None], "lengths": torch.tensor([8000]), "texts": f"tone {number}"}
             for number, wave in enumerate(waves(8000, 8000, 8000))]  # fmt: skip
    batch = Batch(pad_windows(clips), ("a", "b", "c"), ItemRNG(0, [0] * 3, range(3)))
    modules = {"mulan": averaged.eval()}
    with torch.no_grad():
        metrics = task.summarise(task.measure(modules, batch))
        pipeline = task.pipeline(modules)
        texts = pipeline.embed_texts([f"tone {number}" for number in range(3)])
        scores = 3.0 * pipeline.embed_batch(batch) @ texts.T
    expected = (F.cross_entropy(scores, torch.arange(3)) + F.cross_entropy(scores.T, torch.arange(3))) / 2
    assert metrics["loss"] == pytest.approx(expected.item(), rel=1e-5)


def test_a_long_clip_is_the_mean_of_its_windows() -> None:
    task = small_task()
    windows = torch.stack(waves(8000, 8000, 8000))
    items = [
        {"wavs": windows[:2], "lengths": torch.tensor([8000, 8000]), "texts": "a"},
        {"wavs": windows[2:], "lengths": torch.tensor([8000]), "texts": "b"},
    ]
    batch = Batch(pad_windows(items), ("one", "two"), ItemRNG(0, [0, 0], [0, 1]))
    own = task.mulan.embed_audio(windows)
    expected = F.normalize(torch.stack([own[:2].mean(0), own[2]]), dim=-1)
    torch.testing.assert_close(task.pipeline(task.modules).embed_batch(batch), expected)


def test_windows_longer_than_the_tower_takes_are_refused() -> None:
    with pytest.raises(UsageError, match=r"data.seconds=3.0 is longer than model.audio.max_seconds=2.0"):
        small_task(**{"data.seconds": 3.0})


class PerMicroBatch(MuLaNTask):
    """A contrastive task whose loss compares only the items of a micro-batch."""

    backward = Task.backward


def test_accumulation_that_would_reduce_the_contrastive_batch_is_refused() -> None:
    config = small_task(**{"train.batch_size": 8, "train.grad_accum_steps": 4}).config
    check_processes(MuLaNTask(config), 1)
    with pytest.raises(UsageError, match=r"train.grad_accum_steps=4 reduces that to 2 items at a time"):
        check_processes(PerMicroBatch(config), 1)
    alone = config.changed({"train.batch_size": 1, "train.grad_accum_steps": 1})
    with pytest.raises(UsageError, match=r"at least 2 \(got 1\), because it compares the items"):
        check_processes(MuLaNTask(alone), 1)


def test_word_dropout_never_drops_all_words() -> None:
    texts = [f"a loud low flute note number {number}" for number in range(200)]
    rng = ItemRNG(0, [0] * 200, range(200))
    assert drop_words(texts, rng, 0.0) == texts
    shorter = drop_words(texts, rng, 1.0)
    assert 80 < sum(short == text for short, text in zip(shorter, texts, strict=True)) < 125
    assert all(short and set(short.split()) <= set(text.split()) for short, text in zip(shorter, texts, strict=True))
    assert min(len(short.split()) for short in shorter) == 1
    assert drop_words(texts[7:9], ItemRNG(0, [0, 0], [7, 8]), 1.0) == shorter[7:9]
    assert drop_words(["", "drum"], ItemRNG(0, [0, 0], [3, 4]), 1.0) == ["", "drum"]


def test_a_swap_takes_the_part_of_another_caption_in_the_same_place() -> None:
    texts = ["alto sax, note E4", "tuba, note C2", "a slow rising flute", "a fast falling flute", "", "drum"]
    rng = ItemRNG(0, [3] * 6, range(6))
    swapped = swap_parts(texts, rng, 1.0)
    assert swapped == swap_parts(texts, rng, 1.0)
    for text, other in zip(texts[:4], swapped[:4], strict=True):
        assert other
        assert caption_number(other) != caption_number(text)
    parts = [set(text.split(", ")) for text in texts[:2]]
    assert set(swapped[0].split(", ")) <= parts[0] | parts[1]
    assert swapped[4] == ""
    assert swap_parts(texts, rng, 0.0) == [""] * 6
    assert swap_parts(["a flute", "A flute"], ItemRNG(0, [0, 0], [0, 1]), 1.0) == ["", ""]
    assert swap_parts(["alone"], ItemRNG(0, [0], [0]), 1.0) == [""]
    pair = ["alto sax, note E4", "tuba, note C2"]
    assert swap_parts(pair, ItemRNG(0, [0, 0], [0, 1]), 1.0)[0] in ("tuba, note E4", "alto sax, note C2")


def test_about_the_asked_fraction_of_captions_is_swapped() -> None:
    texts = [f"note number {number}" for number in range(400)]
    swapped = swap_parts(texts, ItemRNG(0, [0] * 400, range(400)), 0.25)
    assert 70 < sum(map(bool, swapped)) < 130
    assert all(text.startswith("note number ") for text in swapped if text)


@pytest.mark.parametrize("encoder", ["bytes", "hf"])
def test_hard_negatives_take_part_in_the_loss(encoder: str, tmp_path: Path) -> None:
    name = encoder if encoder == "bytes" else f"hf:{make_folder(tmp_path / 't5')}"
    plain, swapping = (
        small_task(**{"data.text_swap_prob": swap, "data.word_dropout": 0.0, "model.text.encoder": name})
        for swap in (0.0, 1.0)
    )
    swapping.mulan.load_state_dict(plain.mulan.state_dict())
    texts = ["a red circle", "a blue square", "a red square", "a blue circle"]
    items = [
        {"wavs": wave[None], "lengths": torch.tensor([4000]), "texts": text}
        for wave, text in zip(waves(*[4000] * 4), texts, strict=True)
    ]
    batch = Batch(pad_windows(items), tuple("abcd"), ItemRNG(0, [0] * 4, range(4)))
    outputs = [task.forward(task.modules, batch, 0) for task in (plain, swapping)]
    assert "negative" not in outputs[0]["rows"]
    torch.testing.assert_close(outputs[1]["rows"]["text"], outputs[0]["rows"]["text"])
    torch.testing.assert_close(outputs[1]["rows"]["negative"].norm(dim=-1), torch.ones(4, 1))
    losses = [
        task.loss(task.modules, batch, output, 0).value for task, output in zip((plain, swapping), outputs, strict=True)
    ]
    assert losses[1] > losses[0]


# --- the pipeline -------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def pipeline(tmp_path_factory: pytest.TempPathFactory) -> MuLaNPipeline:
    folder = tmp_path_factory.mktemp("mulan") / "hub"
    task = small_task(**{"model.num_quantizers": 2, "model.codebook_size": 8, "data.loudness": -20.0})
    task.pipeline(task.modules).save_pretrained(folder)
    return MuLaNPipeline.from_pretrained(folder)


def test_an_exported_mulan_embeds_clips_and_texts_into_one_space(pipeline: MuLaNPipeline) -> None:
    assert pipeline.sample_rate == AUDIO["sample_rate"]
    audio = pipeline.embed_audio(waves(20_000, 8000, 100), pipeline.sample_rate)
    text = pipeline.embed_texts(["a flute", "slow drums"])
    assert (audio.shape, text.shape) == ((3, 8), (2, 8))
    for vectors in (audio, text):
        torch.testing.assert_close(vectors.norm(dim=1), torch.ones(len(vectors)))
        assert not vectors.requires_grad
    assert pipeline.quantizer.encode(audio).shape == (3, 2)


def test_an_embedding_is_the_same_alone_and_in_a_batch(pipeline: MuLaNPipeline) -> None:
    clips = waves(20_000, 8000, 100)
    together = pipeline.embed_audio(clips, pipeline.sample_rate)
    for clip, vector in zip(clips, together, strict=True):
        torch.testing.assert_close(pipeline.embed_audio([clip], pipeline.sample_rate)[0], vector, rtol=1e-4, atol=1e-5)
    texts = [f"tone {number}" for number in range(70)]
    torch.testing.assert_close(pipeline.embed_texts(texts)[66:67], pipeline.embed_texts(texts[66:67]))


def test_clips_in_memory_are_embedded_as_files_are(pipeline: MuLaNPipeline, tmp_path: Path) -> None:
    rate = pipeline.sample_rate
    clips = waves(3 * rate, rate // 2)
    for number, clip in enumerate(clips):
        write_audio(clip, tmp_path / f"{number}.wav", rate=rate)
    embedded = embed_media(pipeline, tmp_path)
    assert embedded.files == ["0.wav", "1.wav"]
    stored = [torch.from_numpy(read_audio(tmp_path / file, rate)[0]) for file in embedded.files]
    torch.testing.assert_close(pipeline.embed_audio(stored, rate), embedded.vectors, rtol=1e-4, atol=1e-5)


def test_clips_of_another_rate_are_resampled(pipeline: MuLaNPipeline) -> None:
    rate = pipeline.sample_rate
    seconds = torch.arange(2 * rate) / (2 * rate)
    tone = 0.3 * torch.sin(2 * math.pi * 440 * seconds)
    torch.testing.assert_close(
        pipeline.embed_audio([tone], 2 * rate), pipeline.embed_audio([tone[::2]], rate), rtol=0.02, atol=0.02
    )


def test_a_truncated_text_is_warned_about(pipeline: MuLaNPipeline, capsys: pytest.CaptureFixture[str]) -> None:
    pipeline.embed_texts(["a flute"])
    assert capsys.readouterr().err == ""
    pipeline.embed_texts(["very " * 400 + "long"])
    assert "text truncated to model.text.max_length" in capsys.readouterr().err
