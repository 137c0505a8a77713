"""C-ViViT: nothing looks ahead, so a video's codes are those of its beginning and more."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from quintet.common.batch import Batch
from quintet.common.rng import ItemRNG
from quintet.config import build, validate
from quintet.errors import UsageError
from quintet.families.cvivit.config import CViViTConfig, CViViTModelConfig
from quintet.families.cvivit.model import CViViT, FrameFilter
from quintet.families.cvivit.pipeline import CViViTPipeline
from quintet.families.cvivit.task import CViViTTask, chosen_frames, temporal_error
from quintet.families.cvivit.trainer import CViViTTrainer
from quintet.media.video import read_header, read_video
from quintet.training.engine import Engine
from quintet.training.phase import Loss

TINY = {
    **{
        "image_size": (16, 24),
        "patch_size": 8,
        "temporal_patch_size": 2,
        "max_frames": 13,
        "dim": 16,
        "heads": 2,
        "head_dim": 8,
    },
    **{"spatial_depth": 1, "temporal_depth": 2, "codebook_size": 256},
}
KINDS: dict[str, dict[str, Any]] = {
    **{name: {"quantizer": name} for name in ("vq", "lfq", "fsq")},
    "shortcut": {"shortcut": True, "codebook_size": 64},
    "filter": {"filter_dim": 8, "filter_blocks": 2, "codebook_size": 64},
}


def make(**keys: Any) -> CViViT:
    torch.manual_seed(0)
    model = CViViT(**{**TINY, **keys}).double().eval()
    for weight in model.parameters():
        if not weight.any():  # a shortcut's blocks have no say until they are trained
            torch.nn.init.normal_(weight)
    with torch.no_grad():
        # More vectors than codes: of two equal codes rounding would decide, and that differs between processors.
        model.quantizer.init_from_data(model.latents(film(9, 16)).flatten(0, 2), seed=0)
    return model


def film(frames: int, batch: int = 2) -> Tensor:
    return torch.rand(batch, 3, frames, 16, 24, dtype=torch.float64, generator=torch.Generator().manual_seed(frames))


@pytest.mark.parametrize("kind", KINDS)
def test_codes_and_videos_have_their_shapes(kind: str) -> None:
    model = make(**KINDS[kind])
    codes = model.encode(film(9))
    assert codes.shape == (2, 5, 2, 3)
    assert 0 <= codes.min() <= codes.max() < model.num_codes
    assert len(codes.unique()) > 5
    decoded = model.decode(codes)
    assert decoded.shape == (2, 3, 9, 16, 24)
    assert 0 <= decoded.min() <= decoded.max() <= 1
    result = model(film(9))
    assert torch.equal(result.codes, codes)
    torch.testing.assert_close(result.videos.clamp(0, 1), decoded)
    levels = make(**KINDS[kind], num_quantizers=2)
    assert levels.encode(film(5)).shape == (2, 3, 2, 3, 2)
    assert levels.decode(levels.encode(film(5))).shape == (2, 3, 5, 16, 24)


@pytest.mark.parametrize("kind", KINDS)
def test_later_frames_change_no_earlier_latent_and_no_earlier_code(kind: str) -> None:
    model = make(**KINDS[kind])
    whole = film(9)
    for first in (1, 3, 5, 7, 8):
        changed = whole.clone()
        changed[:, :, first:] = 1 - changed[:, :, first:]
        before = model.config.moments(first + 1) - 1  # the moment of the first changed frame
        latents, others = model.latents(whole), model.latents(changed)
        torch.testing.assert_close(latents[:, :before], others[:, :before], rtol=0, atol=1e-12)
        assert (latents[:, before] - others[:, before]).abs().max() > 1e-3
        assert torch.equal(model.encode(whole)[:, :before], model.encode(changed)[:, :before])


@pytest.mark.parametrize("kind", KINDS)
def test_the_codes_of_a_beginning_are_the_beginning_of_the_codes(kind: str) -> None:
    model = make(**KINDS[kind])
    whole = film(13)
    codes = model.encode(whole)
    for frames in (1, 3, 7, 11):
        assert torch.equal(model.encode(whole[:, :, :frames]), codes[:, : model.config.moments(frames)])


@pytest.mark.parametrize("kind", KINDS)
def test_the_video_of_a_beginning_is_the_beginning_of_the_video(kind: str) -> None:
    model = make(**KINDS[kind])
    codes = model.encode(film(13))
    whole = model.decode(codes)
    for moments in (1, 2, 5):
        part = model.decode(codes[:, :moments])
        assert part.shape[2] == model.config.frames(moments)
        torch.testing.assert_close(part, whole[:, :, : part.shape[2]], rtol=0, atol=1e-12)


@pytest.mark.parametrize("kind", KINDS)
def test_a_picture_is_a_video_of_one_frame(kind: str) -> None:
    model = make(**KINDS[kind])
    picture = film(1)
    codes = model.encode(picture)
    assert codes.shape == (2, 1, 2, 3)
    assert torch.equal(model.encode(picture[:, :, 0]), codes)
    assert model.decode(codes).shape == (2, 3, 1, 16, 24)
    assert model(picture[:, :, 0]).videos.shape == (2, 3, 1, 16, 24)


@pytest.mark.parametrize("kind", KINDS)
def test_places_see_each_other_at_one_moment_and_the_past_but_only_through_it(kind: str) -> None:
    """Changing one corner of the first frame reaches every place of every moment."""
    model = make(**KINDS[kind])
    whole = film(7)
    changed = whole.clone()
    changed[:, :, 0, :8, :8] = 0
    assert ((model.latents(whole) - model.latents(changed)).abs().amax(-1) > 1e-9).all()


@pytest.mark.parametrize("kind", KINDS)
def test_a_shorter_video_in_a_batch_is_as_if_alone(kind: str) -> None:
    model = make(**KINDS[kind])
    videos = film(9)
    mask = torch.arange(9) < torch.tensor([[9], [4]])
    videos[1, :, 4:] = videos[1, :, 3:4]
    codes = model.encode(videos, mask)
    assert model.moments_there(mask).sum(1).tolist() == [5, 3]
    assert (codes[1, 3:] == -1).all()
    assert torch.equal(codes[1, :3], model.encode(videos[1:, :, :5])[0])
    assert torch.equal(codes[0], model.encode(videos[:1])[0])
    result = model(videos, mask)
    assert torch.equal(result.codes, codes)
    other = videos.clone()
    other[1, :, 5:] = 0.3
    again = model(other, mask)
    assert torch.equal(again.loss, result.loss)
    torch.testing.assert_close(again.videos[1, :, :5], result.videos[1, :, :5], rtol=0, atol=1e-12)


@pytest.mark.parametrize("kind", ["fsq", "shortcut"])
def test_gradients_reach_every_weight(kind: str) -> None:
    model = make(**KINDS[kind]).train()
    result = model(film(5))
    (result.videos.square().mean() + result.loss).backward()
    assert [name for name, weight in model.named_parameters() if weight.grad is None or not weight.grad.any()] == []


def test_it_is_exported_and_loaded(tmp_path: Path) -> None:
    model = make().float()
    model.save_pretrained(tmp_path / "hub")
    again = CViViT.from_pretrained(tmp_path / "hub")
    assert torch.equal(again.encode(film(5).float()), model.encode(film(5).float()))


@pytest.mark.parametrize(
    ("shape", "words"),
    [
        ((2, 3, 4, 16, 24), "4 frames are not 1 and a multiple of 2"),
        ((2, 3, 15, 16, 24), "15 frames are more than model.max_frames=13"),
        ((2, 3, 5, 16, 16), r"takes videos of \(batch, 3, frames, 16, 24\)"),
        ((2, 1, 5, 16, 24), "takes videos of"),
        ((3, 16, 24), "takes videos of"),
    ],
)
def test_videos_that_do_not_fit_are_refused(shape: tuple[int, ...], words: str) -> None:
    with pytest.raises(UsageError, match=words):
        make().encode(torch.zeros(shape, dtype=torch.float64))


def test_codes_of_another_tokenizer_are_refused() -> None:
    model = make()
    codes = model.encode(film(5))
    for strange in (codes[:, :0], codes[..., None], codes[..., 0], codes.flatten(), codes[..., :1]):
        with pytest.raises(UsageError, match=r"none of this tokenizer, whose are \(batch, moments, 2, 3\)"):
            model.decode(strange)


def test_keys_that_contradict_each_other_are_refused() -> None:
    with pytest.raises(UsageError, match=r"model.image_size=30 is not divisible by model.patch_size = 8; .* 32"):
        validate(CViViTModelConfig, {"image_size": 30})
    with pytest.raises(
        UsageError, match=r"data.frames=16 is not 1 and a multiple of model.temporal_patch_size = 2; .* 17"
    ):
        build(CViViTConfig, overrides={"data.frames": 16})
    with pytest.raises(UsageError, match=r"data.frames=17 is more than model.max_frames=9"):
        build(CViViTConfig, overrides={"model.max_frames": 9})
    with pytest.raises(UsageError, match=r"model.codebook_size=100"):
        CViViT(quantizer="lfq", codebook_size=100)
    with pytest.raises(UsageError, match=r"model.filter_dim is for sides of an even number of pixels, not \[15, 30\]"):
        validate(CViViTModelConfig, {"image_size": [15, 30], "patch_size": 5, "filter_dim": 8})
    for preset in ("debug", "small", "base"):
        build(CViViTConfig, preset=preset)


def test_a_fresh_filter_does_nothing() -> None:
    torch.manual_seed(0)
    assert torch.equal(FrameFilter(8, 2).double()(film(5)), film(5))


# --- the task -------------------------------------------------------------------------------------------------------


def task(**keys: Any) -> CViViTTask:
    torch.manual_seed(0)
    model = {f"model.{name}": list(value) if isinstance(value, tuple) else value for name, value in TINY.items()}
    config = build(CViViTConfig, overrides={**model, "data.frames": 9, "model.quantizer": "fsq", **keys})
    made = CViViTTask(config)
    for module in made.modules.values():
        module.double()
    return made


def batch_of(made: CViViTTask, lengths: Sequence[int], fill: float | None = None) -> Batch:
    """Clips of these lengths; what stands where no frame is can be chosen."""
    items = [{"videos": film(9, len(lengths))[row, :, :length]} for row, length in enumerate(lengths)]
    fields = made.collate(items)
    if fill is not None:
        fields["videos"].masked_fill_(~fields["mask"][:, None, :, None, None], fill)
    names = tuple(map(str, lengths))
    return Batch(fields, names, ItemRNG(0, [0] * len(lengths), range(len(lengths))), torch.float64)


def loss_of(made: CViViTTask, batch: Batch, step: int = 0) -> Loss:
    return made.generator_loss(made.modules, batch, made.forward(made.modules, batch, step), step)


def test_batches_are_padded_to_whole_moments() -> None:
    made = task()
    assert batch_of(made, [4, 2])["videos"].shape[2] == 5
    assert batch_of(made, [1, 1])["videos"].shape[2] == 1
    assert batch_of(made, [9, 1])["mask"].sum(1).tolist() == [9, 1]


def test_frames_that_are_not_there_count_nowhere() -> None:
    """Of what comes after a clip's last moment; in a moment that is filled in part the last frame stands still."""
    made = task(**{"loss.discriminator_start": 0, "loss.frame_difference": 0.5, "model.filter_dim": 8})
    for lengths in ([9, 5, 1], [9, 7, 3]):
        plain, other = batch_of(made, lengths), batch_of(made, lengths, fill=0.25)
        first, second = loss_of(made, plain), loss_of(made, other)
        for name, value in first.parts.items():
            torch.testing.assert_close(second.parts[name], value, rtol=0, atol=1e-12, msg=name)
        sums = [made.measure(made.modules, each).sums for each in (plain, other)]
        torch.testing.assert_close(sums[0], sums[1], rtol=0, atol=1e-6)


def test_the_loss_is_the_mean_over_all_frames_that_are_there() -> None:
    made = task()
    lengths = [9, 4, 1]
    whole = loss_of(made, batch_of(made, lengths)).parts["reconstruction"]
    single = []
    for row, length in enumerate(lengths):
        item = {"videos": film(9, 3)[row, :, :length]}
        alone = Batch(made.collate([item]), ("one",), ItemRNG(0, [0], [row]), torch.float64)
        single.append(loss_of(made, alone).parts["reconstruction"] * length)
    torch.testing.assert_close(whole, torch.stack(single).sum() / sum(lengths))


def test_errors_that_stand_still_are_no_wrong_motion() -> None:
    made = task(**{"loss.frame_difference": 2.0})
    batch = batch_of(made, [9, 4, 1])
    videos = batch["videos"]

    def parts_of(wrong: Tensor) -> tuple[float, float]:
        output = made.forward(made.modules, batch, 0)
        output["result"].videos = videos + wrong
        loss, parts = made.reconstruction_loss(batch, output)
        assert loss == parts["reconstruction"] + 2 * parts["motion"]
        return float(parts["reconstruction"]), float(parts["motion"])

    still = torch.rand_like(videos[:, :, :1])
    reconstruction, motion = parts_of(still.expand_as(videos))
    assert reconstruction > 0.1
    assert motion < 1e-12
    flicker = 0.1 * torch.tensor([1.0, -1.0] * 5, dtype=videos.dtype)[: videos.shape[2]]
    reconstruction, motion = parts_of(flicker[:, None, None].expand_as(videos))
    assert reconstruction == pytest.approx(0.01)
    assert motion == pytest.approx(0.04)
    pictures = batch_of(made, [1, 1])
    assert loss_of(made, pictures).parts["motion"] == 0


def test_the_frame_that_is_looked_at_is_one_that_is_there() -> None:
    made = task()
    lengths = [9, 4, 1]
    fields = batch_of(made, lengths).fields
    seen: list[set[int]] = [set() for _ in lengths]
    for epoch in range(60):
        drawn = Batch(fields, ("a", "b", "c"), ItemRNG(0, [epoch] * 3, range(3)), torch.float64)
        for row, frame in enumerate(chosen_frames(drawn).tolist()):
            seen[row].add(frame)
    assert seen == [set(range(length)) for length in lengths]


def test_pictures_alone_can_be_trained_on_with_a_discriminator() -> None:
    made = task(**{"loss.discriminator_start": 0})
    batch = batch_of(made, [1, 1, 1])
    output = made.forward(made.modules, batch, 0)
    losses = [phase.loss(made.modules, batch, output, 0) for phase in made.phases]
    assert [set(loss.parts) for loss in losses] == [
        {"reconstruction", "quantizer", "adversarial"},
        {"hinge", "real", "fake", "penalty"},
    ]
    assert all(value.isfinite() for loss in losses for value in loss.parts.values())
    losses[0].value.backward()
    assert all(weight.grad is None for weight in made.discriminator.parameters())


def test_temporal_error_is_of_changes_between_frames() -> None:
    """Frames that are all wrong by the same amount change rightly; a still of what moves does not."""
    frames = film(5, 1)[0].transpose(0, 1)
    torch.testing.assert_close(temporal_error(frames + 0.25, frames), torch.zeros(4, dtype=torch.float64))
    changes = frames.diff(dim=0).abs().mean((1, 2, 3))
    torch.testing.assert_close(temporal_error(frames[:1].expand_as(frames), frames), changes)


def test_pictures_have_no_temporal_error() -> None:
    made = task()
    with torch.no_grad():
        found = [made.measure(made.modules, batch_of(made, lengths)) for lengths in ([9, 4], [9, 4, 1], [1, 1])]
    with_picture, without, pictures = made.summarise(found[1]), made.summarise(found[0]), made.summarise(found[2])
    assert with_picture["temporal_error"] == pytest.approx(without["temporal_error"], abs=1e-6)
    assert without["temporal_error"] > 0.05
    assert "temporal_error" not in pictures


def test_short_codes_are_decoded_to_short_films(tmp_path: Path) -> None:
    made = task()
    pipeline = CViViTPipeline(made.config, made.modules)
    with pipeline.inference():
        artifacts = pipeline.decode_files(pipeline.encode_batch(batch_of(made, [9, 4, 1])), "film")
    frames = [read_header(artifact.write(tmp_path / artifact.file)).frames for artifact in artifacts]  # type: ignore[arg-type]
    assert frames == [9, 5, 1]
    assert [artifact.file for artifact in artifacts] == ["film-0.mp4", "film-1.mp4", "film-2.mp4"]


def test_samples_show_each_clip_above_what_was_made_of_it(tmp_path: Path) -> None:
    made = task()
    artifacts = made.sample(made.modules, batch_of(made, [9, 4]))
    assert [artifact.file for artifact in artifacts] == [
        "reconstructions.png",
        "reconstruction-00.mp4",
        "reconstruction-01.mp4",
    ]
    assert artifacts[0].tensor is not None
    assert artifacts[0].tensor.shape == (4 * 18, 9 * 26, 3)
    film_path = artifacts[2].write(tmp_path / artifacts[2].file)
    assert read_video(film_path).shape == (4, 16, 48, 3)  # type: ignore[arg-type]


def test_a_pipeline_encodes_and_decodes_from_an_exported_folder(tmp_path: Path) -> None:
    made = task()
    CViViTPipeline(made.config, {"cvivit": made.model.float()}).save_pretrained(tmp_path / "hub")
    tokenizer = CViViTPipeline.from_pretrained(tmp_path / "hub")
    videos = film(9).float()
    codes = tokenizer.encode(videos)
    assert codes.shape == (2, 5, 2, 3)
    assert torch.equal(codes, made.model.eval().encode(videos))
    assert tokenizer.decode(codes).shape == videos.shape
    assert not tokenizer.decode(codes).requires_grad
    # An item's codes depend neither on its neighbours nor on padding.
    mask = torch.arange(9) < torch.tensor([[9], [5]])
    padded = tokenizer.encode(videos, mask)
    assert torch.equal(padded[0], codes[0])
    assert torch.equal(padded[1, :3], tokenizer.encode(videos[1:, :, :5])[0])
    assert (padded[1, 3:] == -1).all()
    assert torch.equal(tokenizer.encode(videos[:, :, 0]), codes[:, :1])


def test_it_is_trained_in_python_on_a_data_set_object(tmp_path: Path) -> None:
    clips = [(film(frames, 1)[0].float(), f"clip {frames}") for frames in (9, 5, 1, 9)]
    keys = {"data.frames": 9, "data.num_workers": 0, "loss.discriminator": False, "log.trackers": []}
    trainer = CViViTTrainer(
        CViViT(**TINY, quantizer="fsq"), data=clips, out=tmp_path / "run", steps=2, batch_size=3, config=keys
    )
    trainer.train()
    trainer.close()
    assert trainer.step == 2


# --- a shortcut -----------------------------------------------------------------------------------------------------


def stripes(batch: int, frames: int) -> Tensor:
    """Films of few directions: a grey, a step between the halves of every patch, and a fading."""
    rng = torch.Generator().manual_seed(frames)
    grey, height, fading = torch.rand(3, batch, 1, 1, 1, 1, generator=rng, dtype=torch.float64)
    edge = (torch.arange(24) % 8 < 4).double() - 0.5
    later = (torch.arange(frames) + 1)[:, None, None] % 2
    return (0.5 + (grey - 0.5) / 2 + edge * height / 4 + later * (fading - 0.5) / 4).expand(batch, 3, frames, 16, 24)


def test_a_fresh_shortcut_is_the_transform_that_its_first_clips_need() -> None:
    """Clips of three directions come through three numbers as they are, and a picture as if it were a still clip."""
    keys = {"model.shortcut": True, "model.quantizer": "vq", "model.dim": 8, "model.codebook_size": 8}
    made = task(**keys)
    clips = stripes(64, 9)
    batches = [
        Batch(
            made.collate([{"videos": clip} for clip in clips[start : start + 16]]),
            tuple(map(str, range(16))),
            ItemRNG(0, [0] * 16, range(16)),
            torch.float64,
        )
        for start in range(0, 64, 16)
    ]
    made.init_from_data(made.modules, batches, Engine(made.config.engine))
    model, fresh = made.model, stripes(4, 5)
    with torch.no_grad():
        latents = model.latents(fresh)
        torch.testing.assert_close(model._pixels(latents)[:, :, 1:], fresh[:, :, 1:], rtol=0, atol=1e-6)
        assert latents[..., 3:].abs().max() < 1e-6
        still = fresh[:, :, :1].expand_as(fresh)
        vectors = model.latents(still)
        torch.testing.assert_close(vectors[:, :1].expand_as(vectors), vectors, rtol=0, atol=1e-9)
        torch.testing.assert_close(model._pixels(vectors), still, rtol=0, atol=1e-6)
        assert (model.decode(model.encode(clips)) - clips).abs().mean() < 0.05


def test_codes_of_a_shortcut_begin_as_means_of_many_patches() -> None:
    keys = {"model.shortcut": True, "model.quantizer": "vq", "train.batch_size": 4}
    steps = task(**keys).num_init_batches
    assert steps * 4 * 5 * 6 >= 32 * TINY["codebook_size"] > (steps - 1) * 4 * 5 * 6
    assert task(**{**keys, "model.shortcut": False}).num_init_batches == 1
