"""SoundStorm: masking in training, the model with padding and conditioning, and decoding level by level."""

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
from quintet.families.soundstorm.decoding import canvas, generate, level_settings
from quintet.families.soundstorm.masking import MaskedCodes, mask_codes, mask_level
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
        # Larger weights than those of a new model, which are partly zero, so that outputs depend on inputs.
        model.head_weights.mul_(4)
        for layer in (model.net.from_previous, model.to_score):
            if layer is not None:
                layer.weight.normal_()
    return model


def items(count: int, first: int = 0, seed: int = 3) -> ItemRNG:
    return ItemRNG(seed, [0] * count, range(first, first + count))


def valid_frames(lengths: list[int], longest: int | None = None) -> Tensor:
    return torch.arange(longest or max(lengths)) < torch.tensor(lengths)[:, None]


def some_codes(rows: int, frames: int = LONGEST, seed: int = 1) -> Tensor:
    return torch.randint(0, CODES, (rows, frames, LEVELS), generator=torch.Generator().manual_seed(seed))


def vectors(rows: int) -> Tensor:
    return torch.randn(rows, 6, generator=torch.Generator().manual_seed(5), dtype=torch.float64)


def record_inputs(model: SoundStorm) -> list[Tensor]:
    """The codes of every call of the net, from now on."""
    inputs: list[Tensor] = []
    model.net.register_forward_pre_hook(lambda _, arguments: inputs.append(arguments[0].clone()))
    return inputs


def settings(steps: tuple[int, ...] = (5, 2, 1), **keys: Any) -> list[Sampling]:
    return level_settings(Sampling(**{"greedy_last_step": True, **keys}), steps, LEVELS)


def _always(fraction: float, progress: Tensor) -> Tensor:
    return torch.full_like(progress, fraction)


# --- masking in training ------------------------------------------------------------------------------------------


def check_masked(masked_codes: MaskedCodes, codes: Tensor) -> Tensor:
    """The mask of the masked codes; checks that all others are unchanged."""
    masked = masked_codes.tokens == CODES
    assert torch.equal(masked_codes.tokens[~masked], codes[~masked])
    return masked


@pytest.mark.parametrize("span", [1, 3])
def test_masks_part_of_one_level_and_all_finer_levels_behind_the_prompt(span: int) -> None:
    rows = 300
    frames = valid_frames([LONGEST, 13, 1] * (rows // 3))
    codes = some_codes(rows)
    original = codes.clone()
    masked_codes = mask_codes(codes, frames, items(rows), CODES, span=span)
    assert torch.equal(codes, original)
    masked = check_masked(masked_codes, codes)
    assert not masked[~frames].any()
    for row in range(rows):
        level, length = int(masked_codes.levels[row]), int(frames[row].sum())
        assert not masked[row, :, :level].any()
        assert torch.equal(masked[row, :, level], masked_codes.where[row])
        assert masked_codes.where[row].any()
        if level < LEVELS - 1:
            finer = masked[row, :length, level + 1 :]
            prompt = length - int(finer[:, 0].sum())
            assert torch.equal(finer, (torch.arange(length) >= prompt)[:, None].expand_as(finer))
            assert not masked_codes.where[row, :prompt].any()
    expected = codes.gather(2, masked_codes.levels[:, None, None].expand(-1, LONGEST, 1))[..., 0][masked_codes.where]
    assert torch.equal(masked_codes.targets, expected)


def test_prompts_levels_and_fractions_are_distributed_as_in_the_paper() -> None:
    rows, length = 6000, 10
    frames = valid_frames([length] * rows)
    codes = some_codes(rows, length)
    masked_codes = mask_codes(codes, frames, items(rows), CODES)
    frequencies = torch.bincount(masked_codes.levels, minlength=LEVELS) / rows
    assert frequencies.tolist() == pytest.approx([1 / LEVELS] * LEVELS, abs=0.03)
    masked = check_masked(masked_codes, codes)
    coarse = masked_codes.levels < LEVELS - 1
    prompts = length - masked[coarse][..., -1].sum(1)
    frequencies = torch.bincount(prompts, minlength=length) / len(prompts)
    assert frequencies.tolist() == pytest.approx([1 / length] * length, abs=0.03)
    # Level, prompt length and masked fraction of a row are independent.
    fractions = masked_codes.where[coarse].sum(1) / (length - prompts)
    table = torch.stack([masked_codes.levels[coarse].double(), prompts.double()])
    assert abs(torch.corrcoef(table)[0, 1]) < 0.05
    long = prompts < 3
    assert fractions[long].mean().item() == pytest.approx(2 / math.pi, abs=0.03)


def test_the_fraction_follows_the_schedule_and_at_least_one_code_is_masked() -> None:
    frames = valid_frames([20, 13, 1])
    levels, prompts = torch.tensor([0, 1, 3]), torch.tensor([4, 3, 0])
    codes = some_codes(3)
    for fraction, expected in ((0.5, [8, 5, 1]), (0.0, [1, 1, 1]), (1.0, [16, 10, 1])):
        masked_codes = mask_level(codes, frames, prompts, levels, items(3), CODES, partial(_always, fraction))
        assert masked_codes.where.sum(1).tolist() == expected


def test_rows_are_masked_the_same_in_any_batch() -> None:
    lengths = [20, 13, 1, 7]
    codes, frames = some_codes(4), valid_frames(lengths)
    whole = mask_codes(codes, frames, items(4), CODES, span=2, coarse_bias=2)
    for row, length in enumerate(lengths):
        alone = mask_codes(
            codes[row, None, :length], valid_frames([length]), items(1, row), CODES, span=2, coarse_bias=2
        )
        assert torch.equal(alone.tokens[0], whole.tokens[row, :length])
        assert torch.equal(alone.levels[0], whole.levels[row])


def test_coarse_levels_can_be_trained_more_often() -> None:
    rows = 8000
    masked_codes = mask_codes(some_codes(rows, 2), valid_frames([2] * rows), items(rows), CODES, coarse_bias=2)
    frequencies = torch.bincount(masked_codes.levels, minlength=LEVELS) / rows
    assert frequencies.tolist() == pytest.approx([7 / 16, 5 / 16, 3 / 16, 1 / 16], abs=0.025)


def test_a_critic_sees_predictions_only_at_masked_positions_of_the_level() -> None:
    codes, frames = some_codes(3), valid_frames(LENGTHS)
    masked_codes = mask_level(codes, frames, torch.tensor([5, 0, 0]), torch.tensor([1, 0, 3]), items(3), CODES)
    guesses = torch.arange(len(masked_codes.targets)) % CODES
    filled = masked_codes.filled(guesses)
    own = torch.zeros_like(codes, dtype=torch.bool)
    for row, level in enumerate([1, 0, 3]):
        own[row, :, level] = masked_codes.where[row]
    assert torch.equal(filled[own], guesses)
    assert torch.equal(filled[~own], masked_codes.tokens[~own])
    assert torch.equal(masked_codes.filled(masked_codes.targets)[own], codes[own])


def test_codes_that_do_not_fit_are_refused() -> None:
    frames = valid_frames(LENGTHS)
    with pytest.raises(UsageError, match=r"\(3, 20\)"):
        mask_codes(some_codes(3)[..., 0], frames, items(3), CODES)
    wrong = some_codes(3)
    wrong[1, 2, 3] = CODES
    with pytest.raises(UsageError, match=f"to {CODES} are outside the vocabulary of {CODES}"):
        mask_codes(wrong, frames, items(3), CODES)
    wrong[1, 2, 3] = 0
    wrong[1, 15, 3] = -1  # padding may hold anything
    mask_codes(wrong, frames, items(3), CODES)


# --- the model ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("keys", [{}, CLIP, SEMANTIC, {**CLIP, **SEMANTIC, "self_conditioning": True}])
def test_a_row_is_the_same_alone_and_in_a_padded_batch(keys: dict[str, Any]) -> None:
    model, codes, frames = make(**keys), some_codes(3), valid_frames(LENGTHS)
    codes = codes.masked_fill(~frames[..., None], -1)
    semantic = torch.tensor([[1, 2, 3, 4, 5, 6, 0, 1, 2, 3], [3, 3, 3, 1, 2, 0, 6, -1, -1, -1], [5] + [-1] * 9])
    inputs: dict[str, Tensor] = {}
    if "condition_dim" in keys:
        inputs["clip"] = vectors(3)
    if "semantic_codes" in keys:
        inputs["semantic"] = semantic
    before = torch.randn(3, LONGEST, 16, generator=torch.Generator().manual_seed(2), dtype=torch.float64)
    levels = torch.tensor([2, 0, 3])
    together = model(codes, model.conditioning(frames, **inputs), levels, previous=before)
    for row, length in enumerate(LENGTHS):
        own = {name: value[row : row + 1] for name, value in inputs.items()}
        conditioning = model.conditioning(valid_frames([length]), **own)
        alone = model(
            codes[row : row + 1, :length], conditioning, levels[row : row + 1], previous=before[row, None, :length]
        )
        torch.testing.assert_close(alone[0], together[row, :length], rtol=1e-10, atol=1e-10)


def test_logits_are_those_of_each_rows_level_and_of_the_requested_positions() -> None:
    model, codes = make(), some_codes(3)
    conditioning = model.conditioning(valid_frames([LONGEST] * 3))
    levels = torch.tensor([3, 0, 3])
    whole = model(codes, conditioning, levels)
    outputs = model(codes, conditioning, levels, output="vectors")
    for row, level in enumerate(levels.tolist()):
        torch.testing.assert_close(whole[row], model.logits_of(outputs[row], level))
    where = torch.rand(3, LONGEST, generator=torch.Generator().manual_seed(0)) < torch.tensor([0.8, 0.1, 0.5])[:, None]
    torch.testing.assert_close(model(codes, conditioning, levels, where=where), whole[where])


def test_only_heads_of_trained_levels_learn_but_all_have_a_gradient() -> None:
    model, codes = make(), some_codes(2)
    frames = valid_frames([LONGEST] * 2)
    masked_codes = mask_level(codes, frames, torch.tensor([0, 3]), torch.tensor([1, 1]), items(2), CODES)
    logits = model(masked_codes.tokens, model.conditioning(frames), masked_codes.levels, where=masked_codes.where)
    torch.nn.functional.cross_entropy(logits, masked_codes.targets).backward()
    assert all(part.grad is not None for part in model.parameters())
    assert model.head_weights.grad is not None
    assert [bool(part.any()) for part in model.head_weights.grad] == [False, True, False, False]


def test_every_level_has_its_own_embeddings_and_mask_token() -> None:
    model, codes = make(), some_codes(1)
    conditioning = model.conditioning(valid_frames([LONGEST]))
    levels = torch.tensor([0])
    base = model(codes, conditioning, levels)
    outputs = []
    for level in range(LEVELS):
        for code in (3, CODES):
            other = codes.clone()
            other[0, 7, level] = code
            other[0, 7, (level + 1) % LEVELS] = 3
            outputs.append(model(other, conditioning, levels))
    for number, one in enumerate(outputs):
        assert (one - base).abs().max() > 1e-6
        assert all((one - other).abs().max() > 1e-6 for other in outputs[:number])


@pytest.mark.parametrize("positions", [True, False])
def test_position_embeddings_distinguish_fully_masked_frames(positions: bool) -> None:
    model = make(position_embedding=positions)
    empty = torch.full((1, LONGEST, LEVELS), CODES)
    logits = model(empty, model.conditioning(valid_frames([LONGEST])), torch.tensor([0]))[0]
    assert ((logits[9] - logits[10]).abs().max() > 1e-3) == positions
    assert (logits[0] - logits[10]).abs().max() > 1e-3  # the convolution sees the end of the clip


def test_inputs_of_the_model_are_not_modified() -> None:
    model = make(**CLIP, **SEMANTIC, self_conditioning=True, self_critic=True)
    frames, codes = valid_frames(LENGTHS), some_codes(3)
    conditioning = model.conditioning(
        frames, semantic=torch.ones(3, 10, dtype=torch.int64).where(valid_frames([10, 7, 1]), -1), clip=vectors(3)
    )
    inputs = {"codes": codes, **conditioning}
    copies = {name: value.clone() for name, value in inputs.items()}
    model(codes, conditioning, torch.tensor([0, 1, 2]))
    prompt = canvas(frames, LEVELS, codes[:, :1, :2])
    before = prompt.clone()
    generate(model, prompt, conditioning, items(3), settings(guidance_scale=2.0))
    assert torch.equal(prompt, before)
    assert all(torch.equal(inputs[name], value) for name, value in copies.items())


def test_a_model_is_built_from_a_net_or_from_keys_and_saved(tmp_path: Path) -> None:
    net = ConformerWrapper(**SMALL, **CLIP)
    model = SoundStorm(net).eval()
    assert model.net is net
    model.save_pretrained(tmp_path / "storm")
    again = SoundStorm.from_pretrained(tmp_path / "storm")
    codes, frames = some_codes(2), valid_frames([LONGEST] * 2)
    conditioning, levels = model.conditioning(frames, clip=vectors(2).float()), torch.tensor([1, 2])
    assert torch.equal(again(codes, conditioning, levels), model(codes, conditioning, levels))
    with pytest.raises(UsageError, match="not both"):
        SoundStorm(net, dim=32)
    with pytest.raises(UsageError, match="tokenizer"):
        SoundStorm(dim=32)
    for wrong, message in (
        ({"conv_kernel_size": 4}, "odd"),
        ({"semantic_codes": 5}, "semantic_rate"),
        ({"dmi": 16}, "dim"),
    ):
        with pytest.raises(UsageError, match=message):
            SoundStorm(**{**SMALL, **wrong})


def test_codes_with_similar_vectors_start_with_similar_weights() -> None:
    model = make()
    books = torch.randn(LEVELS, CODES, 5, generator=torch.Generator().manual_seed(4), dtype=torch.float64)
    books[2, 7] = books[2, 3] + 1e-3
    masks = model.net.embedding.weight.view(LEVELS, CODES + 1, -1)[:, CODES].clone()
    scales = [model.net.embedding.weight.std().item(), model.head_weights.std().item()]
    model.init_from_codebooks(books)
    tables = (model.net.embedding.weight.view(LEVELS, CODES + 1, -1)[:, :CODES], model.head_weights)
    for table, scale in zip(tables, scales, strict=True):
        for level in range(LEVELS):
            distances, own = torch.cdist(table[level], table[level]), torch.cdist(books[level], books[level])
            ratio = (distances / own)[own > 0]
            assert (ratio.max() / ratio.min()).item() == pytest.approx(1, abs=1e-6)
            assert table[level].std().item() == pytest.approx(scale, rel=0.3)
    assert torch.equal(model.net.embedding.weight.view(LEVELS, CODES + 1, -1)[:, CODES], masks)
    with pytest.raises(UsageError, match="4 quantizers with 11 codes"):
        model.init_from_codebooks(books[:3])
    books[1] = 0.5
    with pytest.raises(UsageError, match="all equal"):
        model.init_from_codebooks(books)


def test_clips_that_are_too_long_or_of_other_quantizers_are_refused() -> None:
    model = make()
    with pytest.raises(UsageError, match=r"65 frames are more than model\.max_frames=64"):
        model(some_codes(1, 65), model.conditioning(valid_frames([65])), torch.tensor([0]))
    with pytest.raises(UsageError, match=r"model\.num_quantizers=4"):
        model(some_codes(1)[..., :3], model.conditioning(valid_frames([LONGEST])), torch.tensor([0]))


# --- conditioning -------------------------------------------------------------------------------------------------


def test_semantic_tokens_are_aligned_to_frames() -> None:
    model = make(**SEMANTIC)
    conditioning = model.conditioning(valid_frames([7, 4]), semantic=torch.tensor([[1, 2, 3, 4], [5, 6, -1, -1]]))
    assert conditioning["semantic"][..., 0].tolist() == [[1, 1, 2, 2, 3, 3, 4], [5, 5, 6, 6, 7, 7, 7]]
    faster = make(semantic_codes=7, semantic_rate=100.0)
    conditioning = faster.conditioning(valid_frames([3]), semantic=torch.tensor([[0, 1, 2, 3, 4, 5]]))
    assert conditioning["semantic"].tolist() == [[[0, 1], [2, 3], [4, 5]]]
    uneven = make(semantic_codes=7, semantic_rate=20.0)
    conditioning = uneven.conditioning(valid_frames([5]), semantic=torch.tensor([[0, 1]]))
    assert conditioning["semantic"][0, :, 0].tolist() == [0, 0, 1, 1, 1]


def test_every_semantic_token_of_a_fast_stream_is_used() -> None:
    model, codes = make(semantic_codes=7, semantic_rate=100.0), some_codes(1, 3)
    frames, levels, semantic = valid_frames([3]), torch.tensor([0]), torch.tensor([[0, 1, 2, 3, 4, 5]])
    base = model(codes, model.conditioning(frames, semantic=semantic), levels)
    for position in range(6):
        other = semantic.clone()
        other[0, position] = 6
        assert (model(codes, model.conditioning(frames, semantic=other), levels) - base).abs().max() > 1e-6


def test_lengths_that_do_not_fit_and_unknown_tokens_are_refused() -> None:
    model, frames = make(**SEMANTIC), valid_frames([20, 10])
    with pytest.raises(UsageError, match=r"9 semantic tokens do not fit 10 frames.*5 are expected"):
        model.conditioning(frames, semantic=torch.zeros(2, 9, dtype=torch.int64))
    with pytest.raises(UsageError, match="semantic_codes=7"):
        model.conditioning(frames, semantic=torch.full((2, 10), 7))
    with pytest.raises(UsageError, match="a batch of 2"):
        model.conditioning(frames, semantic=torch.zeros(3, 10, dtype=torch.int64))
    conditioning = model.conditioning(
        frames, semantic=torch.tensor([[1] * 9, [2] * 6 + [-1] * 3])
    )  # one or two tokens off are tolerated
    assert conditioning["semantic"].max() <= 7
    with pytest.raises(UsageError, match=r"model\.semantic_codes"):
        make().conditioning(frames, semantic=torch.zeros(2, 10, dtype=torch.int64))
    with pytest.raises(UsageError, match=r"model\.condition_dim"):
        model.conditioning(frames, clip=vectors(2))
    with pytest.raises(UsageError, match="condition_dim=6"):
        make(**CLIP).conditioning(frames, clip=vectors(3))


def test_dropped_conditioning_equals_null_conditioning() -> None:
    model, codes = make(**CLIP, **SEMANTIC), some_codes(2)
    frames, levels = valid_frames([LONGEST] * 2), torch.tensor([0, 1])
    semantic, keep = torch.ones(2, 10, dtype=torch.int64), torch.tensor([True, False])
    clip = vectors(2)
    clip[1] = math.nan
    logits = model(codes, model.conditioning(frames, semantic, clip, keep), levels)
    unconditional = model(codes, model.conditioning(frames), levels)
    torch.testing.assert_close(logits[1], unconditional[1])
    assert (logits[0] - unconditional[0]).abs().max() > 1e-3
    null = model.net.conditions.null_conditioning(model.conditioning(frames, semantic, clip, keep))
    torch.testing.assert_close(model(codes, null, levels), unconditional)
    logits.sum().backward()
    assert all(part.grad is not None and part.grad.isfinite().all() for part in model.parameters())


# --- decoding -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("schedule", [cosine, linear, lambda progress: (1 - progress) ** 3])
def test_every_step_masks_the_scheduled_number_of_its_level(schedule: Any) -> None:
    """The public port ranks the codes of all levels together, but counts frames: it masks far fewer than scheduled."""
    model, lengths = make(), [40, 24, 1]
    frames = valid_frames(lengths)
    counts: dict[tuple[int, int], list[int]] = {}
    mask_tokens: dict[tuple[int, int], list[int]] = {}

    def watch(level: int, step: int, codes: Tensor, masked: Tensor) -> None:
        counts[level, step] = masked.sum(1).tolist()
        mask_tokens[level, step] = ((codes[..., level] == CODES) & frames).sum(1).tolist()

    own = settings((8, 3, 2), schedule=schedule)
    generate(model, canvas(frames, LEVELS), model.conditioning(frames), items(3), own, watch)
    for level, steps in enumerate((8, 3, 2, 2)):
        expected = masked_counts(torch.tensor(lengths), steps, schedule).tolist()
        actual = [counts[level, step] for step in range(steps) if (level, step) in counts]
        assert actual == expected[: len(actual)]
        assert not any(any(row) for row in expected[len(actual) :])
    assert counts == mask_tokens


@pytest.mark.parametrize("critic", [False, True])
def test_decoding_masks_codes_as_training_does(critic: bool) -> None:
    model, lengths = make(self_critic=critic), [20, 13, 6]
    frames, known = valid_frames(lengths), some_codes(3)
    prompts = torch.tensor([5, 0, 5])
    prompt = known[:, :5].masked_fill(~valid_frames(prompts.tolist(), 5)[..., None], -1)
    inputs = record_inputs(model)
    starts: list[int] = []
    steps = (4, 3, 1)
    generated_codes = generate(
        model,
        canvas(frames, LEVELS, prompt),
        model.conditioning(frames),
        items(3),
        settings(steps),
        lambda level, step, codes, masked: starts.append(len(inputs)) if not step else None,
    )
    assert generated_codes.shape == (3, 20, LEVELS)
    for level, after in enumerate(starts):
        target_level = torch.full((3,), level)
        shown = mask_level(generated_codes, frames, prompts, target_level, items(3), CODES, constant).tokens
        calls = 2 if critic and steps[min(level, 2)] > 1 else 1  # the critic is called if codes are masked again
        assert torch.equal(inputs[after - calls][frames], shown[frames]), level
    # At no step does the model see a code of a finer level behind the prompt, nor a mask token at a coarser one.
    maskable = frames & (torch.arange(20) >= prompts[:, None])
    for number, codes in enumerate(inputs):
        masked = codes[maskable] == CODES
        level = int(masked.all(0).int().argmax()) if masked.all(0).any() else LEVELS
        assert masked[:, level:].all(), number
        assert not masked[:, : max(level - 1, 0)].any(), number


def test_the_last_pass_of_every_level_is_greedy_for_every_row() -> None:
    """Also for levels of one pass, and for a row that has fewer frames than the level has steps."""
    model, lengths = make(), [20, 13, 2]
    frames = valid_frames(lengths)
    conditioning, own = model.conditioning(frames), settings((6, 2, 1), temperature=5.0)
    states: list[tuple[int, Tensor]] = []
    generated_codes = generate(
        model,
        canvas(frames, LEVELS),
        conditioning,
        items(3),
        own,
        lambda level, step, codes, masked: states.append((level, codes)),
    )
    sampled, ends = 0, 0
    for level in range(LEVELS):
        target_level = torch.full((3,), level)
        before = mask_level(
            generated_codes, frames, torch.zeros(3).long(), target_level, items(3), CODES, constant
        ).tokens
        for after in (codes for number, codes in states if number == level):
            best, guesses = model(before, conditioning, target_level).argmax(-1), after[..., level]
            new = (before[..., level] == CODES) & (guesses != CODES) & frames
            for row in range(3):
                wrong = int((guesses[row] != best[row])[new[row]].sum())
                if new[row].any() and not (guesses[row] == CODES)[frames[row]].any():
                    ends += 1
                    assert wrong == 0, (level, row)
                sampled += wrong
            before = after
    assert ends == 3 * LEVELS
    assert sampled > 5  # the earlier passes sample


def test_an_item_is_generated_the_same_in_any_batch() -> None:
    model = make(**CLIP, self_conditioning=True, self_critic=True)
    lengths, clip, known = [20, 13, 1, 9], vectors(4), some_codes(4)
    own = settings((6, 3, 1), guidance_scale=2.5, guidance_schedule=linear, top_k=0.5, top_p=0.9)

    def generated(rows: slice, longest: int) -> Tensor:
        frames = valid_frames(lengths, 20)[rows, :longest]
        whole = canvas(frames, LEVELS, known[rows, :1, :2])
        return generate(model, whole, model.conditioning(frames, clip=clip[rows]), rng(rows), own)

    def rng(rows: slice) -> ItemRNG:
        numbers = range(4)[rows]
        return items(len(numbers), numbers[0])

    whole = generated(slice(0, 4), 20)
    assert (whole[~valid_frames(lengths)] == -1).all()
    for row, length in enumerate(lengths):
        assert torch.equal(generated(slice(row, row + 1), length)[0], whole[row, :length]), row
    assert torch.equal(torch.cat([generated(slice(0, 2), 20), generated(slice(2, 4), 20)]), whole)
    assert not torch.equal(generated(slice(1, 2), 20)[0], generated(slice(3, 4), 20)[0])


def test_prompts_of_all_or_fewer_quantizers_are_preserved() -> None:
    model, frames, known = make(), valid_frames([20, 13]), some_codes(2)
    for levels in (1, 2, LEVELS):
        prompt = known[:, :6, :levels].clone()
        prompt[1, 4:] = -1
        generated_codes = generate(
            model, canvas(frames, LEVELS, prompt), model.conditioning(frames), items(2), settings()
        )
        assert torch.equal(generated_codes[0, :6, :levels], known[0, :6, :levels])
        assert torch.equal(generated_codes[1, :4, :levels], known[1, :4, :levels])
        assert ((generated_codes >= 0) & (generated_codes < CODES))[frames].all()
    whole = known.masked_fill(~frames[..., None], -1)
    inputs = record_inputs(model)
    assert torch.equal(generate(model, whole, model.conditioning(frames), items(2), settings()), whole)
    assert not inputs  # nothing is left to generate


def test_a_prompt_changes_its_continuation() -> None:
    model, frames, known = make(), valid_frames([20]), some_codes(1)
    one, other = (
        generate(model, canvas(frames, LEVELS, codes), model.conditioning(frames), items(1), settings())[:, 6:]
        for codes in (known[:, :6], (known[:, :6] + 1) % CODES)
    )
    assert not torch.equal(one, other)


def test_guidance_extrapolates_from_null_conditioning() -> None:
    model, frames = make(**CLIP), valid_frames([20, 13])
    inputs = record_inputs(model)

    def generated(conditioning: dict[str, Tensor], guidance: float) -> Tensor:
        return generate(model, canvas(frames, LEVELS), conditioning, items(2), settings((1,), guidance_scale=guidance))

    conditioning = model.conditioning(frames, clip=vectors(2))
    plain, guided = generated(conditioning, 1.0), generated(conditioning, 4.0)
    assert [len(codes) for codes in inputs] == [2] * LEVELS + [4] * LEVELS
    assert not torch.equal(plain, guided)
    start = torch.full((2, 20, LEVELS), CODES)
    level = torch.tensor([0, 0])
    cond, uncond = (model(start, each, level) for each in (conditioning, model.conditioning(frames)))
    assert torch.equal(guided[..., 0][frames], (uncond + 4 * (cond - uncond)).argmax(-1)[frames])
    torch.testing.assert_close(generated(model.conditioning(frames), 4.0), generated(model.conditioning(frames), 1.0))
    with pytest.raises(UsageError, match=r"sample\.guidance_scale"):
        generate(make(), canvas(frames, LEVELS), make().conditioning(frames), items(2), settings(guidance_scale=2.0))


def test_the_critic_depends_on_conditioning_and_not_on_padding() -> None:
    model = make(**CLIP, self_critic=True)
    frames, codes, levels = valid_frames(LENGTHS), some_codes(3), torch.tensor([0, 1, 2])
    conditioning = model.conditioning(frames, clip=vectors(3))
    scores = model(codes, conditioning, levels, output="scores")
    assert scores.shape == (3, LONGEST)
    assert (model(codes, model.conditioning(frames), levels, output="scores") - scores).abs().max() > 1e-3
    other = codes.where(frames[..., None], (codes + 1) % CODES)
    torch.testing.assert_close(model(other, conditioning, levels, output="scores")[frames], scores[frames])
    where = frames & (torch.arange(LONGEST) % 2 == 0)
    torch.testing.assert_close(model(codes, conditioning, levels, where=where, output="scores"), scores[where])
    with pytest.raises(UsageError, match="self_critic"):
        make()(codes, make().conditioning(frames), levels, output="scores")


def test_self_conditioning_feeds_back_within_a_level() -> None:
    model, frames = make(self_conditioning=True), valid_frames([20, 13])
    previously: list[Tensor | None] = []
    outputs: list[Tensor] = []
    model.net.register_forward_pre_hook(lambda _, arguments: previously.append(arguments[2]))
    model.net.register_forward_hook(lambda _, arguments, output: outputs.append(output))
    generate(model, canvas(frames, LEVELS), model.conditioning(frames), items(2), settings((3, 2, 1)))
    assert len(previously) == 3 + 2 + 1 + 1
    for number, (previous, first) in enumerate(
        zip(previously, [True, False, False, True, False, True, True], strict=True)
    ):
        if first:
            assert previous is None
        else:
            assert previous is not None
            assert torch.equal(previous, outputs[number - 1])


def test_one_frame_is_a_clip() -> None:
    model, frames = make(**SEMANTIC), valid_frames([1])
    conditioning = model.conditioning(frames, semantic=torch.tensor([[4]]))
    generated_codes = generate(
        model, canvas(frames, LEVELS), conditioning, items(1), settings((16, 1), schedule=lambda p: 1 - p**2)
    )
    assert generated_codes.shape == (1, 1, LEVELS)
    assert ((generated_codes >= 0) & (generated_codes < CODES)).all()
    masked_codes = mask_codes(generated_codes, frames, items(1), CODES, lambda progress: 1 - progress)
    assert masked_codes.where.all()


def test_invalid_requests_are_refused() -> None:
    model, frames = make(), valid_frames([20, 4])
    assert [own.steps for own in level_settings(Sampling(), (16, 1), 4)] == [16, 1, 1, 1]
    with pytest.raises(UsageError, match=r"sample\.steps has 5 numbers for 4 quantizers"):
        level_settings(Sampling(), (1, 1, 1, 1, 1), 4)
    with pytest.raises(UsageError, match="longer than its clip"):
        canvas(frames, LEVELS, some_codes(2)[:, :6])
    with pytest.raises(UsageError, match="up to 4 quantizers"):
        canvas(frames, LEVELS, torch.zeros(2, 3, 5, dtype=torch.int64))
    wrong = canvas(frames, LEVELS)
    wrong[0, 0, 0] = CODES
    with pytest.raises(UsageError, match=r"model\.num_codes=11"):
        generate(model, wrong, model.conditioning(frames), items(2), settings())
    with pytest.raises(UsageError, match="do not fit"):
        generate(model, wrong[..., :2], model.conditioning(frames), items(2), settings())


# --- training and sampling ----------------------------------------------------------------------------------------


def test_a_trained_model_generates_what_it_is_conditioned_on() -> None:
    """Two kinds of clips, each with its own sequence of codes, conditioned on an embedding."""
    torch.manual_seed(0)
    model = SoundStorm(**{**SMALL, **CLIP, "dim": 32, "self_critic": True, "self_conditioning": True})
    length, kinds = 8, torch.eye(6)[:2]
    positions = torch.arange(length)[:, None] * torch.tensor([1, 2, 3, 5]) + torch.arange(LEVELS)
    sequences = torch.stack([positions % CODES, (positions * 2 + 5) % CODES])
    frames = valid_frames([length] * 16)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    codes, clip = sequences.repeat(8, 1, 1), kinds.repeat(8, 1)
    for step in range(150):
        rng = ItemRNG(1, [step] * 16, range(16))
        conditioning = model.conditioning(frames, clip=clip, keep=rng.uniform("keep") >= 0.1)
        masked_codes = mask_codes(codes, frames, rng, CODES)
        with torch.no_grad():
            before = model(masked_codes.tokens, conditioning, masked_codes.levels, output="vectors")
        before = before * (rng.uniform("helped") < 0.75)[:, None, None]
        logits = model(
            masked_codes.tokens, conditioning, masked_codes.levels, where=masked_codes.where, previous=before
        )
        loss = torch.nn.functional.cross_entropy(logits, masked_codes.targets)
        guesses = filters.sample_on_device(logits.detach(), rng.uniform("guess", length)[masked_codes.where])
        scores = model(
            masked_codes.filled(guesses), conditioning, masked_codes.levels, where=masked_codes.where, output="scores"
        )
        wrong = (guesses != masked_codes.targets).float()
        loss = loss + torch.nn.functional.binary_cross_entropy_with_logits(scores, wrong)
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        optimizer.zero_grad()
    model.eval()
    conditioning = model.conditioning(frames[:2], clip=kinds)
    generated_codes = generate(
        model, canvas(frames[:2], LEVELS), conditioning, items(2), settings((4, 1), guidance_scale=1.5)
    )
    assert (generated_codes == sequences).double().mean() > 0.9
    spoiled = sequences.clone()
    spoiled[:, 3, 0] = (spoiled[:, 3, 0] + 4) % CODES
    spoiled[..., 1:] = CODES
    scores = model(spoiled, conditioning, torch.tensor([0, 0]), output="scores")
    assert (scores[:, 3] > scores[:, [0, 1, 2, 4, 5, 6, 7]].amax(1)).all()
    # Without conditioning, it continues the sequence of the prompt.
    again = generate(
        model, canvas(frames[:2], LEVELS, sequences[:, :4]), model.conditioning(frames[:2]), items(2), settings((4, 1))
    )
    assert (again == sequences).double().mean() > 0.9
