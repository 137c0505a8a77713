"""Phenaki: masking in training, clips of different lengths, and videos from texts, clips and scenes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from contract.cases import GOLDEN, TINY_PHENAKI
from contract.worlds import make_task
from quintet.common.batch import Batch
from quintet.common.inference import inference_mode
from quintet.common.rng import ItemRNG
from quintet.errors import UsageError
from quintet.families.phenaki.config import PhenakiOptions
from quintet.families.phenaki.model import Phenaki
from quintet.families.phenaki.pipeline import PhenakiPipeline, check_frames
from quintet.families.phenaki.task import PhenakiTask
from quintet.media.video import clip_tensor, read_header, read_video
from quintet.media.video_writing import write_video
from quintet.nn.maskgit import MaskGit, TokenCritic
from quintet.pipelines.loading import open_pipeline
from quintet.sampling.guidance import encode_prompts
from quintet.sampling.masked import Sampling
from quintet.synthetic.motions_judge import MotionsJudge

TOKENIZER = str(GOLDEN / "cvivit-format-1" / "hub")
"""32 codes on a grid of 2 x 2; each code covers 8 x 8 pixels and two frames."""
EXPORT = GOLDEN / "phenaki-format-1" / "hub"
"""A trained model of clips of five frames with the same codes and a critic."""
POSITIONS = 4
QUICK = Sampling(steps=2, guidance_scale=2.0)


@pytest.fixture
def task(videos: Path) -> PhenakiTask:
    task = make_task("phenaki", videos, TINY_PHENAKI)
    assert isinstance(task, PhenakiTask)
    return task


def items(lengths: list[int]) -> list[dict[str, Any]]:
    """Clips with these numbers of latent frames."""
    generator = torch.Generator().manual_seed(5)
    return [
        {"codes": torch.randint(0, 32, (length, 2, 2), generator=generator), "texts": f"clip {number}"}
        for number, length in enumerate(lengths)
    ]


def batch_of(task: PhenakiTask, lengths: list[int], epoch: int = 0) -> Batch:
    rows = range(len(lengths))
    return Batch(task.collate(items(lengths)), tuple(map(str, rows)), ItemRNG(0, [epoch] * len(rows), [*rows]))


def one_of(task: PhenakiTask, lengths: list[int], row: int) -> Batch:
    return Batch(task.collate([items(lengths)[row]]), (str(row),), ItemRNG(0, [0], [row]))


def make_phenaki(latent_frames: int = 5, **keys: Any) -> Phenaki:
    torch.manual_seed(0)
    maskgit = MaskGit(
        grid=(latent_frames, 2, 2), num_codes=32, dim=16, depth=1, heads=2, rotary=True, text_dim=16, text_length=32
    )
    return Phenaki(maskgit, open_pipeline(TOKENIZER).model, settings=QUICK, **keys).eval()


# --- training -----------------------------------------------------------------------------------------------------


def test_padding_is_never_masked_and_never_attended_to(task: PhenakiTask) -> None:
    lengths = [3, 1, 2, 3]
    task.config = task.config.changed({"loss.continuation_prob": 0.0, "loss.cond_drop_prob": 0.0})
    for epoch in range(20):
        batch = batch_of(task, lengths, epoch)
        output = task.forward(task.modules, batch, step=0)
        counts = torch.tensor(lengths) * POSITIONS
        assert not output["hidden"][~batch["valid_mask"]].any()
        assert (output["hidden"].sum(1) >= 1).all()
        assert (output["hidden"].sum(1) <= counts).all()
    # An item in a batch with longer ones equals the item alone.
    together = task.forward(task.modules, batch_of(task, lengths), step=0)
    for row, length in enumerate(lengths):
        alone = task.forward(task.modules, one_of(task, lengths, row), step=0)
        assert torch.equal(alone["hidden"][0], together["hidden"][row, : length * POSITIONS])
        before = int(together["hidden"][:row].sum())
        own = together["logits"][before : before + len(alone["logits"])]
        torch.testing.assert_close(own, alone["logits"], atol=1e-5, rtol=1e-4)


def test_metrics_and_critic_loss_ignore_padding(task: PhenakiTask, videos: Path) -> None:
    lengths = [3, 1, 2]
    with inference_mode(task.modules):
        together = task.measure(task.modules, batch_of(task, lengths)).sums
        alone = [task.measure(task.modules, one_of(task, lengths, row)).sums for row in range(3)]
    for name, total in together.items():
        torch.testing.assert_close(total, sum(sums[name] for sums in alone), atol=1e-3, rtol=1e-4)
    with_critic = make_task("phenaki", videos, (*TINY_PHENAKI, "loss.critic=true", "loss.continuation_prob=0"))
    assert isinstance(with_critic, PhenakiTask)
    batch = batch_of(with_critic, lengths)
    output = with_critic.forward(with_critic.modules, batch, step=0)
    loss = with_critic.critic_loss(with_critic.modules, batch, output, step=0).value
    # Codes of padding have no effect.
    output.values["codes"] = output["codes"].masked_fill(~batch["valid_mask"], 17)
    torch.testing.assert_close(with_critic.critic_loss(with_critic.modules, batch, output, step=0).value, loss)


def test_fraction_of_dropped_texts_follows_the_key(task: PhenakiTask) -> None:
    task.config = task.config.changed({"loss.cond_drop_prob": 0.3})
    dropped = 0
    for epoch in range(100):
        output = task.forward(task.modules, batch_of(task, [1] * 10, epoch), step=0)
        dropped += int((~output["conditioning"]["text_mask"].any(1)).sum())
    assert dropped / 1000 == pytest.approx(0.3, abs=0.04)


def test_some_clips_are_trained_as_continuation(task: PhenakiTask) -> None:
    task.config = task.config.changed({"loss.continuation_prob": 0.5})
    primed = 0
    for epoch in range(50):
        batch = batch_of(task, [3, 2, 1, 3], epoch)
        known = task.training_rows(batch).known_mask
        assert known is not None
        latent_frames = known.view(4, 3, POSITIONS)
        assert (latent_frames.all(2) == latent_frames.any(2)).all()  # full latent frames
        counts = latent_frames.all(2).sum(1)
        assert (counts <= torch.tensor([2, 1, 0, 2])).all()
        assert (latent_frames.all(2).long().diff(dim=1) <= 0).all()  # the first ones
        primed += int((counts[[0, 1, 3]] > 0).sum())
        hidden = task.forward(task.modules, batch, step=0)["hidden"]
        assert not (hidden & known).any()
        assert hidden.any(1).all()
    assert primed / 150 == pytest.approx(0.5, abs=0.12)
    assert task.code_rows(batch).known_mask is None


def test_frame_autoregressive_predicts_one_latent_frame_from_earlier_ones(task: PhenakiTask) -> None:
    task.config = task.config.changed({"loss.frame_autoregressive": True, "loss.cond_drop_prob": 0.0})
    lengths, predicted = [3, 1, 2, 3], torch.zeros(3)
    for epoch in range(30):
        batch = batch_of(task, lengths, epoch)
        output = task.forward(task.modules, batch, step=0)
        hidden = output["hidden"].view(4, -1, POSITIONS)
        assert (hidden.any(2).sum(1) == 1).all()  # one latent frame of each clip
        chosen = hidden.any(2).long().argmax(1)
        assert (chosen < torch.tensor(lengths)).all()
        predicted += torch.bincount(chosen[[0, 3]], minlength=3)
        # Later latent frames have no effect.
        later = torch.arange(3) > chosen[:, None]
        batch.fields["codes"] = batch["codes"].masked_fill(later[..., None, None] & (batch["codes"] >= 0), 7)
        torch.testing.assert_close(task.forward(task.modules, batch, step=0)["logits"], output["logits"])
    # Half of the clips predict the first latent frame, the others a later one.
    assert predicted[0] / 60 == pytest.approx(0.5, abs=0.15)
    assert (predicted[1:] > 7).all()
    task.config = task.config.changed({"loss.first_frame_prob": 1.0})
    known = task.training_rows(batch_of(task, [3] * 8)).known_mask
    assert known is not None
    assert not known.any()


def test_train_only_trains_the_critic_or_the_generator(videos: Path) -> None:
    def trained(*keys: str) -> set[str]:
        task = make_task("phenaki", videos, (*TINY_PHENAKI, *keys))
        return {
            f"{name}.{key.split('.')[0]}"
            for name, module in task.modules.items()
            for key, parameter in module.named_parameters()
            if parameter.requires_grad
        }

    everything = trained("loss.critic=true")
    assert {"maskgit.to_logits", "critic.to_score"} <= everything
    assert not any(name.startswith("critic") for name in trained("loss.critic=true", "loss.train_only=generator"))
    only = trained("model.self_critic=true", "loss.train_only=critic", "init=somewhere")
    assert only == {"maskgit.to_score"}


# --- the model ----------------------------------------------------------------------------------------------------


def test_logits_depend_on_position_in_time_and_space() -> None:
    maskgit = make_phenaki().maskgit
    tokens = torch.full((1, 5 * POSITIONS), maskgit.mask_id)
    tokens[0, 0] = 3
    conditioning = maskgit.texts(["x"])
    logits = maskgit(tokens, conditioning)[0]
    assert not torch.allclose(logits[1], logits[2], atol=1e-5)
    assert not torch.allclose(logits[POSITIONS], logits[2 * POSITIONS], atol=1e-5)
    # Moving the code changes its distance to other positions.
    moved = maskgit(tokens.roll(POSITIONS, 1), conditioning)[0]
    assert not torch.allclose(moved[3 * POSITIONS], logits[3 * POSITIONS], atol=1e-5)


def test_transformer_of_another_tokenizer_is_refused() -> None:
    for keys in ({"num_codes": 64, "grid": (5, 2, 2)}, {"num_codes": 32, "grid": (5, 4, 4)}):
        with pytest.raises(
            UsageError,
            match=r"transformer has .* codes on a grid of .*, but the tokenizer has 32 codes on a grid of 2 x 2",
        ):
            Phenaki(MaskGit(dim=16, depth=1, heads=2, text="none", **keys), open_pipeline(TOKENIZER).model)


def test_same_seed_gives_same_video_independent_of_the_batch() -> None:
    model = make_phenaki()
    texts = ["a red ball", "a blue star moves up", "nothing"]
    videos = model.sample(texts, seed=1)
    assert videos.shape == (3, 3, 9, 16, 16)
    assert torch.equal(videos, model.sample(texts, seed=1))
    assert not torch.equal(videos, model.sample(texts, seed=2))
    torch.testing.assert_close(model.sample(texts[:1], seed=1), videos[:1], atol=1e-4, rtol=0)


def test_videos_of_any_length_and_images() -> None:
    model = make_phenaki()
    assert model.window_frames == 9
    for frames in (1, 5, 9, 15, 31):
        assert model.sample("a red ball", frames).shape == (1, 3, frames, 16, 16)
    images = model.sample_images(["a", "b"], seed=4)
    assert images.shape == (2, 3, 16, 16)
    # An image is the first frame of a video of one frame.
    assert torch.equal(images, model.sample(["a", "b"], 1, seed=4)[:, :, 0])


def test_prime_frames_are_continued_and_preserved() -> None:
    model = make_phenaki(overlap=3)
    clip = torch.rand(3, 5, 16, 16)
    videos = model.sample(["up", "down"], 9, prime_frames=clip)
    assert torch.equal(videos[:, :, :5], clip.expand(2, -1, -1, -1, -1))
    assert not torch.equal(videos[0, :, 5:], videos[1, :, 5:])
    # By default a continuation adds as many frames as a scene.
    assert model.sample("up", prime_frames=clip).shape[2] == 5 + 9 - 3
    other = model.sample("up", 9, prime_frames=clip.flip(1))
    assert not torch.allclose(other[:, :, 5:], videos[:1, :, 5:], atol=1e-3)
    with pytest.raises(UsageError, match="num_frames=5 includes the 5 prime_frames"):
        model.sample("up", 5, prime_frames=clip)
    for wrong in (torch.rand(3, 5, 8, 8), torch.rand(1, 5, 16, 16), torch.rand(3, 3, 5, 16, 16)):
        with pytest.raises(UsageError, match="prime_frames h"):
            model.sample(["a", "b"], prime_frames=wrong)


def test_next_scene_continues_from_the_last_frames() -> None:
    """The start of a scene encodes the last frames of the video so far, and its codes are preserved."""
    model = make_phenaki(overlap=3)
    encoded: list[Tensor] = []
    encode = model.cvivit.encode
    model.cvivit.encode = lambda videos, mask=None: encoded.append(videos) or encode(videos, mask)
    made = model.make_video(["a", "b", "c"], num=2, seed=3)
    assert made.shape == (2, 3, 9 + 6 + 6, 16, 16)
    assert torch.equal(encoded[0], made[:, :, 6:9])
    assert torch.equal(encoded[1], made[:, :, 12:15])
    # The first scene does not depend on later ones, and each scene has its own random numbers.
    assert torch.equal(made[:, :, :9], model.make_video(["a"], num=2, seed=3))
    assert not torch.equal(made[:, :, 9:15], made[:, :, 15:])
    assert model.make_video(["a", "b"], 5, overlap=5).shape[2] == 10
    with pytest.raises(UsageError, match="at least one scene"):
        model.make_video([])


def test_default_overlap_is_a_third_of_the_window() -> None:
    model = make_phenaki()
    assert model.window_frames == 9
    assert model.make_video(["a", "b"]).shape[2] == 9 + 9 - 3
    assert model.sample("a", prime_frames=torch.rand(3, 9, 16, 16)).shape[2] == 9 + 9 - 3


def test_sampling_without_any_text_is_refused() -> None:
    with pytest.raises(UsageError, match="pass at least one text"):
        make_phenaki().sample()


def test_prime_codes_are_preserved_and_the_rest_is_generated() -> None:
    model = make_phenaki()
    conditioning = (model.maskgit.texts(["x"]), model.maskgit.texts(["x"], torch.tensor([False])))
    prime = torch.randint(0, 32, (1, 2, 2, 2))
    valid_frames = torch.tensor([[True, True, True, True, False]])
    with torch.no_grad():
        codes = model.generate_codes(conditioning, ItemRNG(0, [0], [0]), valid_frames, prime)
    assert torch.equal(codes[:, :2], prime)
    assert (codes[:, 2:4] >= 0).all()
    assert (codes[:, 2:4] < 32).all()
    assert (codes[:, 4] == -1).all()


def test_overlap_as_long_as_the_window_leaves_room_to_continue() -> None:
    made = make_phenaki(latent_frames=3, overlap=9)
    assert made.window_frames == 5
    assert made.sample(["a"], 9, seed=1).shape[2] == 9
    assert made.make_video(["a", "b"], seed=1).shape[2] == 7


def test_later_latent_frames_may_have_fewer_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    made = make_phenaki(frame_autoregressive=True, later_steps=1)
    passes: list[int] = []
    forward = made.maskgit.forward

    def count(tokens: Tensor | None, *rest: Any, **named: Any) -> Tensor:
        if tokens is not None:  # the call that encodes the text for all steps has no tokens
            passes.append(tokens.shape[1] // POSITIONS)
        return forward(tokens, *rest, **named)

    monkeypatch.setattr(made.maskgit, "forward", count)
    made.sample(["a"], 5, seed=1)
    assert {length: passes.count(length) for length in passes} == {1: QUICK.steps, 2: 1, 3: 1}


def test_frame_autoregressive_frames_do_not_depend_on_later_ones() -> None:
    made = make_phenaki(frame_autoregressive=True)
    short, long = made.sample(["a", "b"], 5, seed=3), made.sample(["a", "b"], 9, seed=3)
    torch.testing.assert_close(long[:, :, :5], short)
    assert not torch.allclose(make_phenaki().sample(["a", "b"], 9, seed=3), long)
    # A clip of three latent frames beside one that ends after the first.
    valid_frames = torch.tensor([[True] * 3, [True, False, False]])
    conditioning = encode_prompts(made.maskgit, ["a", "b"], None)
    codes = made.generate_codes(conditioning, ItemRNG(0, [0, 0], [0, 1]), valid_frames)
    assert (codes[1, 1:] == -1).all()
    assert (codes[0] >= 0).all()
    assert (codes[1, 0] >= 0).all()
    all_frames = torch.ones(2, 3, dtype=torch.bool)
    continued = made.generate_codes(conditioning, ItemRNG(0, [0, 0], [0, 1]), all_frames, codes[:, :1])
    assert torch.equal(continued[:, 0], codes[:, 0])
    assert torch.equal(continued[0], codes[0])


def test_critic_changes_which_tokens_are_masked_again() -> None:
    plain = make_phenaki()
    torch.manual_seed(1)
    critic = TokenCritic(plain.maskgit.config)
    with_critic = make_phenaki(critic=critic)
    with_critic.maskgit.load_state_dict(plain.maskgit.state_dict())
    assert not torch.equal(plain.sample("a", seed=2), with_critic.sample("a", seed=2))


def test_export_includes_tokenizer_and_critic() -> None:
    model = PhenakiPipeline.from_pretrained(EXPORT).phenaki()
    assert isinstance(model.critic, TokenCritic)
    assert model.sample(["a red heart", "a cyan star"], 3, seed=1).shape == (2, 3, 3, 16, 16)


# --- the pipeline -------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def pipeline() -> PhenakiPipeline:
    return PhenakiPipeline.from_pretrained(EXPORT)


def test_prompts_become_videos_in_python(pipeline: PhenakiPipeline) -> None:
    texts = ["a red heart", "a cyan star"]
    videos = pipeline(texts, num=2, seed=1)
    assert videos.shape == (4, 3, 5, 16, 16)
    assert 0 <= videos.min() <= videos.max() <= 1
    assert torch.equal(videos, pipeline(texts, num=2, seed=1))
    assert not torch.equal(videos, pipeline(texts, num=2, seed=2))
    assert not torch.equal(videos[0], videos[1])
    # An item depends on its number and text, and not on the other items of the batch.
    torch.testing.assert_close(pipeline(texts[0], num=2, seed=1), videos[:2], atol=1e-4, rtol=0)
    assert not torch.equal(pipeline(texts, num=2, seed=1, negative_prompt="green"), videos)
    assert pipeline(texts[0], frames=9).shape == (1, 3, 9, 16, 16)
    assert pipeline(texts, images=True).shape == (2, 3, 16, 16)


def test_scenes_and_a_clip_to_continue_in_python(pipeline: PhenakiPipeline, tmp_path: Path) -> None:
    video = pipeline(scenes=["a red heart", "a cyan star"], num=2, seed=3)
    assert video.shape == (2, 3, 5 + 5 - 1, 16, 16)
    assert torch.equal(video[:, :, :5], pipeline(scenes=["a red heart"], num=2, seed=3))
    clip = torch.rand(3, 3, 16, 16)
    continued = pipeline("up", prime=clip, num=2, frames=5)
    assert continued.shape == (2, 3, 5, 16, 16)
    assert torch.equal(continued[:, :, :3], clip.expand(2, -1, -1, -1, -1))
    write_video(clip, tmp_path / "clip.webp")
    assert pipeline("up", prime=tmp_path / "clip.webp", frames=5).shape == (1, 3, 5, 16, 16)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"frames": 4}, "--frames=4 is not 1 plus a multiple of 2"),
        (
            {"frames": 3, "prime": torch.rand(3, 3, 16, 16)},
            "3 frames includes the 3 frames of --prime.*nothing would be left",
        ),
        ({"images": True, "frames": 3}, "--images cannot be combined with --prime or --frames"),
        ({"images": True, "prime": "clip.mp4"}, "--images cannot be combined with --prime or --frames"),
        ({"scenes": ["a", "b"]}, "--scenes cannot be combined with --text or --images"),
    ],
)
def test_options_that_contradict_each_other_are_refused(
    pipeline: PhenakiPipeline, options: dict[str, Any], message: str
) -> None:
    with pytest.raises(UsageError, match=message):
        pipeline("a red heart", **options)


def test_invalid_number_of_frames_names_the_nearest_valid_ones() -> None:
    check_frames("--frames", 17, 4)
    check_frames("--frames", 1, 4)
    with pytest.raises(UsageError, match=r"--frames=12 is not 1 plus a multiple of 4.* 9 and 13"):
        check_frames("--frames", 12, 4)
    with pytest.raises(UsageError, match=r"the nearest valid numbers are 1 and 5"):
        check_frames("data.frames", 2, 4)


def test_samples_record_text_and_settings(task: PhenakiTask, tmp_path: Path) -> None:
    texts = ["a red ball / moves", "a red ball / moves", ""]
    pipeline = PhenakiPipeline(task.config, task.modules, task.frozen)
    strip, *single = pipeline.files(texts, PhenakiOptions(num=1, seed=7, frames=3))
    assert strip.file == "filmstrip.png"
    files = [artifact.file for artifact in single]
    assert files == [
        *("000-a-red-ball-moves.mp4", "000-a-red-ball-moves.gif"),
        *("001-a-red-ball-moves.mp4", "001-a-red-ball-moves.gif"),
        *("002.mp4", "002.gif"),
    ]
    assert [artifact.metadata["text"] for artifact in single[::2]] == texts
    assert {(artifact.metadata["seed"], artifact.metadata["frames"]) for artifact in single} == {(7, 3)}
    for artifact in single[:2]:
        artifact.write(tmp_path / artifact.file)
        assert read_header(tmp_path / artifact.file).frames == 3


def test_sample_prompts_come_from_a_list_a_file_or_the_validation_set(videos: Path, tmp_path: Path) -> None:
    file = tmp_path / "captions.txt"
    file.write_text("a red ball\n\na blue star\n", encoding="utf-8")
    for key, expected in ((f"sample.texts={file}", ["a red ball", "a blue star"]), ('sample.texts=["x"]', ["x"])):
        made = make_task("phenaki", videos, (*TINY_PHENAKI, "sample.num=1", key))
        assert isinstance(made, PhenakiTask)
        with inference_mode(made.modules):
            _, *single = made.sample(made.modules, batch_of(made, [3, 3, 1]))
        assert [artifact.metadata["text"] for artifact in single[::2]] == expected
    # As `quintet sample RUN sample.texts=FILE` does.
    made = PhenakiTask(made.config.changed({"sample.texts": str(file)}), made.frozen, made.modules)
    with inference_mode(made.modules):
        _, *single = made.sample(made.modules, batch_of(made, [3]))
    assert [artifact.metadata["text"] for artifact in single[::2]] == ["a red ball", "a blue star"]
    (tmp_path / "empty.txt").write_text("\n")
    with pytest.raises(UsageError, match=r"sample\.texts: .*empty\.txt is empty"):
        make_task("phenaki", videos, (*TINY_PHENAKI, f"sample.texts={tmp_path / 'empty.txt'}"))


def test_samples_are_as_long_as_the_validation_clips(task: PhenakiTask) -> None:
    with inference_mode(task.modules):
        sheet, *single = task.sample(task.modules, batch_of(task, [3, 1, 2]))
    assert sheet.metadata["texts"] == ["clip 0", "clip 1", "clip 2"]
    assert [artifact.metadata["frames"] for artifact in single[::2]] == [5, 1, 3]


def test_judge_recognizes_its_own_data(videos: Path) -> None:
    task = make_task("phenaki", videos, (*TINY_PHENAKI, "data.frames=17"))
    media = task.splits().validation.media  # type: ignore[attr-defined]
    rows, judge = [media.metadata(item)["metadata"] for item in range(3)], MotionsJudge()
    clips = [clip_tensor(read_video(media.entries[item].media(media.root))) / 255 for item in range(3)]
    assert all(map(judge.knows, rows))
    assert not judge.knows({"motion": {"shape": "star"}})
    found = judge.metrics(clips, rows, "validation")
    assert found.keys() == {"match_colour", "match_shape", "match_motion"}
    assert all(column.tolist() == [1.0] * 3 for column in found.values())
    # Withheld clips ignore the color; shape and motion must both match.
    for changed, match in (({"colour": "none"}, 1.0), ({"shape": "none"}, 0.0), ({"motion": "none"}, 0.0)):
        swapped = judge.metrics(clips, [{"motion": {**row["motion"], **changed}} for row in rows], "withheld")
        assert {name: column.tolist() for name, column in swapped.items()} == {"match_withheld": [match] * 3}
