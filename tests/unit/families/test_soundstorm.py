"""SoundStorm: what training hides, what the model sees of padding and conditions, and decoding level by level."""

from __future__ import annotations

import math
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from quintet.common.rng import ItemRNG
from quintet.errors import UsageError
from quintet.families.soundstorm.decoding import canvas, for_levels, generate
from quintet.families.soundstorm.masking import Hidden, hide, hide_level
from quintet.families.soundstorm.model import ConformerWrapper, SoundStorm
from quintet.sampling import filters
from quintet.sampling.masked import Sampling, constant, cosine, linear, masked_counts

LEVELS, CODES, LONGEST = 4, 11, 20
SMALL: dict[str, Any] = {
    "num_codes": CODES, "num_quantizers": LEVELS, "frame_rate": 50.0, "max_frames": 64,
    "dim": 16, "depth": 1, "heads": 2, "head_dim": 8,
}  # fmt: skip
SEMANTIC: dict[str, Any] = {"semantic_codes": 7, "semantic_rate": 25.0}
CLIP: dict[str, Any] = {"condition_dim": 6}
LENGTHS = [20, 13, 1]


def make(**keys: Any) -> SoundStorm:
    torch.manual_seed(0)
    model = SoundStorm(**{**SMALL, **keys}).double().eval()
    with torch.no_grad():
        # Sharper than a fresh model, and opinions where it starts with none: choices should have reasons.
        model.head_weights.mul_(4)
        for layer in (model.net.from_previous, model.to_score):
            if layer is not None:
                layer.weight.normal_()
    return model


def items(count: int, first: int = 0, seed: int = 3) -> ItemRNG:
    return ItemRNG(seed, [0] * count, range(first, first + count))


def there(lengths: list[int], longest: int | None = None) -> Tensor:
    return torch.arange(longest or max(lengths)) < torch.tensor(lengths)[:, None]


def some_codes(rows: int, frames: int = LONGEST, seed: int = 1) -> Tensor:
    return torch.randint(0, CODES, (rows, frames, LEVELS), generator=torch.Generator().manual_seed(seed))


def vectors(rows: int) -> Tensor:
    return torch.randn(rows, 6, generator=torch.Generator().manual_seed(5), dtype=torch.float64)


def seen_by(model: SoundStorm) -> list[Tensor]:
    """The codes of every call of the net, from now on."""
    inputs: list[Tensor] = []
    model.net.register_forward_pre_hook(lambda _, arguments: inputs.append(arguments[0].clone()))
    return inputs


def settings(steps: tuple[int, ...] = (5, 2, 1), **keys: Any) -> list[Sampling]:
    return for_levels(Sampling(**{"greedy_last_step": True, **keys}), steps, LEVELS)


def _always(share: float, progress: Tensor) -> Tensor:
    return torch.full_like(progress, share)


# --- what training hides ------------------------------------------------------------------------------------------


def masked_codes(hidden: Hidden, codes: Tensor) -> Tensor:
    """Which codes are hidden; all others stand as they were."""
    masked = hidden.tokens == CODES
    assert torch.equal(hidden.tokens[~masked], codes[~masked])
    return masked


@pytest.mark.parametrize("span", [1, 3])
def test_hides_a_share_of_one_level_and_all_finer_ones_behind_the_prompt(span: int) -> None:
    rows = 300
    frames = there([LONGEST, 13, 1] * (rows // 3))
    codes = some_codes(rows)
    kept = codes.clone()
    hidden = hide(codes, frames, items(rows), CODES, span=span)
    assert torch.equal(codes, kept)
    masked = masked_codes(hidden, codes)
    assert not masked[~frames].any()
    for row in range(rows):
        level, length = int(hidden.levels[row]), int(frames[row].sum())
        assert not masked[row, :, :level].any()
        assert torch.equal(masked[row, :, level], hidden.where[row])
        assert hidden.where[row].any()
        if level < LEVELS - 1:
            finer = masked[row, :length, level + 1 :]
            prompt = length - int(finer[:, 0].sum())
            assert torch.equal(finer, (torch.arange(length) >= prompt)[:, None].expand_as(finer))
            assert not hidden.where[row, :prompt].any()
    expected = codes.gather(2, hidden.levels[:, None, None].expand(-1, LONGEST, 1))[..., 0][hidden.where]
    assert torch.equal(hidden.targets, expected)


def test_prompts_levels_and_shares_are_spread_as_in_the_paper() -> None:
    rows, length = 6000, 10
    frames = there([length] * rows)
    codes = some_codes(rows, length)
    hidden = hide(codes, frames, items(rows), CODES)
    often = torch.bincount(hidden.levels, minlength=LEVELS) / rows
    assert often.tolist() == pytest.approx([1 / LEVELS] * LEVELS, abs=0.03)
    masked = masked_codes(hidden, codes)
    coarse = hidden.levels < LEVELS - 1
    prompts = length - masked[coarse][..., -1].sum(1)
    often = torch.bincount(prompts, minlength=length) / len(prompts)
    assert often.tolist() == pytest.approx([1 / length] * length, abs=0.03)
    # The level, the prompt and the share of a row tell nothing of each other.
    shares = hidden.where[coarse].sum(1) / (length - prompts)
    table = torch.stack([hidden.levels[coarse].double(), prompts.double()])
    assert abs(torch.corrcoef(table)[0, 1]) < 0.05
    long = prompts < 3
    assert shares[long].mean().item() == pytest.approx(2 / math.pi, abs=0.03)


def test_the_share_is_the_schedule_and_at_least_one_code_is_hidden() -> None:
    frames = there([20, 13, 1])
    levels, prompts = torch.tensor([0, 1, 3]), torch.tensor([4, 3, 0])
    codes = some_codes(3)
    for share, expected in ((0.5, [8, 5, 1]), (0.0, [1, 1, 1]), (1.0, [16, 10, 1])):
        hidden = hide_level(codes, frames, prompts, levels, items(3), CODES, partial(_always, share))
        assert hidden.where.sum(1).tolist() == expected


def test_rows_are_hidden_the_same_in_any_batch_and_beside_longer_ones() -> None:
    lengths = [20, 13, 1, 7]
    codes, frames = some_codes(4), there(lengths)
    whole = hide(codes, frames, items(4), CODES, span=2, coarse_bias=2)
    for row, length in enumerate(lengths):
        alone = hide(codes[row, None, :length], there([length]), items(1, row), CODES, span=2, coarse_bias=2)
        assert torch.equal(alone.tokens[0], whole.tokens[row, :length])
        assert torch.equal(alone.levels[0], whole.levels[row])


def test_coarse_levels_can_come_more_often() -> None:
    rows = 8000
    hidden = hide(some_codes(rows, 2), there([2] * rows), items(rows), CODES, coarse_bias=2)
    often = torch.bincount(hidden.levels, minlength=LEVELS) / rows
    assert often.tolist() == pytest.approx([7 / 16, 5 / 16, 3 / 16, 1 / 16], abs=0.025)


def test_a_critic_sees_guesses_in_the_hidden_places_of_the_level_alone() -> None:
    codes, frames = some_codes(3), there(LENGTHS)
    hidden = hide_level(codes, frames, torch.tensor([5, 0, 0]), torch.tensor([1, 0, 3]), items(3), CODES)
    guesses = torch.arange(len(hidden.targets)) % CODES
    filled = hidden.filled(guesses)
    own = torch.zeros_like(codes, dtype=torch.bool)
    for row, level in enumerate([1, 0, 3]):
        own[row, :, level] = hidden.where[row]
    assert torch.equal(filled[own], guesses)
    assert torch.equal(filled[~own], hidden.tokens[~own])
    assert torch.equal(hidden.filled(hidden.targets)[own], codes[own])


def test_codes_that_do_not_fit_are_refused() -> None:
    frames = there(LENGTHS)
    with pytest.raises(UsageError, match=r"\(3, 20\)"):
        hide(some_codes(3)[..., 0], frames, items(3), CODES)
    wrong = some_codes(3)
    wrong[1, 2, 3] = CODES
    with pytest.raises(UsageError, match=f"to {CODES} are not all in the vocabulary of {CODES}"):
        hide(wrong, frames, items(3), CODES)
    wrong[1, 2, 3] = 0
    wrong[1, 15, 3] = -1  # padding may hold anything
    hide(wrong, frames, items(3), CODES)


# --- the model ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("keys", [{}, CLIP, SEMANTIC, {**CLIP, **SEMANTIC, "self_conditioning": True}])
def test_a_row_is_the_same_alone_and_in_a_padded_batch(keys: dict[str, Any]) -> None:
    model, codes, frames = make(**keys), some_codes(3), there(LENGTHS)
    codes = codes.masked_fill(~frames[..., None], -1)
    semantic = torch.tensor([[1, 2, 3, 4, 5, 6, 0, 1, 2, 3], [3, 3, 3, 1, 2, 0, 6, -1, -1, -1], [5] + [-1] * 9])
    given: dict[str, Tensor] = {}
    if "condition_dim" in keys:
        given["clip"] = vectors(3)
    if "semantic_codes" in keys:
        given["semantic"] = semantic
    before = torch.randn(3, LONGEST, 16, generator=torch.Generator().manual_seed(2), dtype=torch.float64)
    levels = torch.tensor([2, 0, 3])
    together = model(codes, model.conditioning(frames, **given), levels, previous=before)
    for row, length in enumerate(LENGTHS):
        own = {name: value[row : row + 1] for name, value in given.items()}
        conditioning = model.conditioning(there([length]), **own)
        alone = model(
            codes[row : row + 1, :length], conditioning, levels[row : row + 1], previous=before[row, None, :length]
        )
        torch.testing.assert_close(alone[0], together[row, :length], rtol=1e-10, atol=1e-10)


def test_logits_are_those_of_each_rows_level_and_of_the_places_asked_for() -> None:
    model, codes = make(), some_codes(3)
    conditioning = model.conditioning(there([LONGEST] * 3))
    levels = torch.tensor([3, 0, 3])
    whole = model(codes, conditioning, levels)
    seen = model(codes, conditioning, levels, want="vectors")
    for row, level in enumerate(levels.tolist()):
        torch.testing.assert_close(whole[row], model.logits_of(seen[row], level))
    where = torch.rand(3, LONGEST, generator=torch.Generator().manual_seed(0)) < torch.tensor([0.8, 0.1, 0.5])[:, None]
    torch.testing.assert_close(model(codes, conditioning, levels, where=where), whole[where])


def test_only_drawn_heads_learn_but_none_is_left_without_a_gradient() -> None:
    model, codes = make(), some_codes(2)
    frames = there([LONGEST] * 2)
    hidden = hide_level(codes, frames, torch.tensor([0, 3]), torch.tensor([1, 1]), items(2), CODES)
    logits = model(hidden.tokens, model.conditioning(frames), hidden.levels, where=hidden.where)
    torch.nn.functional.cross_entropy(logits, hidden.targets).backward()
    assert all(part.grad is not None for part in model.parameters())
    assert model.head_weights.grad is not None
    assert [bool(part.any()) for part in model.head_weights.grad] == [False, True, False, False]


def test_every_level_has_codes_and_a_mask_of_its_own() -> None:
    model, codes = make(), some_codes(1)
    conditioning = model.conditioning(there([LONGEST]))
    levels = torch.tensor([0])
    base = model(codes, conditioning, levels)
    made = []
    for level in range(LEVELS):
        for code in (3, CODES):
            other = codes.clone()
            other[0, 7, level] = code
            other[0, 7, (level + 1) % LEVELS] = 3
            made.append(model(other, conditioning, levels))
    for number, one in enumerate(made):
        assert (one - base).abs().max() > 1e-6
        assert all((one - other).abs().max() > 1e-6 for other in made[:number])


@pytest.mark.parametrize("positions", [True, False])
def test_positions_tell_frames_apart_of_which_nothing_is_known(positions: bool) -> None:
    model = make(position_embedding=positions)
    empty = torch.full((1, LONGEST, LEVELS), CODES)
    logits = model(empty, model.conditioning(there([LONGEST])), torch.tensor([0]))[0]
    assert ((logits[9] - logits[10]).abs().max() > 1e-3) == positions
    assert (logits[0] - logits[10]).abs().max() > 1e-3  # the end of a clip is felt by the convolution


def test_nothing_given_to_the_model_is_written_to() -> None:
    model = make(**CLIP, **SEMANTIC, self_conditioning=True, self_critic=True)
    frames, codes = there(LENGTHS), some_codes(3)
    conditioning = model.conditioning(
        frames, semantic=torch.ones(3, 10, dtype=torch.int64).where(there([10, 7, 1]), -1), clip=vectors(3)
    )
    given = {"codes": codes, **conditioning}
    kept = {name: value.clone() for name, value in given.items()}
    model(codes, conditioning, torch.tensor([0, 1, 2]))
    prompt = canvas(frames, LEVELS, codes[:, :1, :2])
    before = prompt.clone()
    generate(model, prompt, conditioning, items(3), settings(guidance_scale=2.0))
    assert torch.equal(prompt, before)
    assert all(torch.equal(given[name], value) for name, value in kept.items())


def test_built_from_a_net_or_from_keys_and_saved(tmp_path: Path) -> None:
    net = ConformerWrapper(**SMALL, **CLIP)
    model = SoundStorm(net).eval()
    assert model.net is net
    model.save_pretrained(tmp_path / "storm")
    again = SoundStorm.from_pretrained(tmp_path / "storm")
    codes, frames = some_codes(2), there([LONGEST] * 2)
    conditioning, levels = model.conditioning(frames, clip=vectors(2).float()), torch.tensor([1, 2])
    assert torch.equal(again(codes, conditioning, levels), model(codes, conditioning, levels))
    with pytest.raises(UsageError, match="not both"):
        SoundStorm(net, dim=32)
    with pytest.raises(UsageError, match="tokenizer"):
        SoundStorm(dim=32)
    for wrong, said in (
        ({"conv_kernel_size": 4}, "odd"),
        ({"semantic_codes": 5}, "semantic_rate"),
        ({"dmi": 16}, "dim"),
    ):
        with pytest.raises(UsageError, match=said):
            SoundStorm(**{**SMALL, **wrong})


def test_codes_that_sound_alike_start_alike() -> None:
    model = make()
    books = torch.randn(LEVELS, CODES, 5, generator=torch.Generator().manual_seed(4), dtype=torch.float64)
    books[2, 7] = books[2, 3] + 1e-3
    masks = model.net.embedding.weight.view(LEVELS, CODES + 1, -1)[:, CODES].clone()
    scales = [model.net.embedding.weight.std().item(), model.head_weights.std().item()]
    model.init_from_codebook(books)
    tables = (model.net.embedding.weight.view(LEVELS, CODES + 1, -1)[:, :CODES], model.head_weights)
    for table, scale in zip(tables, scales, strict=True):
        for level in range(LEVELS):
            apart, own = torch.cdist(table[level], table[level]), torch.cdist(books[level], books[level])
            ratio = (apart / own)[own > 0]
            assert (ratio.max() / ratio.min()).item() == pytest.approx(1, abs=1e-6)
            assert table[level].std().item() == pytest.approx(scale, rel=0.3)
    assert torch.equal(model.net.embedding.weight.view(LEVELS, CODES + 1, -1)[:, CODES], masks)
    with pytest.raises(UsageError, match="4 levels of 11 codes"):
        model.init_from_codebook(books[:3])
    books[1] = 0.5
    with pytest.raises(UsageError, match="all equal"):
        model.init_from_codebook(books)


def test_clips_that_are_too_long_or_of_other_levels_are_refused() -> None:
    model = make()
    with pytest.raises(UsageError, match=r"65 frames are more than model\.max_frames=64"):
        model(some_codes(1, 65), model.conditioning(there([65])), torch.tensor([0]))
    with pytest.raises(UsageError, match=r"model\.num_quantizers=4"):
        model(some_codes(1)[..., :3], model.conditioning(there([LONGEST])), torch.tensor([0]))


# --- conditioning -------------------------------------------------------------------------------------------------


def test_semantic_tokens_lie_over_the_frames_of_their_time() -> None:
    model = make(**SEMANTIC)
    conditioning = model.conditioning(there([7, 4]), semantic=torch.tensor([[1, 2, 3, 4], [5, 6, -1, -1]]))
    assert conditioning["semantic"][..., 0].tolist() == [[1, 1, 2, 2, 3, 3, 4], [5, 5, 6, 6, 7, 7, 7]]
    faster = make(semantic_codes=7, semantic_rate=100.0)
    conditioning = faster.conditioning(there([3]), semantic=torch.tensor([[0, 1, 2, 3, 4, 5]]))
    assert conditioning["semantic"].tolist() == [[[0, 1], [2, 3], [4, 5]]]
    uneven = make(semantic_codes=7, semantic_rate=20.0)
    conditioning = uneven.conditioning(there([5]), semantic=torch.tensor([[0, 1]]))
    assert conditioning["semantic"][0, :, 0].tolist() == [0, 0, 1, 1, 1]


def test_every_semantic_token_of_a_fast_stream_is_heard() -> None:
    model, codes = make(semantic_codes=7, semantic_rate=100.0), some_codes(1, 3)
    frames, levels, semantic = there([3]), torch.tensor([0]), torch.tensor([[0, 1, 2, 3, 4, 5]])
    base = model(codes, model.conditioning(frames, semantic=semantic), levels)
    for place in range(6):
        other = semantic.clone()
        other[0, place] = 6
        assert (model(codes, model.conditioning(frames, semantic=other), levels) - base).abs().max() > 1e-6


def test_lengths_that_do_not_fit_and_unknown_tokens_are_refused() -> None:
    model, frames = make(**SEMANTIC), there([20, 10])
    with pytest.raises(UsageError, match=r"9 semantic tokens do not fit 10 frames.*there would be 5"):
        model.conditioning(frames, semantic=torch.zeros(2, 9, dtype=torch.int64))
    with pytest.raises(UsageError, match="semantic_codes=7"):
        model.conditioning(frames, semantic=torch.full((2, 10), 7))
    with pytest.raises(UsageError, match="of 2 clips"):
        model.conditioning(frames, semantic=torch.zeros(3, 10, dtype=torch.int64))
    conditioning = model.conditioning(
        frames, semantic=torch.tensor([[1] * 9, [2] * 6 + [-1] * 3])
    )  # one or two off: the ends
    assert conditioning["semantic"].max() <= 7
    with pytest.raises(UsageError, match=r"model\.semantic_codes"):
        make().conditioning(frames, semantic=torch.zeros(2, 10, dtype=torch.int64))
    with pytest.raises(UsageError, match=r"model\.condition_dim"):
        model.conditioning(frames, clip=vectors(2))
    with pytest.raises(UsageError, match="condition_dim=6"):
        make(**CLIP).conditioning(frames, clip=vectors(3))


def test_what_is_dropped_is_nothing_whatever_it_was() -> None:
    model, codes = make(**CLIP, **SEMANTIC), some_codes(2)
    frames, levels = there([LONGEST] * 2), torch.tensor([0, 1])
    semantic, keep = torch.ones(2, 10, dtype=torch.int64), torch.tensor([True, False])
    clip = vectors(2)
    clip[1] = math.nan
    made = model(codes, model.conditioning(frames, semantic, clip, keep), levels)
    untold = model(codes, model.conditioning(frames), levels)
    torch.testing.assert_close(made[1], untold[1])
    assert (made[0] - untold[0]).abs().max() > 1e-3
    nothing = model.net.conditions.null_conditioning(model.conditioning(frames, semantic, clip, keep))
    torch.testing.assert_close(model(codes, nothing, levels), untold)
    made.sum().backward()
    assert all(part.grad is not None and part.grad.isfinite().all() for part in model.parameters())


# --- decoding -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("schedule", [cosine, linear, lambda progress: (1 - progress) ** 3])
def test_every_step_masks_what_the_schedule_says_of_its_own_level(schedule: Any) -> None:
    """The public port ranks the codes of all levels together, but counts frames: it masks far fewer than scheduled."""
    model, lengths = make(), [40, 24, 1]
    frames = there(lengths)
    counts: dict[tuple[int, int], list[int]] = {}
    hidden: dict[tuple[int, int], list[int]] = {}

    def watch(level: int, step: int, codes: Tensor, masked: Tensor) -> None:
        counts[level, step] = masked.sum(1).tolist()
        hidden[level, step] = ((codes[..., level] == CODES) & frames).sum(1).tolist()

    own = settings((8, 3, 2), schedule=schedule)
    generate(model, canvas(frames, LEVELS), model.conditioning(frames), items(3), own, watch)
    for level, steps in enumerate((8, 3, 2, 2)):
        expected = masked_counts(torch.tensor(lengths), steps, schedule).tolist()
        made = [counts[level, step] for step in range(steps) if (level, step) in counts]
        assert made == expected[: len(made)]
        assert not any(any(row) for row in expected[len(made) :])
    assert counts == hidden


@pytest.mark.parametrize("critic", [False, True])
def test_the_model_sees_in_decoding_what_training_has_shown_it(critic: bool) -> None:
    model, lengths = make(self_critic=critic), [20, 13, 6]
    frames, given = there(lengths), some_codes(3)
    prompts = torch.tensor([5, 0, 5])
    prompt = given[:, :5].masked_fill(~there(prompts.tolist(), 5)[..., None], -1)
    inputs = seen_by(model)
    starts: list[int] = []
    steps = (4, 3, 1)
    made = generate(
        model,
        canvas(frames, LEVELS, prompt),
        model.conditioning(frames),
        items(3),
        settings(steps),
        lambda level, step, codes, masked: starts.append(len(inputs)) if not step else None,
    )
    assert made.shape == (3, 20, LEVELS)
    for level, after in enumerate(starts):
        asked = torch.full((3,), level)
        shown = hide_level(made, frames, prompts, asked, items(3), CODES, constant).tokens
        calls = 2 if critic and steps[min(level, 2)] > 1 else 1  # the critic looks where something is masked again
        assert torch.equal(inputs[after - calls][frames], shown[frames]), level
    # At no step does the model see a code of a finer level behind the prompt, nor the mask at a coarser one.
    behind = frames & (torch.arange(20) >= prompts[:, None])
    for number, codes in enumerate(inputs):
        masked = codes[behind] == CODES
        level = int(masked.all(0).int().argmax()) if masked.all(0).any() else LEVELS
        assert masked[:, level:].all(), number
        assert not masked[:, : max(level - 1, 0)].any(), number


def test_the_last_pass_of_every_level_is_greedy_for_every_row() -> None:
    """Also that of levels of one pass, and of a row that has fewer frames than the level has steps."""
    model, lengths = make(), [20, 13, 2]
    frames = there(lengths)
    conditioning, own = model.conditioning(frames), settings((6, 2, 1), temperature=5.0)
    states: list[tuple[int, Tensor]] = []
    made = generate(
        model,
        canvas(frames, LEVELS),
        conditioning,
        items(3),
        own,
        lambda level, step, codes, masked: states.append((level, codes)),
    )
    hot, ends = 0, 0
    for level in range(LEVELS):
        asked = torch.full((3,), level)
        before = hide_level(made, frames, torch.zeros(3).long(), asked, items(3), CODES, constant).tokens
        for after in (codes for number, codes in states if number == level):
            best, guesses = model(before, conditioning, asked).argmax(-1), after[..., level]
            new = (before[..., level] == CODES) & (guesses != CODES) & frames
            for row in range(3):
                wrong = int((guesses[row] != best[row])[new[row]].sum())
                if new[row].any() and not (guesses[row] == CODES)[frames[row]].any():
                    ends += 1
                    assert wrong == 0, (level, row)
                hot += wrong
            before = after
    assert ends == 3 * LEVELS
    assert hot > 5  # the passes before are drawn


def test_an_item_becomes_the_same_in_any_batch() -> None:
    model = make(**CLIP, self_conditioning=True, self_critic=True)
    lengths, clip, given = [20, 13, 1, 9], vectors(4), some_codes(4)
    own = settings((6, 3, 1), guidance_scale=2.5, guidance_schedule=linear, top_k=0.5, top_p=0.9)

    def generated(rows: slice, longest: int) -> Tensor:
        frames = there(lengths, 20)[rows, :longest]
        whole = canvas(frames, LEVELS, given[rows, :1, :2])
        return generate(model, whole, model.conditioning(frames, clip=clip[rows]), rng(rows), own)

    def rng(rows: slice) -> ItemRNG:
        numbers = range(4)[rows]
        return items(len(numbers), numbers[0])

    whole = generated(slice(0, 4), 20)
    assert (whole[~there(lengths)] == -1).all()
    for row, length in enumerate(lengths):
        assert torch.equal(generated(slice(row, row + 1), length)[0], whole[row, :length]), row
    assert torch.equal(torch.cat([generated(slice(0, 2), 20), generated(slice(2, 4), 20)]), whole)
    assert not torch.equal(generated(slice(1, 2), 20)[0], generated(slice(3, 4), 20)[0])


def test_prompts_of_all_or_fewer_levels_stay_and_the_rest_is_made() -> None:
    model, frames, given = make(), there([20, 13]), some_codes(2)
    for levels in (1, 2, LEVELS):
        prompt = given[:, :6, :levels].clone()
        prompt[1, 4:] = -1
        made = generate(model, canvas(frames, LEVELS, prompt), model.conditioning(frames), items(2), settings())
        assert torch.equal(made[0, :6, :levels], given[0, :6, :levels])
        assert torch.equal(made[1, :4, :levels], given[1, :4, :levels])
        assert ((made >= 0) & (made < CODES))[frames].all()
    whole = given.masked_fill(~frames[..., None], -1)
    inputs = seen_by(model)
    assert torch.equal(generate(model, whole, model.conditioning(frames), items(2), settings()), whole)
    assert not inputs  # all is given


def test_a_prompt_matters_to_what_follows() -> None:
    model, frames, given = make(), there([20]), some_codes(1)
    one, other = (
        generate(model, canvas(frames, LEVELS, codes), model.conditioning(frames), items(1), settings())[:, 6:]
        for codes in (given[:, :6], (given[:, :6] + 1) % CODES)
    )
    assert not torch.equal(one, other)


def test_guidance_leads_away_from_what_is_told_nothing() -> None:
    model, frames = make(**CLIP), there([20, 13])
    inputs = seen_by(model)

    def generated(conditioning: dict[str, Tensor], guidance: float) -> Tensor:
        return generate(model, canvas(frames, LEVELS), conditioning, items(2), settings((1,), guidance_scale=guidance))

    conditioning = model.conditioning(frames, clip=vectors(2))
    plain, guided = generated(conditioning, 1.0), generated(conditioning, 4.0)
    assert [len(codes) for codes in inputs] == [2] * LEVELS + [4] * LEVELS
    assert not torch.equal(plain, guided)
    start = torch.full((2, 20, LEVELS), CODES)
    level = torch.tensor([0, 0])
    own, none = (model(start, said, level) for said in (conditioning, model.conditioning(frames)))
    assert torch.equal(guided[..., 0][frames], (none + 4 * (own - none)).argmax(-1)[frames])
    torch.testing.assert_close(generated(model.conditioning(frames), 4.0), generated(model.conditioning(frames), 1.0))
    with pytest.raises(UsageError, match=r"sample\.guidance_scale"):
        generate(make(), canvas(frames, LEVELS), make().conditioning(frames), items(2), settings(guidance_scale=2.0))


def test_the_critic_hears_what_is_told_and_not_the_padding() -> None:
    model = make(**CLIP, self_critic=True)
    frames, codes, levels = there(LENGTHS), some_codes(3), torch.tensor([0, 1, 2])
    conditioning = model.conditioning(frames, clip=vectors(3))
    scores = model(codes, conditioning, levels, want="scores")
    assert scores.shape == (3, LONGEST)
    assert (model(codes, model.conditioning(frames), levels, want="scores") - scores).abs().max() > 1e-3
    other = codes.where(frames[..., None], (codes + 1) % CODES)
    torch.testing.assert_close(model(other, conditioning, levels, want="scores")[frames], scores[frames])
    where = frames & (torch.arange(LONGEST) % 2 == 0)
    torch.testing.assert_close(model(codes, conditioning, levels, where=where, want="scores"), scores[where])
    with pytest.raises(UsageError, match="self_critic"):
        make()(codes, make().conditioning(frames), levels, want="scores")


def test_what_the_model_made_of_the_step_before_comes_back_within_a_level() -> None:
    model, frames = make(self_conditioning=True), there([20, 13])
    previously: list[Tensor | None] = []
    made: list[Tensor] = []
    model.net.register_forward_pre_hook(lambda _, arguments: previously.append(arguments[2]))
    model.net.register_forward_hook(lambda _, arguments, output: made.append(output))
    generate(model, canvas(frames, LEVELS), model.conditioning(frames), items(2), settings((3, 2, 1)))
    assert len(previously) == 3 + 2 + 1 + 1
    for number, (previous, first) in enumerate(
        zip(previously, [True, False, False, True, False, True, True], strict=True)
    ):
        if first:
            assert previous is None
        else:
            assert previous is not None
            assert torch.equal(previous, made[number - 1])


def test_one_frame_is_a_clip() -> None:
    model, frames = make(**SEMANTIC), there([1])
    conditioning = model.conditioning(frames, semantic=torch.tensor([[4]]))
    made = generate(
        model, canvas(frames, LEVELS), conditioning, items(1), settings((16, 1), schedule=lambda p: 1 - p**2)
    )
    assert made.shape == (1, 1, LEVELS)
    assert ((made >= 0) & (made < CODES)).all()
    hidden = hide(made, frames, items(1), CODES, lambda progress: 1 - progress)
    assert hidden.where.all()


def test_impossible_requests_are_refused() -> None:
    model, frames = make(), there([20, 4])
    assert [own.steps for own in for_levels(Sampling(), (16, 1), 4)] == [16, 1, 1, 1]
    with pytest.raises(UsageError, match=r"sample\.steps has 5 numbers for 4 levels"):
        for_levels(Sampling(), (1, 1, 1, 1, 1), 4)
    with pytest.raises(UsageError, match="longer than the clip"):
        canvas(frames, LEVELS, some_codes(2)[:, :6])
    with pytest.raises(UsageError, match="up to 4 levels"):
        canvas(frames, LEVELS, torch.zeros(2, 3, 5, dtype=torch.int64))
    wrong = canvas(frames, LEVELS)
    wrong[0, 0, 0] = CODES
    with pytest.raises(UsageError, match="only 11"):
        generate(model, wrong, model.conditioning(frames), items(2), settings())
    with pytest.raises(UsageError, match="do not fit"):
        generate(model, wrong[..., :2], model.conditioning(frames), items(2), settings())


# --- all of it together -------------------------------------------------------------------------------------------


def test_trained_as_said_it_makes_what_it_is_told() -> None:
    """Two kinds of clips, each with a tune of its own that goes on over all levels, told by a vector."""
    torch.manual_seed(0)
    model = SoundStorm(**{**SMALL, **CLIP, "dim": 32, "self_critic": True, "self_conditioning": True})
    length, kinds = 8, torch.eye(6)[:2]
    places = torch.arange(length)[:, None] * torch.tensor([1, 2, 3, 5]) + torch.arange(LEVELS)
    tunes = torch.stack([places % CODES, (places * 2 + 5) % CODES])
    frames = there([length] * 16)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    codes, clip = tunes.repeat(8, 1, 1), kinds.repeat(8, 1)
    for step in range(150):
        rng = ItemRNG(1, [step] * 16, range(16))
        conditioning = model.conditioning(frames, clip=clip, keep=rng.uniform("keep") >= 0.1)
        hidden = hide(codes, frames, rng, CODES)
        with torch.no_grad():
            before = model(hidden.tokens, conditioning, hidden.levels, want="vectors")
        before = before * (rng.uniform("helped") < 0.75)[:, None, None]
        logits = model(hidden.tokens, conditioning, hidden.levels, where=hidden.where, previous=before)
        loss = torch.nn.functional.cross_entropy(logits, hidden.targets)
        guesses = filters.sample_on_device(logits.detach(), rng.uniform("guess", length)[hidden.where])
        scores = model(hidden.filled(guesses), conditioning, hidden.levels, where=hidden.where, want="scores")
        wrong = (guesses != hidden.targets).float()
        loss = loss + torch.nn.functional.binary_cross_entropy_with_logits(scores, wrong)
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        optimizer.zero_grad()
    model.eval()
    conditioning = model.conditioning(frames[:2], clip=kinds)
    made = generate(model, canvas(frames[:2], LEVELS), conditioning, items(2), settings((4, 1), guidance_scale=1.5))
    assert (made == tunes).double().mean() > 0.9
    spoiled = tunes.clone()
    spoiled[:, 3, 0] = (spoiled[:, 3, 0] + 4) % CODES
    spoiled[..., 1:] = CODES
    scores = model(spoiled, conditioning, torch.tensor([0, 0]), want="scores")
    assert (scores[:, 3] > scores[:, [0, 1, 2, 4, 5, 6, 7]].amax(1)).all()
    # Told nothing, but given the beginning of a tune, it goes on with that one.
    again = generate(
        model, canvas(frames[:2], LEVELS, tunes[:, :4]), model.conditioning(frames[:2]), items(2), settings((4, 1))
    )
    assert (again == tunes).double().mean() > 0.9
