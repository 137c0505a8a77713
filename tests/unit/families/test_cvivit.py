"""C-ViViT: it is causal in time, so the codes of a video start with the codes of its beginning."""

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
from quintet.families.cvivit.task import CViViTTask, prepare_clips, temporal_error
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
    "prediction": {"shortcut": True, "temporal_prediction": True, "codebook_size": 64},
    "filter": {"filter_dim": 8, "filter_blocks": 2, "codebook_size": 64},
}


def make(**keys: Any) -> CViViT:
    torch.manual_seed(0)
    model = CViViT(**{**TINY, **keys}).double().eval()
    for weight in model.parameters():
        if not weight.any():  # blocks with a shortcut start with zero weights
            torch.nn.init.normal_(weight)
    with torch.no_grad():
        # More vectors than codes: between two equal codes rounding would decide, which differs between processors.
        model.quantizer.init_from_data(model.residuals(clip(9, 16)).flatten(0, 2), seed=0)
    return model


def clip(frames: int, batch: int = 2) -> Tensor:
    return torch.rand(batch, 3, frames, 16, 24, dtype=torch.float64, generator=torch.Generator().manual_seed(frames))


@pytest.mark.parametrize("kind", KINDS)
def test_codes_and_videos_have_their_shapes(kind: str) -> None:
    model = make(**KINDS[kind])
    codes = model.encode(clip(9))
    assert codes.shape == (2, 5, 2, 3)
    assert 0 <= codes.min() <= codes.max() < model.num_codes
    assert len(codes.unique()) > 5
    decoded = model.decode(codes)
    assert decoded.shape == (2, 3, 9, 16, 24)
    assert 0 <= decoded.min() <= decoded.max() <= 1
    result = model(clip(9))
    assert torch.equal(result.codes, codes)
    torch.testing.assert_close(result.videos.clamp(0, 1), decoded)
    levels = make(**KINDS[kind], num_quantizers=2)
    assert levels.encode(clip(5)).shape == (2, 3, 2, 3, 2)
    assert levels.decode(levels.encode(clip(5))).shape == (2, 3, 5, 16, 24)


@pytest.mark.parametrize("kind", KINDS)
def test_later_frames_change_no_earlier_latent_and_no_earlier_code(kind: str) -> None:
    model = make(**KINDS[kind])
    video = clip(9)
    for first in (1, 3, 5, 7, 8):
        changed = video.clone()
        changed[:, :, first:] = 1 - changed[:, :, first:]
        before = model.config.latent_frames(first + 1) - 1  # the latent frame of the first changed frame
        latents, others = model.latents(video), model.latents(changed)
        torch.testing.assert_close(latents[:, :before], others[:, :before], rtol=0, atol=1e-12)
        assert (latents[:, before] - others[:, before]).abs().max() > 1e-3
        assert torch.equal(model.encode(video)[:, :before], model.encode(changed)[:, :before])


@pytest.mark.parametrize("kind", KINDS)
def test_the_codes_of_a_beginning_are_the_beginning_of_the_codes(kind: str) -> None:
    model = make(**KINDS[kind])
    video = clip(13)
    codes = model.encode(video)
    for frames in (1, 3, 7, 11):
        assert torch.equal(model.encode(video[:, :, :frames]), codes[:, : model.config.latent_frames(frames)])


@pytest.mark.parametrize("kind", KINDS)
def test_the_video_of_a_beginning_is_the_beginning_of_the_video(kind: str) -> None:
    model = make(**KINDS[kind])
    codes = model.encode(clip(13))
    full = model.decode(codes)
    for latent_frames in (1, 2, 5):
        part = model.decode(codes[:, :latent_frames])
        assert part.shape[2] == model.config.frames(latent_frames)
        torch.testing.assert_close(part, full[:, :, : part.shape[2]], rtol=0, atol=1e-12)


@pytest.mark.parametrize("kind", KINDS)
def test_image_is_a_video_of_one_frame(kind: str) -> None:
    model = make(**KINDS[kind])
    image = clip(1)
    codes = model.encode(image)
    assert codes.shape == (2, 1, 2, 3)
    assert torch.equal(model.encode(image[:, :, 0]), codes)
    assert model.decode(codes).shape == (2, 3, 1, 16, 24)
    assert model(image[:, :, 0]).videos.shape == (2, 3, 1, 16, 24)


@pytest.mark.parametrize("kind", KINDS)
def test_every_position_depends_on_every_position_of_earlier_frames(kind: str) -> None:
    """Changing one corner of the first frame changes every position of every latent frame."""
    model = make(**KINDS[kind])
    video = clip(7)
    changed = video.clone()
    changed[:, :, 0, :8, :8] = 0
    assert ((model.latents(video) - model.latents(changed)).abs().amax(-1) > 1e-9).all()


@pytest.mark.parametrize("kind", KINDS)
def test_shorter_video_in_a_batch_equals_the_video_alone(kind: str) -> None:
    model = make(**KINDS[kind])
    videos = clip(9)
    mask = torch.arange(9) < torch.tensor([[9], [4]])
    videos[1, :, 4:] = videos[1, :, 3:4]
    codes = model.encode(videos, mask)
    assert model.latent_frame_mask(mask).sum(1).tolist() == [5, 3]
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
    result = model(clip(5))
    (result.videos.square().mean() + result.loss).backward()
    assert [name for name, weight in model.named_parameters() if weight.grad is None or not weight.grad.any()] == []


def test_model_is_exported_and_loaded(tmp_path: Path) -> None:
    model = make().float()
    model.save_pretrained(tmp_path / "hub")
    again = CViViT.from_pretrained(tmp_path / "hub")
    assert torch.equal(again.encode(clip(5).float()), model.encode(clip(5).float()))


@pytest.mark.parametrize(
    ("shape", "message"),
    [
        ((2, 3, 4, 16, 24), "4 frames are not 1 plus a multiple of 2"),
        ((2, 3, 15, 16, 24), "15 frames exceed model.max_frames=13"),
        ((2, 3, 5, 16, 16), r"expects \(batch, 3, frames, 16, 24\)"),
        ((2, 1, 5, 16, 24), "this tokenizer expects"),
        ((3, 16, 24), "this tokenizer expects"),
    ],
)
def test_videos_that_do_not_fit_are_refused(shape: tuple[int, ...], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        make().encode(torch.zeros(shape, dtype=torch.float64))


def test_codes_of_another_tokenizer_are_refused() -> None:
    model = make()
    codes = model.encode(clip(5))
    for other in (codes[:, :0], codes[..., None], codes[..., 0], codes.flatten(), codes[..., :1]):
        with pytest.raises(UsageError, match=r"this tokenizer expects \(batch, latent frames, 2, 3\)"):
            model.decode(other)


def test_keys_that_contradict_each_other_are_refused() -> None:
    with pytest.raises(UsageError, match=r"model.image_size=30 is not divisible by model.patch_size = 8; .* 32"):
        validate(CViViTModelConfig, {"image_size": 30})
    with pytest.raises(
        UsageError, match=r"data.frames=16 is not 1 plus a multiple of model.temporal_patch_size = 2; .* 17"
    ):
        build(CViViTConfig, overrides={"data.frames": 16})
    with pytest.raises(UsageError, match=r"data.frames=17 exceeds model.max_frames=9"):
        build(CViViTConfig, overrides={"model.max_frames": 9})
    with pytest.raises(UsageError, match=r"model.codebook_size=100"):
        CViViT(quantizer="lfq", codebook_size=100)
    with pytest.raises(UsageError, match=r"model.filter_dim needs an even height and width, not \[15, 30\]"):
        validate(CViViTModelConfig, {"image_size": [15, 30], "patch_size": 5, "filter_dim": 8})
    for preset in ("debug", "small", "base"):
        build(CViViTConfig, preset=preset)


def test_untrained_filter_is_the_identity() -> None:
    torch.manual_seed(0)
    assert torch.equal(FrameFilter(8, 2).double()(clip(5)), clip(5))


# --- the task -------------------------------------------------------------------------------------------------------


def make_task(**keys: Any) -> CViViTTask:
    torch.manual_seed(0)
    model = {f"model.{name}": list(value) if isinstance(value, tuple) else value for name, value in TINY.items()}
    config = build(CViViTConfig, overrides={**model, "data.frames": 9, "model.quantizer": "fsq", **keys})
    task = CViViTTask(config)
    for module in task.modules.values():
        module.double()
    return task


def batch_of(task: CViViTTask, lengths: Sequence[int], fill: float | None = None) -> Batch:
    """Clips of these lengths; `fill` is the value of padding frames."""
    items = [{"videos": clip(9, len(lengths))[row, :, :length]} for row, length in enumerate(lengths)]
    fields = task.collate(items)
    if fill is not None:
        fields["videos"].masked_fill_(~fields["mask"][:, None, :, None, None], fill)
    names = tuple(map(str, lengths))
    return Batch(fields, names, ItemRNG(0, [0] * len(lengths), range(len(lengths))), torch.float64)


def loss_of(task: CViViTTask, batch: Batch, step: int = 0) -> Loss:
    return task.generator_loss(task.modules, batch, task.forward(task.modules, batch, step), step)


def test_batches_are_padded_to_full_latent_frames() -> None:
    task = make_task()
    assert batch_of(task, [4, 2])["videos"].shape[2] == 5
    assert batch_of(task, [1, 1])["videos"].shape[2] == 1
    assert batch_of(task, [9, 1])["mask"].sum(1).tolist() == [9, 1]


def test_padding_frames_change_no_loss_and_no_metric() -> None:
    """Frames after the last latent frame of a clip; a partly filled latent frame repeats the last frame."""
    task = make_task(**{"loss.discriminator_start": 0, "loss.frame_difference": 0.5, "model.filter_dim": 8})
    for lengths in ([9, 5, 1], [9, 7, 3]):
        plain, other = batch_of(task, lengths), batch_of(task, lengths, fill=0.25)
        first, second = loss_of(task, plain), loss_of(task, other)
        for name, value in first.parts.items():
            torch.testing.assert_close(second.parts[name], value, rtol=0, atol=1e-12, msg=name)
        sums = [task.measure(task.modules, each).sums for each in (plain, other)]
        torch.testing.assert_close(sums[0], sums[1], rtol=0, atol=1e-6)


def test_loss_is_the_mean_over_all_real_frames() -> None:
    task = make_task()
    lengths = [9, 4, 1]
    full = loss_of(task, batch_of(task, lengths)).parts["reconstruction"]
    single = []
    for row, length in enumerate(lengths):
        item = {"videos": clip(9, 3)[row, :, :length]}
        alone = Batch(task.collate([item]), ("one",), ItemRNG(0, [0], [row]), torch.float64)
        single.append(loss_of(task, alone).parts["reconstruction"] * length)
    torch.testing.assert_close(full, torch.stack(single).sum() / sum(lengths))


def test_constant_errors_have_no_frame_difference_loss() -> None:
    task = make_task(**{"loss.frame_difference": 2.0})
    batch = batch_of(task, [9, 4, 1])
    videos = batch["videos"]

    def parts_of(error: Tensor) -> tuple[float, float]:
        output = task.forward(task.modules, batch, 0)
        output["result"].videos = videos + error
        loss, parts = task.reconstruction_loss(batch, output)
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
    images = batch_of(task, [1, 1])
    assert loss_of(task, images).parts["motion"] == 0


def test_random_frame_is_never_padding() -> None:
    task = make_task()
    lengths = [9, 4, 1]
    fields = batch_of(task, lengths).fields
    seen: list[set[int]] = [set() for _ in lengths]
    for epoch in range(60):
        batch = Batch(fields, ("a", "b", "c"), ItemRNG(0, [epoch] * 3, range(3)), torch.float64)
        for row, frame in enumerate(prepare_clips(batch)["random_frames"].tolist()):
            seen[row].add(frame)
    assert seen == [set(range(length)) for length in lengths]


def test_images_alone_train_with_a_discriminator() -> None:
    task = make_task(**{"loss.discriminator_start": 0})
    batch = batch_of(task, [1, 1, 1])
    output = task.forward(task.modules, batch, 0)
    losses = [phase.loss(task.modules, batch, output, 0) for phase in task.phases]
    assert [set(loss.parts) for loss in losses] == [
        {"reconstruction", "quantizer", "adversarial"},
        {"hinge", "real", "fake", "penalty"},
    ]
    assert all(value.isfinite() for loss in losses for value in loss.parts.values())
    losses[0].value.backward()
    assert all(weight.grad is None for weight in task.discriminator.parameters())


def test_temporal_error_measures_changes_between_frames() -> None:
    """A constant error in all frames has no temporal error; a still frame of a moving clip has one."""
    frames = clip(5, 1)[0].transpose(0, 1)
    torch.testing.assert_close(temporal_error(frames + 0.25, frames), torch.zeros(4, dtype=torch.float64))
    changes = frames.diff(dim=0).abs().mean((1, 2, 3))
    torch.testing.assert_close(temporal_error(frames[:1].expand_as(frames), frames), changes)


def test_images_have_no_temporal_error() -> None:
    task = make_task()
    with torch.no_grad():
        statistics = [task.measure(task.modules, batch_of(task, lengths)) for lengths in ([9, 4], [9, 4, 1], [1, 1])]
    without, with_image, images = (task.summarise(each) for each in statistics)
    assert with_image["temporal_error"] == pytest.approx(without["temporal_error"], abs=1e-6)
    assert without["temporal_error"] > 0.05
    assert "temporal_error" not in images


def test_short_codes_are_decoded_to_short_videos(tmp_path: Path) -> None:
    task = make_task()
    pipeline = CViViTPipeline(task.config, task.modules)
    with pipeline.inference():
        artifacts = pipeline.decode_files(pipeline.encode_batch(batch_of(task, [9, 4, 1])), "clip")
    frames = [read_header(artifact.write(tmp_path / artifact.file)).frames for artifact in artifacts]  # type: ignore[arg-type]
    assert frames == [9, 5, 1]
    assert [artifact.file for artifact in artifacts] == ["clip-0.mp4", "clip-1.mp4", "clip-2.mp4"]


def test_samples_show_each_clip_above_its_reconstruction(tmp_path: Path) -> None:
    task = make_task()
    artifacts = task.sample(task.modules, batch_of(task, [9, 4]))
    assert [artifact.file for artifact in artifacts] == [
        "reconstructions.png",
        "reconstruction-00.mp4",
        "reconstruction-01.mp4",
    ]
    assert artifacts[0].tensor is not None
    assert artifacts[0].tensor.shape == (4 * 18, 9 * 26, 3)
    path = artifacts[2].write(tmp_path / artifacts[2].file)
    assert read_video(path).shape == (4, 16, 48, 3)  # type: ignore[arg-type]


def test_a_pipeline_encodes_and_decodes_from_an_exported_folder(tmp_path: Path) -> None:
    task = make_task()
    CViViTPipeline(task.config, {"cvivit": task.model.float()}).save_pretrained(tmp_path / "hub")
    tokenizer = CViViTPipeline.from_pretrained(tmp_path / "hub")
    videos = clip(9).float()
    codes = tokenizer.encode(videos)
    assert codes.shape == (2, 5, 2, 3)
    assert torch.equal(codes, task.model.eval().encode(videos))
    assert tokenizer.decode(codes).shape == videos.shape
    assert not tokenizer.decode(codes).requires_grad
    # An item's codes depend neither on its neighbours nor on padding.
    mask = torch.arange(9) < torch.tensor([[9], [5]])
    padded = tokenizer.encode(videos, mask)
    assert torch.equal(padded[0], codes[0])
    assert torch.equal(padded[1, :3], tokenizer.encode(videos[1:, :, :5])[0])
    assert (padded[1, 3:] == -1).all()
    assert torch.equal(tokenizer.encode(videos[:, :, 0]), codes[:, :1])


def test_python_trainer_trains_on_a_dataset_object(tmp_path: Path) -> None:
    clips = [(clip(frames, 1)[0].float(), f"clip {frames}") for frames in (9, 5, 1, 9)]
    keys = {"data.frames": 9, "data.num_workers": 0, "loss.discriminator": False, "log.trackers": []}
    trainer = CViViTTrainer(
        CViViT(**TINY, quantizer="fsq"), data=clips, out=tmp_path / "run", steps=2, batch_size=3, config=keys
    )
    trainer.train()
    trainer.close()
    assert trainer.step == 2


# --- the shortcut ---------------------------------------------------------------------------------------------------


def stripes(batch: int, frames: int) -> Tensor:
    """Videos with three degrees of freedom: a gray level, a step between the halves of each patch, and a fade."""
    rng = torch.Generator().manual_seed(frames)
    gray, height, fade = torch.rand(3, batch, 1, 1, 1, 1, generator=rng, dtype=torch.float64)
    edge = (torch.arange(24) % 8 < 4).double() - 0.5
    later = (torch.arange(frames) + 1)[:, None, None] % 2
    return (0.5 + (gray - 0.5) / 2 + edge * height / 4 + later * (fade - 0.5) / 4).expand(batch, 3, frames, 16, 24)


def init_from_clips(task: CViViTTask, clips: Tensor) -> None:
    """Initialise the tokenizer of a task from clips (multiple of 16, 3, frames, height, width)."""
    batches = [
        Batch(
            task.collate([{"videos": clip} for clip in clips[start : start + 16]]),
            tuple(map(str, range(16))),
            ItemRNG(0, [0] * 16, range(16)),
            torch.float64,
        )
        for start in range(0, len(clips), 16)
    ]
    task.init_from_data(task.modules, batches, Engine(task.config.engine))


def test_shortcut_starts_as_the_principal_components_of_the_first_clips() -> None:
    """Clips with three degrees of freedom pass unchanged through three dimensions; an image equals a still clip."""
    keys = {"model.shortcut": True, "model.quantizer": "vq", "model.dim": 8, "model.codebook_size": 8}
    task = make_task(**keys)
    clips = stripes(64, 9)
    init_from_clips(task, clips)
    model, fresh = task.model, stripes(4, 5)
    with torch.no_grad():
        latents = model.latents(fresh)
        torch.testing.assert_close(model.decode_vectors(latents)[:, :, 1:], fresh[:, :, 1:], rtol=0, atol=1e-6)
        assert latents[..., 3:].abs().max() < 1e-6
        still = fresh[:, :, :1].expand_as(fresh)
        vectors = model.latents(still)
        torch.testing.assert_close(vectors[:, :1].expand_as(vectors), vectors, rtol=0, atol=1e-9)
        torch.testing.assert_close(model.decode_vectors(vectors), still, rtol=0, atol=1e-6)
        assert (model.decode(model.encode(clips)) - clips).abs().mean() < 0.05


def predicting_task() -> CViViTTask:
    keys = {"model.shortcut": True, "model.temporal_prediction": True, "model.quantizer": "vq", "model.dim": 8}
    task = make_task(**keys, **{"model.codebook_size": 8})
    init_from_clips(task, stripes(64, 9))
    return task


def test_a_latent_frame_is_predicted_to_show_the_last_decoded_frame() -> None:
    model, video = predicting_task().model, stripes(4, 5)
    with torch.no_grad():
        predicted = model.prediction(model.latents(video))
        shown = model.decode_vectors(predicted)
    torch.testing.assert_close(shown[:, :, 1:3], video[:, :, 2:3].expand(-1, -1, 2, -1, -1), rtol=0, atol=1e-6)
    torch.testing.assert_close(shown[:, :, 3:], video[:, :, 4:].expand(-1, -1, 2, -1, -1), rtol=0, atol=1e-6)


def test_what_stands_still_becomes_sharper_with_each_latent_frame() -> None:
    model = predicting_task().model
    still = stripes(16, 1).expand(-1, -1, 9, -1, -1)
    with torch.no_grad():
        errors = (model.decode(model.encode(still)) - still).square().mean((0, 1, 3, 4))
    by_latent_frame = torch.stack([errors[0], *errors[1:].view(4, 2).mean(1)])
    assert (by_latent_frame.diff() < 0).all()
    assert by_latent_frame[-1] < by_latent_frame[0] / 2


def test_a_prediction_passes_gradients_to_the_encoder_as_if_nothing_were_quantized() -> None:
    model = make(shortcut=True, temporal_prediction=True, codebook_size=64)
    model(clip(5)).videos.sum().backward()
    with_prediction = model.tubes_in.weight.grad
    vectors = model.accumulated(model.quantizer.codes_to_vectors(model.encode(clip(5)).flatten(1)).view(2, 3, 6, 16))
    model.zero_grad()
    latents = model.latents(clip(5))
    model.decode_vectors(vectors.detach() + latents - latents.detach()).sum().backward()
    torch.testing.assert_close(with_prediction, model.tubes_in.weight.grad)


def test_codes_of_a_shortcut_start_as_means_of_many_patches() -> None:
    keys = {"model.shortcut": True, "model.quantizer": "vq", "train.batch_size": 4}
    steps = make_task(**keys).num_init_batches
    assert steps * 4 * 5 * 6 >= 32 * TINY["codebook_size"] > (steps - 1) * 4 * 5 * 6
    assert make_task(**{**keys, "model.shortcut": False}).num_init_batches == 1
