"""Masked-token decoding: masks, sampled tokens, and independence of the batch."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from quintet.common.rng import ItemRNG
from quintet.errors import RunError, UsageError
from quintet.sampling.masked import (
    GUIDANCE_SCHEDULES,
    MASK_SCHEDULES,
    TEMPERATURE_SCHEDULES,
    Conditioning,
    Sampling,
    Schedule,
    constant,
    cosine,
    decode,
    linear,
    linear_growth,
    masked_counts,
    training_mask,
)

steady = settings(deadline=None, derandomize=True, max_examples=60)
"""The same examples in every session, however busy the machine."""

CODES = 11
MASK = CODES
Model = Callable[[Tensor, Conditioning, Tensor | None], tuple[Tensor, Tensor | None]]
"""As `Logits`, but with the logits of all positions, (batch, positions, codes)."""
ANY_SCHEDULE: dict[str, Schedule] = {
    **MASK_SCHEDULES,
    "all": constant,
    "none": torch.zeros_like,
    "half": lambda progress: 0.5 * torch.ones_like(progress),
    "a plain number": lambda _: 0.3,  # type: ignore[dict-item,return-value]
    "rising": linear_growth,
    "beyond": lambda progress: 3 - 6 * progress,
}


def items(count: int, first: int = 0, seed: int = 3) -> ItemRNG:
    return ItemRNG(seed, [0] * count, range(first, first + count))


def ragged(lengths: list[int], positions: int) -> Tensor:
    return torch.arange(positions)[None, :] < torch.tensor(lengths)[:, None]


def table_model(seed: int = 0, dtype: torch.dtype = torch.float64) -> Model:
    """Logits that depend on the first tokens, the position and the conditioning of the row."""
    generator = torch.Generator().manual_seed(seed)
    by_token = torch.randn(CODES + 1, CODES, generator=generator, dtype=dtype) * 2
    by_position = torch.randn(64, CODES, generator=generator, dtype=dtype) * 2
    by_condition = torch.randn(5, CODES, generator=generator, dtype=dtype) * 2

    def logits(tokens: Tensor, conditioning: Conditioning, previous: Tensor | None) -> tuple[Tensor, None]:
        assert previous is None
        context = by_token[tokens[:, :3]].sum(1, keepdim=True)  # not beyond the shortest row
        return context + by_position[: tokens.shape[1]] + by_condition[conditioning["text"]][:, None], None

    return logits


def constant_model(scores: Tensor) -> Model:
    """The same logits at all positions and in every step."""
    return lambda tokens, conditioning, previous: (scores.expand(*tokens.shape, -1), None)


def towards(target: Tensor, weight: float = 50.0) -> Model:
    """A model that knows the target; the conditioning is the row of the target."""

    def logits(tokens: Tensor, conditioning: Conditioning, previous: Tensor | None) -> tuple[Tensor, None]:
        return torch.nn.functional.one_hot(target[conditioning["row"]], CODES).float() * weight, None

    return logits


def counting(model: Model) -> tuple[Model, list[int]]:
    rows: list[int] = []

    def logits(tokens: Tensor, conditioning: Conditioning, previous: Tensor | None) -> tuple[Tensor, Tensor | None]:
        rows.append(len(tokens))
        return model(tokens, conditioning, previous)

    return logits, rows


def text(count: int, value: int | None = None) -> dict[str, Tensor]:
    return {"text": torch.arange(count) % 5 if value is None else torch.full((count,), value)}


# Schedules and counts


def test_schedules_run_from_their_start_to_their_end() -> None:
    ends = torch.tensor([0.0, 0.5, 1.0], dtype=torch.float64)
    falling = [
        MASK_SCHEDULES["cosine"](ends),
        MASK_SCHEDULES["linear"](ends),
        TEMPERATURE_SCHEDULES["linear"](ends),
        GUIDANCE_SCHEDULES["falling"](ends),
    ]
    rising = [GUIDANCE_SCHEDULES["linear"](ends), GUIDANCE_SCHEDULES["cosine"](ends)]
    for values in falling:
        assert values[[0, 2]].tolist() == pytest.approx([1, 0])
    for values in rising:
        assert values.tolist() == pytest.approx([0, 0.5, 1])
    assert falling[0][1].item() == pytest.approx(math.sqrt(0.5))
    assert (
        TEMPERATURE_SCHEDULES["constant"](ends).tolist() == GUIDANCE_SCHEDULES["constant"](ends).tolist() == [1, 1, 1]
    )


@steady
@given(
    lengths=st.lists(st.integers(0, 300), min_size=1, max_size=5),
    steps=st.integers(1, 40),
    name=st.sampled_from(sorted(ANY_SCHEDULE)),
)
def test_counts_decrease_by_at_least_one_to_zero(lengths: list[int], steps: int, name: str) -> None:
    counts = masked_counts(torch.tensor(lengths), steps, ANY_SCHEDULE[name])
    assert counts.shape == (steps, len(lengths))
    assert counts.dtype == torch.int64
    before = torch.tensor(lengths)
    for row in counts:
        assert (row >= 0).all()
        assert ((row < before) | (before == 0)).all()
        before = row
    assert before.sum() == 0


def test_counts_follow_the_schedule() -> None:
    assert masked_counts(torch.tensor([256]), 4, cosine)[:, 0].tolist() == [237, 181, 98, 0]
    assert masked_counts(torch.tensor([100, 3]), 5, linear).tolist() == [[80, 2], [60, 1], [40, 0], [20, 0], [0, 0]]


# Training


@steady
@given(lengths=st.lists(st.integers(0, 40), min_size=1, max_size=6), name=st.sampled_from(sorted(ANY_SCHEDULE)))
def test_training_masks_valid_tokens_and_at_least_one(lengths: list[int], name: str) -> None:
    valid = ragged(lengths, 40)
    masked = training_mask(items(len(lengths)), valid, ANY_SCHEDULE[name])
    assert masked.dtype == torch.bool
    assert not (masked & ~valid).any()
    assert torch.equal(masked.any(1), valid.any(1))


def test_training_counts_are_a_fraction_of_the_length() -> None:
    lengths = [40, 7, 1, 0]
    valid = ragged(lengths, 40)
    assert training_mask(items(4), valid, lambda u: 0.25 * torch.ones_like(u)).sum(1).tolist() == [10, 2, 1, 0]
    assert torch.equal(training_mask(items(4), valid, constant), valid)


@pytest.mark.parametrize(("schedule", "mean", "median"), [(cosine, 2 / math.pi, 0.7071), (linear, 0.5, 0.5)])
def test_training_fractions_are_distributed_as_the_schedule(schedule: Schedule, mean: float, median: float) -> None:
    fractions = training_mask(items(4000), torch.ones(4000, 100, dtype=torch.bool), schedule).double().mean(1)
    assert fractions.mean().item() == pytest.approx(mean, abs=5 * 0.31 / 4000**0.5)
    assert fractions.median().item() == pytest.approx(median, abs=0.04)


def test_training_masks_all_positions_equally_often() -> None:
    masked = training_mask(items(4000), torch.ones(4000, 20, dtype=torch.bool), cosine).double()
    assert masked.mean(0).tolist() == pytest.approx([masked.mean().item()] * 20, abs=5 * 0.5 / 4000**0.5)
    assert abs(torch.corrcoef((masked - masked.mean(1, keepdim=True))[:, :2].T)[0, 1]) < 0.2


def test_training_mask_depends_only_on_the_item() -> None:
    valid = ragged([9, 30, 17, 24], 30)
    whole = training_mask(items(4), valid, cosine)
    parts = [training_mask(items(1, first), valid[first : first + 1], cosine) for first in range(4)]
    assert torch.equal(whole, torch.cat(parts))
    longer = training_mask(items(4), torch.nn.functional.pad(valid, (0, 13)), cosine)
    assert torch.equal(longer, torch.nn.functional.pad(whole, (0, 13)))
    assert not torch.equal(whole, training_mask(items(4), valid, cosine, name="other"))


def test_spans_mask_as_many_positions_in_fewer_runs() -> None:
    valid = ragged([90, 31, 2, 1], 90)
    rows = valid.repeat(500, 1)
    third = lambda progress: torch.full_like(progress, 1 / 3)  # noqa: E731
    single, spans = (training_mask(items(2000), rows, third, span=span) for span in (1, 3))
    assert torch.equal(single.sum(1), spans.sum(1))
    assert not (spans & ~rows).any()
    starts = [
        (masked[::4, 1:] & ~masked[::4, :-1]).sum().item() + masked[::4, 0].sum().item() for masked in (single, spans)
    ]
    # 30 of 90 single positions make 20 runs; spans of three make at most ten, except at edges and for the last span.
    assert starts[0] / 500 == pytest.approx(20, abs=1)
    assert 5 < starts[1] / 500 < 11
    often = spans[::4].double().mean(0)
    assert often.tolist() == pytest.approx([1 / 3] * 90, abs=5 * 0.5 / 500**0.5)
    assert torch.equal(training_mask(items(2, 6), rows[6:8], third, span=3), spans[6:8])


# Guidance


def run(model: Model, count: int = 4, positions: int = 12, **changes: object) -> Tensor:
    known = {key: changes.pop(key) for key in list(changes) if key in Sampling.__dataclass_fields__}
    arguments: dict[str, object] = {
        "tokens": torch.zeros(count, positions, dtype=torch.long),
        "generate": torch.ones(count, positions, dtype=torch.bool),
        "mask_id": MASK,
        "rng": items(count),
        "settings": Sampling(**{"steps": 6, **known}),  # type: ignore[arg-type]
        "cond": text(count),
        **changes,
    }

    def logits(
        tokens: Tensor, conditioning: Conditioning, where: Tensor, previous: Tensor | None
    ) -> tuple[Tensor, Tensor | None]:
        # Only masked positions are requested.
        assert (tokens.flatten()[where] == arguments["mask_id"]).all()
        scores, carry = model(tokens, conditioning, previous)
        return scores.flatten(0, 1)[where], carry

    return decode(logits, **arguments)  # type: ignore[arg-type]


def test_guidance_scale_one_is_a_single_unguided_pass() -> None:
    plain = run(table_model())
    model, rows = counting(table_model())
    assert torch.equal(run(model, guidance_scale=1.0, uncond=text(4, 0)), plain)
    assert rows == [4] * 6


def test_guidance_is_one_pass_of_twice_the_rows() -> None:
    model, rows = counting(table_model())
    result = run(model, guidance_scale=3.0, uncond=text(4, 0))
    assert rows == [8] * 6
    assert not torch.equal(result, run(table_model()))


def test_guidance_follows_its_schedule() -> None:
    """Off for the first half: those steps take a single pass and equal the unguided ones."""
    model, rows = counting(table_model())
    states: list[Tensor] = []
    plain: list[Tensor] = []
    late = Sampling(steps=6, guidance_scale=5.0, guidance_schedule=lambda progress: (progress > 0.5).double())
    run(model, settings=late, uncond=text(4, 0), on_step=lambda _, tokens, __: states.append(tokens))
    run(table_model(), on_step=lambda _, tokens, __: plain.append(tokens))
    assert rows == [4, 4, 4, 8, 8, 8]
    assert torch.equal(states[2], plain[2])
    assert not torch.equal(states[-1], plain[-1])
    grown = Sampling(guidance_scale=3.0, guidance_schedule=linear_growth)
    assert [grown.guidance_at(progress) for progress in (0.0, 0.25, 1.0)] == [1.0, 1.5, 3.0]


def test_the_conditional_pass_is_the_first_half() -> None:
    """The code of the conditioning becomes more likely, and the code of the negative less likely."""
    favoured, avoided = 2, 7

    def logits(tokens: Tensor, conditioning: Conditioning, previous: Tensor | None) -> tuple[Tensor, None]:
        return torch.nn.functional.one_hot(conditioning["text"], CODES)[:, None].expand(
            *tokens.shape, -1
        ).double(), None

    def fractions(guidance_scale: float, negative: int) -> tuple[float, float]:
        result = run(
            logits, 8, 200, cond=text(8, favoured), uncond=text(8, negative), guidance_scale=guidance_scale, steps=1
        )
        return (result == favoured).double().mean().item(), (result == avoided).double().mean().item()

    favoured_plain, avoided_plain = fractions(1.0, avoided)
    favoured_guided, avoided_guided = fractions(3.0, avoided)
    assert favoured_guided > 2 * favoured_plain
    assert avoided_guided < avoided_plain / 2
    assert fractions(3.0, 5)[1] > avoided_guided  # the negative prompt made it rare


def test_uncond_contains_only_tensors_that_differ() -> None:
    seen: list[Conditioning] = []

    def logits(tokens: Tensor, conditioning: Conditioning, previous: Tensor | None) -> tuple[Tensor, None]:
        seen.append(conditioning)
        return torch.zeros(*tokens.shape, CODES), None

    both = {"text": torch.tensor([1, 2]), "valid": torch.tensor([[True], [False]])}
    run(logits, 2, 3, cond=both, uncond={"text": torch.tensor([0, 0])}, guidance_scale=2.0, steps=1)
    assert seen[0]["text"].tolist() == [1, 2, 0, 0]
    assert seen[0]["valid"].tolist() == [[True], [False]] * 2
    with pytest.raises(ValueError, match="txt"):
        run(logits, 2, 3, cond=both, uncond={"txt": torch.tensor([0, 0])}, guidance_scale=2.0)


def test_guidance_without_uncond_is_refused() -> None:
    with pytest.raises(UsageError, match=r"sample\.guidance_scale is 3\.0"):
        run(table_model(), guidance_scale=3.0)


def test_the_carry_is_passed_to_the_next_step() -> None:
    """Row by row, also where guidance begins after some steps and ends before the last."""
    carried: list[list[int] | None] = []

    def logits(tokens: Tensor, conditioning: Conditioning, previous: Tensor | None) -> tuple[Tensor, Tensor]:
        carried.append(None if previous is None else previous.tolist())
        return torch.zeros(*tokens.shape, CODES), 10 * len(carried) + conditioning["text"]

    middle = Sampling(steps=4, guidance_scale=2.0, guidance_schedule=lambda u: ((u > 0.3) & (u < 0.9)).double())
    run(logits, 2, 8, settings=middle, cond=text(2), uncond=text(2, 4))
    assert carried == [None, [10, 11, 10, 11], [20, 21, 24, 24], [30, 31]]


# Decoding


@pytest.mark.parametrize("name", sorted(ANY_SCHEDULE))
@pytest.mark.parametrize("use_critic", [False, True], ids=["confidence", "critic"])
def test_every_step_follows_the_mask_schedule(name: str, use_critic: bool) -> None:
    valid = ragged([20, 13, 4, 20, 0], 20)
    generate = torch.rand(5, 20, generator=torch.Generator().manual_seed(0)) < 0.7
    generate[3] = False  # nothing to do in this row
    tokens = torch.arange(100).view(5, 20) % CODES
    counts = masked_counts((generate & valid).sum(1), 7, ANY_SCHEDULE[name])
    steps: list[int] = []

    def observe(step: int, now: Tensor, masked: Tensor) -> None:
        steps.append(step)
        assert torch.equal(masked.sum(1), counts[step])
        assert not (masked & ~(generate & valid)).any()
        assert torch.equal(now == MASK, masked)
        assert torch.equal(now[~(generate & valid)], tokens[~(generate & valid)])

    result = run(
        table_model(),
        tokens=tokens,
        generate=generate,
        valid=valid,
        rng=items(5),
        cond=text(5),
        settings=Sampling(steps=7, schedule=ANY_SCHEDULE[name]),
        critic=(lambda now, conditioning: now.double()) if use_critic else None,
        on_step=observe,
    )
    assert steps == list(range(int(counts.any(1).sum()) + 1))  # no pass after the last token
    assert (result < CODES).all()
    assert torch.equal(result[~(generate & valid)], tokens[~(generate & valid)])


def test_unmasked_tokens_are_final() -> None:
    states: list[tuple[Tensor, Tensor]] = []
    run(
        table_model(),
        positions=40,
        choice_temperature=50.0,
        on_step=lambda _, tokens, masked: states.append((tokens, masked)),
    )
    for (before, masked_before), (after, masked_after) in pairwise(states):
        assert not (masked_after & ~masked_before).any()
        assert torch.equal(after[~masked_before], before[~masked_before])


def test_with_nothing_to_make_the_model_is_not_asked() -> None:
    model, rows = counting(table_model())
    tokens = torch.full((4, 12), 5)
    result = run(model, tokens=tokens, generate=torch.zeros(4, 12, dtype=torch.bool))
    assert rows == []
    assert torch.equal(result, tokens)


def test_what_stood_where_tokens_are_made_is_hidden_from_the_model() -> None:
    seen: list[Tensor] = []

    def logits(tokens: Tensor, conditioning: Conditioning, previous: Tensor | None) -> tuple[Tensor, None]:
        seen.append(tokens)
        return torch.zeros(*tokens.shape, CODES), None

    generate = torch.arange(12).expand(4, -1) % 2 == 0
    run(logits, tokens=torch.full((4, 12), 5), generate=generate)
    assert torch.equal(seen[0], torch.full((4, 12), 5).masked_fill(generate, MASK))


def test_input_tokens_are_not_modified() -> None:
    tokens, generate = torch.full((4, 12), 5), torch.ones(4, 12, dtype=torch.bool)
    run(table_model(), tokens=tokens, generate=generate)
    assert (tokens == 5).all()
    assert generate.all()


def test_a_perfect_model_decodes_its_target() -> None:
    target = torch.randint(CODES, (4, 30), generator=torch.Generator().manual_seed(1))
    row = {"row": torch.arange(4)}
    assert torch.equal(run(towards(target), 4, 30, cond=row), target)
    filtered = run(towards(target), 4, 30, cond=row, top_k=3, top_p=0.9, temperature=0.5)
    assert torch.equal(filtered, target)


@pytest.mark.parametrize("guidance_scale", [1.0, 2.0])
@pytest.mark.parametrize("use_critic", [False, True], ids=["confidence", "critic"])
def test_an_item_does_not_depend_on_the_batch(guidance_scale: float, use_critic: bool) -> None:
    count, positions = 6, 20
    options = {"guidance_scale": guidance_scale, "top_p": 0.95, "top_k": 8}
    critic = (lambda now, conditioning: (now * 7 % 5).double()) if use_critic else None
    valid = ragged([20, 13, 4, 20, 9, 17], positions)
    tokens = torch.zeros(count, positions, dtype=torch.long)

    def part(rows: list[int], longer: int = 0) -> Tensor:
        pad = (0, longer)
        result = run(
            table_model(),
            tokens=torch.nn.functional.pad(tokens[rows], pad),
            generate=torch.ones(len(rows), positions + longer, dtype=torch.bool),
            valid=torch.nn.functional.pad(valid[rows], pad),
            rng=ItemRNG(3, [0] * len(rows), rows),
            cond={"text": torch.tensor(rows) % 5},
            uncond={"text": torch.zeros(len(rows), dtype=torch.long)},
            critic=critic,
            **options,
        )
        assert (result[:, positions:] == 0).all()
        return result[:, :positions]

    whole = part(list(range(count)))
    assert torch.equal(torch.cat([part([0, 1]), part([2]), part([3, 4, 5])]), whole)
    order = [4, 0, 5, 2, 1, 3]
    assert torch.equal(part(order), whole[order])
    assert torch.equal(part(list(range(count)), longer=9), whole)


def test_seeds_and_names_differ_and_repeat() -> None:
    first = run(table_model())
    assert torch.equal(run(table_model()), first)
    assert not torch.equal(run(table_model(), rng=items(4, seed=4)), first)
    assert not torch.equal(run(table_model(), name="second stage"), first)


def test_sampling_uses_no_torch_rng_and_no_gradients() -> None:
    weight = torch.zeros(CODES, requires_grad=True)
    before = torch.get_rng_state()
    seen: list[bool] = []

    def logits(tokens: Tensor, conditioning: Conditioning, previous: Tensor | None) -> tuple[Tensor, None]:
        scores = weight.expand(*tokens.shape, -1) * 2
        seen.append(scores.requires_grad)
        return scores, None

    run(logits, top_k=5, top_p=0.5)
    assert not any(seen)
    assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_samples_follow_the_distribution(dtype: torch.dtype) -> None:
    """One step at temperature 1: the chi-square of 40,000 samples stays below the 1 in 10,000 bound of 10 degrees."""
    probability = torch.tensor([1, 2, 3, 4, 5, 6, 7, 8, 16, 40, 0], dtype=torch.float64)
    scores = (probability / probability.sum()).log().to(dtype)
    expected = scores.double().softmax(-1) * 40_000
    result = run(constant_model(scores), 20, 2000, steps=1, choice_temperature=0.0)
    counts = result.flatten().bincount(minlength=CODES).double()
    assert counts[-1] == 0  # a code without probability never appears
    assert ((counts - expected)[:-1].square() / expected[:-1]).sum() < 35.6


def test_temperature_and_filters_change_the_distribution() -> None:
    scores = torch.tensor([0.0, 0, 0, 0, 0, 0, 0, 0, 1, 2, 3], dtype=torch.float64)
    hot = run(constant_model(scores), 20, 1000, steps=1, temperature=2.0)
    probability = (scores / 2).softmax(-1)[-1].item()
    assert (hot == 10).double().mean().item() == pytest.approx(probability, abs=5 * (probability / 20_000) ** 0.5)
    three = run(constant_model(scores), 20, 1000, steps=1, top_k=3)
    assert set(three.unique().tolist()) == {8, 9, 10}
    probability = scores[-3:].softmax(-1)[-1].item()
    assert (three == 10).double().mean().item() == pytest.approx(probability, abs=5 * (probability / 20_000) ** 0.5)
    assert set(run(constant_model(scores), 20, 1000, steps=1, top_p=0.6).unique().tolist()) == {9, 10}


@pytest.mark.parametrize("temperature", [0.0, 1e-300, 1e-8])
def test_temperature_zero_is_greedy(temperature: float) -> None:
    scores = torch.tensor([0.0, 1, 2, 1, 2.01, 0, 0, 0, 0, 0, 0])
    assert (run(constant_model(scores), temperature=temperature) == 4).all()


def test_temperature_decreasing_to_zero_ends_greedy() -> None:
    scores = torch.tensor([0.0, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0])
    states: list[tuple[Tensor, Tensor]] = []
    result = run(
        constant_model(scores),
        8,
        60,
        temperature_schedule=linear,
        on_step=lambda _, tokens, masked: states.append((tokens, masked)),
    )
    last = states[-2][1]  # unmasked in the last step
    assert last.any()
    assert (result[last] == 4).all()
    assert (result[~last] != 4).any()
    assert (run(constant_model(scores), steps=1, temperature_schedule=linear) == 4).all()


def test_greedy_last_step_applies_per_row() -> None:
    """A row with fewer tokens than steps ends before the last step, and its last token is greedy too."""
    scores = torch.tensor([0.0, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0])
    rows, lengths = 40, torch.tensor([3, 30] * 20)
    left: list[Tensor] = []
    result = run(
        constant_model(scores),
        rows,
        30,
        steps=8,
        greedy_last_step=True,
        valid=ragged(lengths.tolist(), 30),
        on_step=lambda _, tokens, masked: left.append(masked),
    )
    ended = torch.stack([masked.any(1) for masked in left]).sum(0)  # steps after which something was masked
    assert ended[0] < ended[1]
    for row, steps in enumerate(ended.tolist()):
        last = left[steps - 1][row]
        assert (result[row][last] == 4).all()
    before = torch.stack([left[steps - 1][row] for row, steps in enumerate(ended.tolist())])
    others = ragged(lengths.tolist(), 30) & ~before
    assert (result[others] != 4).any()


def test_noise_changes_which_confident_tokens_are_kept() -> None:
    sharpness = torch.linspace(0, 8, 16, dtype=torch.float64)[torch.tensor([3, 14, 7, 0, 9, 12, 1, 5, *range(8)])]
    scores = torch.zeros(16, CODES, dtype=torch.float64)
    scores[:, 0] = sharpness
    scores -= 3 * sharpness[:, None]  # probability counts, not the size of the logits
    first: dict[float, Tensor] = {}

    def model(tokens: Tensor, conditioning: Conditioning, previous: Tensor | None) -> tuple[Tensor, None]:
        return scores.expand(len(tokens), -1, -1), None

    for noise in (0.0, 1000.0):

        def observe(step: int, tokens: Tensor, masked: Tensor, noise: float = noise) -> None:
            if step == 0:
                first[noise] = masked

        run(model, 4, 16, steps=2, schedule=linear, top_k=1, choice_temperature=noise, on_step=observe)
    expected = sharpness < sharpness.sort().values[8]
    assert expected.sum() == 8
    assert torch.equal(first[0.0], expected.expand(4, -1))
    assert len({tuple(row.tolist()) for row in first[1000.0]}) == 4  # nearly all noise: each row its own choice


def test_noise_decreases_with_the_remaining_steps() -> None:
    """After the first of two steps half of it is left, after the first of four three quarters."""

    def after_one_step(steps: int, noise: float) -> Tensor:
        states: list[Tensor] = []
        schedule = ANY_SCHEDULE["half"]
        options = {"steps": steps, "choice_temperature": noise, "schedule": schedule}
        run(table_model(), 8, 60, on_step=lambda _, tokens, __: states.append(tokens), **options)
        return states[0]

    assert torch.equal(after_one_step(2, 6.0), after_one_step(4, 4.0))
    assert not torch.equal(after_one_step(2, 6.0), after_one_step(4, 6.0))


def test_a_critic_regenerates_wrong_tokens() -> None:
    """The model errs in the first step only; a critic that knows the target finds those tokens."""
    target = torch.randint(CODES, (4, 30), generator=torch.Generator().manual_seed(1))
    fixed = torch.zeros(4, 30, dtype=torch.bool)
    fixed[:, :5] = True  # fixed, and wrong according to the critic
    tokens = torch.where(fixed, (target + 1) % CODES, torch.zeros_like(target))

    def forgetful() -> Model:
        calls: list[int] = []

        def logits(now: Tensor, conditioning: Conditioning, previous: Tensor | None) -> tuple[Tensor, None]:
            calls.append(1)
            answer = target.clone()
            if len(calls) == 1:
                answer[:, ::3] = (answer[:, ::3] + 1) % CODES
            return torch.nn.functional.one_hot(answer, CODES).float() * 50, None

        return logits

    scored: list[Tensor] = []

    def critic(now: Tensor, conditioning: Conditioning) -> Tensor:
        assert (now < CODES).all()  # a critic sees rows without masks
        scored.append(now)
        return 20.0 * (now != target)

    options = {"tokens": tokens, "generate": ~fixed, "choice_temperature": 0.0, "steps": 4, "schedule": linear}
    result = run(forgetful(), 4, 30, critic=critic, **options)
    assert torch.equal(result[~fixed], target[~fixed])
    assert torch.equal(result[fixed], tokens[fixed])
    assert len(scored) == 3  # not after the last step
    assert not torch.equal(run(forgetful(), 4, 30, **options)[~fixed], target[~fixed])


def test_a_critic_may_mask_kept_tokens() -> None:
    masks: list[Tensor] = []

    def critic(tokens: Tensor, conditioning: Conditioning) -> Tensor:
        return torch.arange(30.0).expand(4, -1) * (1 if len(masks) % 2 else -1)

    run(table_model(), 4, 30, critic=critic, choice_temperature=0.0, on_step=lambda _, __, masked: masks.append(masked))
    assert (masks[1] & ~masks[0]).any()


def test_noise_samples_by_the_score_of_the_critic() -> None:
    """Gumbel noise of scale 1: the masked token is sampled with the softmax of the scores."""
    count = 4000
    scores = torch.tensor([0.0] * 7 + [math.log(7)])
    masks: list[Tensor] = []
    run(
        constant_model(torch.zeros(CODES)),
        count,
        8,
        steps=2,
        choice_temperature=2.0,  # half of it is left after one of two steps
        schedule=lambda progress: torch.full_like(progress, 1 / 8),
        critic=lambda tokens, conditioning: scores.expand(len(tokens), -1),
        on_step=lambda _, __, masked: masks.append(masked),
    )
    assert (masks[0].sum(1) == 1).all()
    assert masks[0][:, 7].double().mean().item() == pytest.approx(0.5, abs=5 * 0.5 / count**0.5)


def test_the_mask_token_is_never_sampled() -> None:
    scores = torch.zeros(CODES)
    scores[3] = 90.0
    result = run(constant_model(scores), mask_id=3)
    assert not (result == 3).any()
    assert (result < CODES).all()


def test_an_input_token_may_equal_the_mask_token() -> None:
    tokens = torch.full((4, 12), MASK)
    generate = torch.arange(12).expand(4, -1) > 5
    result = run(table_model(), tokens=tokens, generate=generate)
    assert (result[:, :6] == MASK).all()
    assert (result[:, 6:] < CODES).all()


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_non_finite_logits_are_refused(bad: float) -> None:
    scores = torch.zeros(CODES)
    scores[2] = bad
    with pytest.raises(RunError, match="not finite"):
        run(constant_model(scores))


def test_padding_may_have_any_logits() -> None:
    scores = torch.zeros(4, 12, CODES)
    scores[:, 8:] = math.nan
    result = run(lambda tokens, conditioning, previous: (scores, None), valid=ragged([8] * 4, 12))
    assert (result[:, 8:] == 0).all()


def test_a_critic_that_returns_nan_cannot_mask_fixed_tokens() -> None:
    fixed = torch.arange(12).expand(4, -1) < 4
    masks: list[Tensor] = []
    run(
        table_model(),
        generate=~fixed,
        critic=lambda tokens, conditioning: torch.full(tokens.shape, math.nan),
        on_step=lambda _, __, masked: masks.append(masked),
    )
    assert not any((masked & fixed).any() for masked in masks)
    assert torch.equal(
        torch.stack([masked.sum(1) for masked in masks])[:, 0], masked_counts(torch.tensor([8]), 6)[:, 0]
    )


def test_tensors_that_disagree_are_refused() -> None:
    with pytest.raises(ValueError, match="disagree"):
        run(table_model(), rng=items(3))
    with pytest.raises(ValueError, match="disagree"):
        run(table_model(), generate=torch.ones(4, 11, dtype=torch.bool))


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("steps", 0),
        ("steps", 2.5),
        ("temperature", -0.1),
        ("temperature", math.nan),
        ("top_k", 0),
        ("top_k", 0.0),
        ("top_k", 1.5),
        ("top_p", 0.0),
        ("top_p", 1.1),
        ("guidance_scale", math.inf),
        ("guidance_scale", -1.0),
        ("choice_temperature", -1.0),
        ("schedule", "cosine"),
        ("temperature_schedule", 0.5),
        ("guidance_schedule", "linear"),
    ],
)
def test_invalid_settings_name_their_key(key: str, value: object) -> None:
    with pytest.raises(UsageError, match=rf"sample\.{key} is "):
        replace(Sampling(), **{key: value})  # type: ignore[arg-type]


def test_a_schedule_with_non_finite_values_is_refused() -> None:
    broken: Callable[[Tensor], Tensor] = lambda progress: progress / 0  # noqa: E731
    with pytest.raises(UsageError, match="non-finite"):
        run(table_model(), schedule=broken)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_a_device_decodes_under_deterministic_algorithms() -> None:
    target = torch.randint(CODES, (4, 30), generator=torch.Generator().manual_seed(1)).cuda()
    before = torch.are_deterministic_algorithms_enabled()
    torch.use_deterministic_algorithms(True)
    try:
        result = run(
            towards(target),
            tokens=torch.zeros_like(target),
            generate=torch.ones_like(target, dtype=torch.bool),
            cond={"row": torch.arange(4).cuda()},
            top_p=0.9,
        )
    finally:
        torch.use_deterministic_algorithms(before)
    assert torch.equal(result, target)


def test_random_choices_never_change() -> None:
    """Recorded values: an old run must mask and generate the same tokens when it is resumed."""
    assert training_mask(items(3), torch.ones(3, 8, dtype=torch.bool), cosine).long().tolist() == [
        [1, 1, 1, 1, 0, 1, 1, 1],
        [1, 1, 1, 1, 1, 1, 1, 0],
        [1, 1, 1, 1, 1, 1, 1, 1],
    ]
    assert run(constant_model(torch.zeros(CODES)), 2, 8).tolist() == [
        [2, 6, 7, 7, 2, 7, 3, 4],
        [4, 1, 4, 5, 6, 8, 7, 3],
    ]
