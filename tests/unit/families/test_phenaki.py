"""Phenaki: what a training step hides and drops, clips of different lengths, and videos of texts, clips and scenes."""

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
"""32 codes of 2 x 2 places, of 8 pixels and two frames each."""
EXPORT = GOLDEN / "phenaki-format-1" / "hub"
"""A trained model of clips of five frames on the same codes, with a critic."""
PLACES = 4
QUICK = Sampling(steps=2, guidance_scale=2.0)


@pytest.fixture
def task(videos: Path) -> PhenakiTask:
    made = make_task("phenaki", videos, TINY_PHENAKI)
    assert isinstance(made, PhenakiTask)
    return made


def items(lengths: list[int]) -> list[dict[str, Any]]:
    """Clips of so many moments."""
    generator = torch.Generator().manual_seed(5)
    return [
        {"codes": torch.randint(0, 32, (moments, 2, 2), generator=generator), "texts": f"clip {number}"}
        for number, moments in enumerate(lengths)
    ]


def batch_of(task: PhenakiTask, lengths: list[int], epoch: int = 0) -> Batch:
    rows = range(len(lengths))
    return Batch(task.collate(items(lengths)), tuple(map(str, rows)), ItemRNG(0, [epoch] * len(rows), [*rows]))


def one_of(task: PhenakiTask, lengths: list[int], row: int) -> Batch:
    return Batch(task.collate([items(lengths)[row]]), (str(row),), ItemRNG(0, [0], [row]))


def phenaki(moments: int = 5, **keys: Any) -> Phenaki:
    torch.manual_seed(0)
    maskgit = MaskGit(
        grid=(moments, 2, 2), num_codes=32, dim=16, depth=1, heads=2, rotary=True, text_dim=16, text_length=32
    )
    return Phenaki(maskgit, open_pipeline(TOKENIZER).model, settings=QUICK, **keys).eval()


# --- training -----------------------------------------------------------------------------------------------------


def test_padding_is_never_masked_and_never_seen(task: PhenakiTask) -> None:
    lengths = [3, 1, 2, 3]
    task.config = task.config.changed({"loss.continuation_prob": 0.0, "loss.cond_drop_prob": 0.0})
    for epoch in range(20):
        batch = batch_of(task, lengths, epoch)
        output = task.forward(task.modules, batch, step=0)
        places = torch.tensor(lengths) * PLACES
        assert not output["hidden"][~batch["there"]].any()
        assert (output["hidden"].sum(1) >= 1).all()
        assert (output["hidden"].sum(1) <= places).all()
    # What an item becomes beside longer ones is what it becomes alone.
    together = task.forward(task.modules, batch_of(task, lengths), step=0)
    for row, moments in enumerate(lengths):
        alone = task.forward(task.modules, one_of(task, lengths, row), step=0)
        assert torch.equal(alone["hidden"][0], together["hidden"][row, : moments * PLACES])
        before = int(together["hidden"][:row].sum())
        mine = together["logits"][before : before + len(alone["logits"])]
        torch.testing.assert_close(mine, alone["logits"], atol=1e-5, rtol=1e-4)


def test_measuring_and_scoring_leave_padding_out(task: PhenakiTask, videos: Path) -> None:
    lengths = [3, 1, 2]
    with inference_mode(task.modules):
        together = task.measure(task.modules, batch_of(task, lengths)).sums
        alone = [task.measure(task.modules, one_of(task, lengths, row)).sums for row in range(3)]
    for name, total in together.items():
        torch.testing.assert_close(total, sum(one[name] for one in alone), atol=1e-3, rtol=1e-4)
    critical = make_task("phenaki", videos, (*TINY_PHENAKI, "loss.critic=true", "loss.continuation_prob=0"))
    assert isinstance(critical, PhenakiTask)
    batch = batch_of(critical, lengths)
    output = critical.forward(critical.modules, batch, step=0)
    loss = critical.critic_loss(critical.modules, batch, output, step=0).value
    # The codes behind the end of a clip can be anything.
    output.values["codes"] = output["codes"].masked_fill(~batch["there"], 17)
    torch.testing.assert_close(critical.critic_loss(critical.modules, batch, output, step=0).value, loss)


def test_the_share_of_dropped_texts_is_what_the_key_says(task: PhenakiTask) -> None:
    task.config = task.config.changed({"loss.cond_drop_prob": 0.3})
    dropped = 0
    for epoch in range(100):
        output = task.forward(task.modules, batch_of(task, [1] * 10, epoch), step=0)
        dropped += int((~output["conditioning"]["text_mask"].any(1)).sum())
    assert dropped / 1000 == pytest.approx(0.3, abs=0.04)


def test_some_clips_are_gone_on_from(task: PhenakiTask) -> None:
    task.config = task.config.changed({"loss.continuation_prob": 0.5})
    primed = 0
    for epoch in range(50):
        batch = batch_of(task, [3, 2, 1, 3], epoch)
        given = task.rows(batch, train=True).given
        assert given is not None
        moments = given.view(4, 3, PLACES)
        assert (moments.all(2) == moments.any(2)).all()  # whole moments
        counts = moments.all(2).sum(1)
        assert (counts <= torch.tensor([2, 1, 0, 2])).all()
        assert (moments.all(2).long().diff(dim=1) <= 0).all()  # the first ones
        primed += int((counts[[0, 1, 3]] > 0).sum())
        hidden = task.forward(task.modules, batch, step=0)["hidden"]
        assert not (hidden & given).any()
        assert hidden.any(1).all()
    assert primed / 150 == pytest.approx(0.5, abs=0.12)
    assert task.rows(batch, train=False).given is None


def test_in_the_order_of_moments_one_is_guessed_from_those_before(task: PhenakiTask) -> None:
    task.config = task.config.changed({"loss.frame_autoregressive": True, "loss.cond_drop_prob": 0.0})
    lengths, guessed = [3, 1, 2, 3], torch.zeros(3)
    for epoch in range(30):
        batch = batch_of(task, lengths, epoch)
        output = task.forward(task.modules, batch, step=0)
        hidden = output["hidden"].view(4, -1, PLACES)
        assert (hidden.any(2).sum(1) == 1).all()  # one moment of each clip
        chosen = hidden.any(2).long().argmax(1)
        assert (chosen < torch.tensor(lengths)).all()
        guessed += torch.bincount(chosen[[0, 3]], minlength=3)
        # What comes after it is not there, and could be anything.
        later = torch.arange(3) > chosen[:, None]
        batch.fields["codes"] = batch["codes"].masked_fill(later[..., None, None] & (batch["codes"] >= 0), 7)
        torch.testing.assert_close(task.forward(task.modules, batch, step=0)["logits"], output["logits"])
    # Half of them the first one, the others share the rest.
    assert guessed[0] / 60 == pytest.approx(0.5, abs=0.15)
    assert (guessed[1:] > 7).all()
    task.config = task.config.changed({"loss.first_frame_prob": 1.0})
    given = task.rows(batch_of(task, [3] * 8), train=True).given
    assert given is not None
    assert not given.any()


def test_the_only_critic_or_the_only_generator_is_trained(videos: Path) -> None:
    def trained(*keys: str) -> set[str]:
        made = make_task("phenaki", videos, (*TINY_PHENAKI, *keys))
        return {
            f"{name}.{key.split('.')[0]}"
            for name, module in made.modules.items()
            for key, parameter in module.named_parameters()
            if parameter.requires_grad
        }

    everything = trained("loss.critic=true")
    assert {"maskgit.to_logits", "critic.to_score"} <= everything
    assert not any(name.startswith("critic") for name in trained("loss.critic=true", "loss.train_only=generator"))
    only = trained("model.self_critic=true", "loss.train_only=critic", "init=somewhere")
    assert only == {"maskgit.to_score"}


# --- the model ----------------------------------------------------------------------------------------------------


def test_a_place_in_time_matters_and_a_place_in_space_too() -> None:
    net = phenaki().maskgit
    tokens = torch.full((1, 5 * PLACES), net.mask_id)
    tokens[0, 0] = 3
    told = net.texts(["x"])
    logits = net(tokens, told)[0]
    assert not torch.allclose(logits[1], logits[2], atol=1e-5)
    assert not torch.allclose(logits[PLACES], logits[2 * PLACES], atol=1e-5)
    # Where the code is moved to, other places see it from elsewhere.
    moved = net(tokens.roll(PLACES, 1), told)[0]
    assert not torch.allclose(moved[3 * PLACES], logits[3 * PLACES], atol=1e-5)


def test_a_transformer_of_other_codes_is_refused() -> None:
    for keys in ({"num_codes": 64, "grid": (5, 2, 2)}, {"num_codes": 32, "grid": (5, 4, 4)}):
        with pytest.raises(UsageError, match=r"transformer speaks .* codes on a grid of .*, the tokenizer 32 on 2 x 2"):
            Phenaki(MaskGit(dim=16, depth=1, heads=2, text="none", **keys), open_pipeline(TOKENIZER).model)


def test_the_same_seed_makes_the_same_video_and_its_neighbours_do_not_matter() -> None:
    model = phenaki()
    texts = ["a red ball", "a blue star moves up", "nothing"]
    made = model.sample(texts, seed=1)
    assert made.shape == (3, 3, 9, 16, 16)
    assert torch.equal(made, model.sample(texts, seed=1))
    assert not torch.equal(made, model.sample(texts, seed=2))
    torch.testing.assert_close(model.sample(texts[:1], seed=1), made[:1], atol=1e-4, rtol=0)


def test_videos_of_any_length_and_pictures() -> None:
    model = phenaki()
    assert model.longest == 9
    for frames in (1, 5, 9, 15, 31):
        assert model.sample("a red ball", frames).shape == (1, 3, frames, 16, 16)
    pictures = model.sample_images(["a", "b"], seed=4)
    assert pictures.shape == (2, 3, 16, 16)
    # A picture is the first frame of a video of one frame.
    assert torch.equal(pictures, model.sample(["a", "b"], 1, seed=4)[:, :, 0])


def test_a_clip_is_gone_on_from_and_stays_as_it_is() -> None:
    model = phenaki(overlap=3)
    clip = torch.rand(3, 5, 16, 16)
    made = model.sample(["up", "down"], 9, prime_frames=clip)
    assert torch.equal(made[:, :, :5], clip.expand(2, -1, -1, -1, -1))
    assert not torch.equal(made[0, :, 5:], made[1, :, 5:])
    # Behind a start as much is made as behind a scene.
    assert model.sample("up", prime_frames=clip).shape[2] == 5 + 9 - 3
    other = model.sample("up", 9, prime_frames=clip.flip(1))
    assert not torch.allclose(other[:, :, 5:], made[:1, :, 5:], atol=1e-3)
    with pytest.raises(UsageError, match="5 frames to go on from leave nothing to make of 5"):
        model.sample("up", 5, prime_frames=clip)
    for wrong in (torch.rand(3, 5, 8, 8), torch.rand(1, 5, 16, 16), torch.rand(3, 3, 5, 16, 16)):
        with pytest.raises(UsageError, match="go on from"):
            model.sample(["a", "b"], prime_frames=wrong)


def test_the_next_scene_starts_from_the_last_frames() -> None:
    """What is encoded as the start of a scene are the last frames of all before, and its codes are kept."""
    model = phenaki(overlap=3)
    shown: list[Tensor] = []
    encode = model.cvivit.encode
    model.cvivit.encode = lambda videos, mask=None: shown.append(videos) or encode(videos, mask)
    made = model.make_video(["a", "b", "c"], num=2, seed=3)
    assert made.shape == (2, 3, 9 + 6 + 6, 16, 16)
    assert torch.equal(shown[0], made[:, :, 6:9])
    assert torch.equal(shown[1], made[:, :, 12:15])
    # The first scene does not depend on what comes after it, and each has noise of its own.
    assert torch.equal(made[:, :, :9], model.make_video(["a"], num=2, seed=3))
    assert not torch.equal(made[:, :, 9:15], made[:, :, 15:])
    assert model.make_video(["a", "b"], 5, overlap=5).shape[2] == 10
    with pytest.raises(UsageError, match="at least one scene"):
        model.make_video([])


def test_without_a_word_a_third_is_gone_on_from() -> None:
    model = phenaki()
    assert model.longest == 9
    assert model.make_video(["a", "b"]).shape[2] == 9 + 9 - 3
    assert model.sample("a", prime_frames=torch.rand(3, 9, 16, 16)).shape[2] == 9 + 9 - 3


def test_no_text_at_all_is_refused() -> None:
    with pytest.raises(UsageError, match="give at least one text"):
        phenaki().sample()


def test_codes_of_a_start_are_given_and_the_rest_is_made() -> None:
    model = phenaki()
    told = (model.maskgit.texts(["x"]), model.maskgit.texts(["x"], torch.tensor([False])))
    prime = torch.randint(0, 32, (1, 2, 2, 2))
    there = torch.tensor([[True, True, True, True, False]])
    with torch.no_grad():
        codes = model.codes(told, ItemRNG(0, [0], [0]), there, prime)
    assert torch.equal(codes[:, :2], prime)
    assert (codes[:, 2:4] >= 0).all()
    assert (codes[:, 2:4] < 32).all()
    assert (codes[:, 4] == -1).all()


def test_an_overlap_as_long_as_the_model_leaves_room_to_go_on() -> None:
    made = phenaki(moments=3, overlap=9)
    assert made.longest == 5
    assert made.sample(["a"], 9, seed=1).shape[2] == 9
    assert made.make_video(["a", "b"], seed=1).shape[2] == 7


def test_moments_behind_the_first_may_have_fewer_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    made = phenaki(frame_autoregressive=True, later_steps=1)
    passes: list[int] = []
    through = made.maskgit.forward

    def count(tokens: Tensor | None, *rest: Any, **named: Any) -> Tensor:
        if tokens is not None:  # the call that reads the text for all steps has none
            passes.append(tokens.shape[1] // PLACES)
        return through(tokens, *rest, **named)

    monkeypatch.setattr(made.maskgit, "forward", count)
    made.sample(["a"], 5, seed=1)
    assert {moments: passes.count(moments) for moments in passes} == {1: QUICK.steps, 2: 1, 3: 1}


def test_moments_that_are_made_in_their_order_do_not_depend_on_how_many_follow() -> None:
    made = phenaki(frame_autoregressive=True)
    short, long = made.sample(["a", "b"], 5, seed=3), made.sample(["a", "b"], 9, seed=3)
    torch.testing.assert_close(long[:, :, :5], short)
    assert not torch.allclose(phenaki().sample(["a", "b"], 9, seed=3), long)
    # A clip of three moments beside one that ends after the first.
    there = torch.tensor([[True] * 3, [True, False, False]])
    told = encode_prompts(made.maskgit, ["a", "b"], None)
    codes = made.codes(told, ItemRNG(0, [0, 0], [0, 1]), there)
    assert (codes[1, 1:] == -1).all()
    assert (codes[0] >= 0).all()
    assert (codes[1, 0] >= 0).all()
    gone_on = made.codes(told, ItemRNG(0, [0, 0], [0, 1]), torch.ones(2, 3, dtype=torch.bool), codes[:, :1])
    assert torch.equal(gone_on[:, 0], codes[:, 0])
    assert torch.equal(gone_on[0], codes[0])


def test_a_critic_decides_what_is_masked_again() -> None:
    plain = phenaki()
    torch.manual_seed(1)
    critic = TokenCritic(plain.maskgit.config)
    judged_by = phenaki(critic=critic)
    judged_by.maskgit.load_state_dict(plain.maskgit.state_dict())
    assert not torch.equal(plain.sample("a", seed=2), judged_by.sample("a", seed=2))


def test_an_export_is_opened_whole() -> None:
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
    # An item depends on its number and text, and not on those that are generated with it.
    torch.testing.assert_close(pipeline(texts[0], num=2, seed=1), videos[:2], atol=1e-4, rtol=0)
    assert not torch.equal(pipeline(texts, num=2, seed=1, negative_prompt="green"), videos)
    assert pipeline(texts[0], frames=9).shape == (1, 3, 9, 16, 16)
    assert pipeline(texts, images=True).shape == (2, 3, 16, 16)


def test_scenes_and_a_clip_to_continue_in_python(pipeline: PhenakiPipeline, tmp_path: Path) -> None:
    film = pipeline(scenes=["a red heart", "a cyan star"], num=2, seed=3)
    assert film.shape == (2, 3, 5 + 5 - 1, 16, 16)
    assert torch.equal(film[:, :, :5], pipeline(scenes=["a red heart"], num=2, seed=3))
    clip = torch.rand(3, 3, 16, 16)
    continued = pipeline("up", prime=clip, num=2, frames=5)
    assert continued.shape == (2, 3, 5, 16, 16)
    assert torch.equal(continued[:, :, :3], clip.expand(2, -1, -1, -1, -1))
    write_video(clip, tmp_path / "clip.webp")
    assert pipeline("up", prime=tmp_path / "clip.webp", frames=5).shape == (1, 3, 5, 16, 16)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"frames": 4}, "--frames=4 is not 1 and a multiple of 2"),
        ({"frames": 3, "prime": torch.rand(3, 3, 16, 16)}, "3 frames, and 3 are asked for.*nothing would be left"),
        ({"images": True, "frames": 3}, "leave --prime and --frames out"),
        ({"images": True, "prime": "clip.mp4"}, "leave --prime and --frames out"),
        ({"scenes": ["a", "b"]}, "leave --text and --images out"),
    ],
)
def test_options_that_contradict_each_other_are_refused(
    pipeline: PhenakiPipeline, options: dict[str, Any], words: str
) -> None:
    with pytest.raises(UsageError, match=words):
        pipeline("a red heart", **options)


def test_frames_that_fill_no_moment_are_refused_with_the_nearest_that_do() -> None:
    check_frames("--frames", 17, 4)
    check_frames("--frames", 1, 4)
    with pytest.raises(UsageError, match=r"--frames=12 is not 1 and a multiple of 4.*: 9 and 13"):
        check_frames("--frames", 12, 4)
    with pytest.raises(UsageError, match=r"the nearest that are: 1 and 5"):
        check_frames("data.frames", 2, 4)


def test_what_is_made_is_named_with_its_text_and_settings(task: PhenakiTask, tmp_path: Path) -> None:
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
    assert [artifact.about["text"] for artifact in single[::2]] == texts
    assert {(artifact.about["seed"], artifact.about["frames"]) for artifact in single} == {(7, 3)}
    for artifact in single[:2]:
        artifact.write(tmp_path / artifact.file)
        assert read_header(tmp_path / artifact.file).frames == 3


def test_captions_to_sample_come_from_a_list_a_file_or_the_validation_set(videos: Path, tmp_path: Path) -> None:
    file = tmp_path / "captions.txt"
    file.write_text("a red ball\n\na blue star\n", encoding="utf-8")
    for key, wanted in ((f"sample.texts={file}", ["a red ball", "a blue star"]), ('sample.texts=["x"]', ["x"])):
        made = make_task("phenaki", videos, (*TINY_PHENAKI, key))
        assert isinstance(made, PhenakiTask)
        with inference_mode(made.modules):
            _, *single = made.sample(made.modules, batch_of(made, [3, 3, 1]))
        assert [artifact.about["text"] for artifact in single[::2]] == wanted
    # As `quintet sample RUN sample.texts=FILE` does.
    made = PhenakiTask(made.config.changed({"sample.texts": str(file)}), made.frozen, made.modules)
    with inference_mode(made.modules):
        _, *single = made.sample(made.modules, batch_of(made, [3]))
    assert [artifact.about["text"] for artifact in single[::2]] == ["a red ball", "a blue star"]
    (tmp_path / "empty.txt").write_text("\n")
    with pytest.raises(UsageError, match=r"sample\.texts: .*empty\.txt is empty"):
        make_task("phenaki", videos, (*TINY_PHENAKI, f"sample.texts={tmp_path / 'empty.txt'}"))


def test_samples_of_validation_clips_are_as_long_as_these(task: PhenakiTask) -> None:
    with inference_mode(task.modules):
        sheet, *single = task.sample(task.modules, batch_of(task, [3, 1, 2]))
    assert sheet.about["texts"] == ["clip 0", "clip 1", "clip 2"]
    assert [artifact.about["frames"] for artifact in single[::2]] == [5, 1, 3]


def test_the_judge_sees_what_the_data_shows(videos: Path) -> None:
    task = make_task("phenaki", videos, (*TINY_PHENAKI, "data.frames=17"))
    media = task.splits().validation.media  # type: ignore[attr-defined]
    rows, judge = [media.metadata(item)["metadata"] for item in range(3)], MotionsJudge()
    clips = [clip_tensor(read_video(media.entries[item].media(media.root))) / 255 for item in range(3)]
    assert all(map(judge.knows, rows))
    assert not judge.knows({"motion": {"shape": "star"}})
    found = judge.metrics(clips, rows, "validation")
    assert found.keys() == {"match_colour", "match_shape", "match_motion"}
    assert all(column.tolist() == [1.0] * 3 for column in found.values())
    # Of the withheld ones the colour does not count, and both others must be right.
    for changed, right in (({"colour": "none"}, 1.0), ({"shape": "none"}, 0.0), ({"motion": "none"}, 0.0)):
        swapped = judge.metrics(clips, [{"motion": {**row["motion"], **changed}} for row in rows], "withheld")
        assert {name: column.tolist() for name, column in swapped.items()} == {"match_withheld": [right] * 3}
