"""Autoregressive decoding: sampled tokens, ends of rows, and independence of the batch."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import pytest
import torch
from torch import Tensor

from quintet.common.rng import ItemRNG
from quintet.errors import RunError, UsageError
from quintet.sampling.autoregressive import Decoded, Sampling, decode
from quintet.sampling.guidance import Conditioning

CODES = 9
END = CODES
GREEDY = Sampling(temperature=0.0)


class TableRows:
    """Logits that depend on the last two tokens, the position and the conditioning of the row."""

    def __init__(self, conditioning: Conditioning, batch: int, end_score: float = 0.0) -> None:
        generator = torch.Generator().manual_seed(0)
        self.by_token = torch.randn(2, CODES, CODES + 1, generator=generator, dtype=torch.float64) * 2
        self.by_position = torch.randn(64, CODES + 1, generator=generator, dtype=torch.float64) * 2
        self.by_text = torch.randn(5, CODES + 1, generator=generator, dtype=torch.float64) * 2
        self.text = conditioning.get("text", torch.zeros(batch, dtype=torch.int64))
        self.seen = torch.empty(batch, 0, dtype=torch.int64)
        self.end_score = end_score
        self.requested: list[tuple[int, int]] = []

    def advance(self, tokens: Tensor) -> Tensor:
        assert len(tokens) == len(self.seen)
        self.requested.append(tuple(tokens.shape))  # type: ignore[arg-type]
        self.seen = torch.cat([self.seen, tokens], dim=1)
        scores = self.by_text[self.text] + self.by_position[self.seen.shape[1]]
        for back in range(min(2, self.seen.shape[1])):
            scores = scores + self.by_token[back, self.seen[:, -1 - back]]
        scores[:, END] += self.end_score
        return scores

    def select(self, indices: Tensor) -> None:
        self.seen, self.text = self.seen[indices], self.text[indices]


class ConstantRows:
    """The same logits in every step."""

    def __init__(self, scores: Tensor, batch: int) -> None:
        self.scores = scores.expand(batch, -1)

    def advance(self, tokens: Tensor) -> Tensor:
        return self.scores

    def select(self, indices: Tensor) -> None:
        self.scores = self.scores[indices]


def items(numbers: Sequence[int]) -> ItemRNG:
    return ItemRNG(3, [0] * len(numbers), numbers)


def padded(prompts: Sequence[Sequence[int]]) -> tuple[Tensor, Tensor]:
    width = max((len(prompt) for prompt in prompts), default=0)
    rows = torch.tensor([[*prompt, *[7] * (width - len(prompt))] for prompt in prompts], dtype=torch.int64)
    return rows.view(len(prompts), width), torch.tensor([len(prompt) for prompt in prompts], dtype=torch.int64)


def run(prompts: Sequence[Sequence[int]] = ((),) * 4, begin: Any = TableRows, **changes: Any) -> Decoded:
    tokens, lengths = padded(prompts)
    arguments: dict[str, Any] = {
        "end_id": END,
        "max_length": 16,
        "rng": items(range(len(prompts))),
        "settings": Sampling(),
        "cond": {"text": torch.arange(len(prompts)) % 5},
    }
    return decode(begin, tokens, lengths, **{**arguments, **changes})


def rows_of(decoded: Decoded) -> list[list[int]]:
    return [row[:length].tolist() for row, length in zip(decoded.tokens, decoded.lengths.tolist(), strict=True)]


def test_greedy_takes_the_most_likely_token_until_the_end() -> None:
    result = run(settings=GREEDY)
    for number, (row, ended) in enumerate(zip(rows_of(result), result.ended.tolist(), strict=True)):
        model = TableRows({"text": torch.tensor([number % 5])}, 1)
        naive: list[int] = []
        new = torch.empty(1, 0, dtype=torch.int64)
        stopped = False
        while len(naive) < 16 and not stopped:
            new = model.advance(new).argmax(-1)[:, None]
            stopped = new.item() == END
            naive += [] if stopped else [int(new.item())]
        assert row == naive
        assert ended == stopped
    assert (result.tokens[torch.arange(16) >= result.lengths[:, None]] == END).all()


def test_ended_rows_are_not_computed() -> None:
    begun: list[TableRows] = []

    def begin(conditioning: Conditioning, batch: int) -> TableRows:
        begun.append(TableRows(conditioning, batch, end_score=2.0))
        return begun[-1]

    result = run(((),) * 12, begin, max_length=20)
    lengths = result.lengths.tolist()
    assert len(set(lengths)) > 3
    requested = [rows for rows, _ in begun[0].requested]
    assert requested == [sum(length >= position for length in lengths) for position in range(len(requested))]
    assert sum(requested) == sum(
        length + bool(ended) for length, ended in zip(lengths, result.ended.tolist(), strict=True)
    )


@pytest.mark.parametrize("guidance_scale", [1.0, 2.5])
@pytest.mark.parametrize(
    "options", [{"temperature": 0.0}, {"top_p": 0.9}, {"top_k": 4, "temperature": 0.7}], ids=["greedy", "p", "k"]
)
def test_an_item_does_not_depend_on_the_batch(guidance_scale: float, options: dict[str, Any]) -> None:
    prompts: list[list[int]] = [[1, 2, 3], [], [4], [5, 6, 7, 8, 0, 1], [2] * 16, []]
    settings = Sampling(guidance_scale=guidance_scale, **options)

    def part(numbers: list[int]) -> list[list[int]]:
        return rows_of(
            run(
                [prompts[number] for number in numbers],
                rng=items(numbers),
                settings=settings,
                cond={"text": torch.tensor(numbers) % 5},
                uncond={"text": torch.full((len(numbers),), 4)},
            )
        )

    whole = part(list(range(6)))
    assert [row[: len(prompt)] for row, prompt in zip(whole, prompts, strict=True)] == prompts
    assert part([5, 3, 4]) == [whole[5], whole[3], whole[4]]
    assert [part([number])[0] for number in range(6)] == whole


def test_seeds_and_names_change_the_rows() -> None:
    one = rows_of(run())
    assert rows_of(run()) == one
    assert rows_of(run(name="other")) != one
    assert rows_of(run(rng=ItemRNG(4, [0] * 4, range(4)))) != one


def test_a_shorter_limit_gives_the_beginning() -> None:
    longer, shorter = rows_of(run(max_length=16)), run(max_length=5)
    assert rows_of(shorter) == [row[:5] for row in longer]
    assert shorter.ended.tolist() == [len(row) < 5 for row in longer]


def test_prompts_of_full_length_are_returned() -> None:
    def begin(conditioning: Conditioning, batch: int) -> TableRows:
        raise AssertionError("there is nothing to generate")

    result = run([[1] * 16, [2] * 18], begin)
    assert rows_of(result) == [[1] * 16, [2] * 18]
    assert result.ended.tolist() == [False, False]
    assert rows_of(run([[]], begin, max_length=0)) == [[]]
    tokens, lengths = padded([])
    empty = decode(begin, tokens, lengths, end_id=END, max_length=4, rng=items([]), settings=GREEDY, cond={})
    assert empty.tokens.shape == (0, 4)


def test_the_common_prompt_length_is_one_pass() -> None:
    begun: list[TableRows] = []

    def begin(conditioning: Conditioning, batch: int) -> TableRows:
        begun.append(TableRows(conditioning, batch, end_score=-100))
        return begun[-1]

    run([[1, 2, 3], [4, 5, 6, 7, 8]], begin, max_length=8)
    assert begun[0].requested == [(2, 3), *[(2, 1)] * 4]


def test_prompts_are_not_modified() -> None:
    tokens, lengths = padded([[1, 2, 3], [4]])
    before = tokens.clone(), lengths.clone()
    decode(TableRows, tokens, lengths, end_id=END, max_length=9, rng=items(range(2)), settings=GREEDY, cond={})
    assert torch.equal(tokens, before[0])
    assert torch.equal(lengths, before[1])


def test_the_end_token_is_sampled_only_where_it_is_legal() -> None:
    def legal(tokens: Tensor) -> Tensor:
        mask = torch.ones(len(tokens), CODES + 1, dtype=torch.bool)
        mask[:, END] = tokens.shape[1] % 3 == 0 and tokens.shape[1] > 0
        mask[:, :4] = False
        return mask

    def begin(conditioning: Conditioning, batch: int) -> TableRows:
        return TableRows(conditioning, batch, end_score=3.0)

    for settings in (GREEDY, Sampling(), Sampling(top_k=2), Sampling(top_p=0.5)):
        result = run(((), (1,), (2, 2), (8, 8, 8, 8)), begin, settings=settings, legal=legal)
        for row, length, ended in zip(rows_of(result), result.lengths.tolist(), result.ended.tolist(), strict=True):
            assert (length % 3 == 0) if ended else length == 16
            assert all(4 <= token < CODES for token in row[4:])
        assert result.ended.any()


def test_a_grammar_without_a_legal_code_is_refused() -> None:
    with pytest.raises(ValueError, match="no next code"):
        run(legal=lambda tokens: torch.zeros(len(tokens), CODES + 1, dtype=torch.bool))


def test_tokens_follow_the_distribution_of_the_logits() -> None:
    chances = torch.tensor([0.5, 0.3, 0.15, 0.05], dtype=torch.float64)
    scores = torch.full((CODES + 1,), -math.inf, dtype=torch.float64)
    scores[:4] = chances.log()
    result = run(((),) * 40, lambda conditioning, batch: ConstantRows(scores, batch), max_length=100)
    fractions = torch.bincount(result.tokens.flatten(), minlength=4) / 4000
    assert fractions.tolist() == pytest.approx(chances.tolist(), abs=5 * 0.5 / 4000**0.5)
    filtered = run(
        ((),) * 40, lambda conditioning, batch: ConstantRows(scores, batch), settings=Sampling(top_p=0.7), max_length=50
    )
    assert set(filtered.tokens.flatten().tolist()) == {0, 1}


def test_guidance_is_one_pass_of_twice_the_rows() -> None:
    begun: list[TableRows] = []

    def begin(conditioning: Conditioning, batch: int) -> TableRows:
        begun.append(TableRows(conditioning, batch, end_score=2.0))
        assert conditioning["text"].tolist() == [0, 1, 2, 4, 4, 4]
        assert conditioning["same"].tolist() == [5, 6, 7] * 2
        return begun[-1]

    conditioning = {"text": torch.arange(3), "same": torch.arange(5, 8)}
    result = run(
        ((),) * 3,
        begin,
        cond=conditioning,
        uncond={"text": torch.full((3,), 4)},
        settings=Sampling(guidance_scale=3),
    )
    lengths = result.lengths.tolist()
    requested = [rows for rows, _ in begun[0].requested]
    assert requested == [2 * sum(length >= position for length in lengths) for position in range(len(requested))]
    with pytest.raises(ValueError, match="txt"):
        run(uncond={"txt": torch.zeros(4)}, settings=Sampling(guidance_scale=3))


def test_guidance_steers_away_from_the_negative_prompt() -> None:
    scores = torch.nn.functional.one_hot(torch.arange(2), CODES + 1).double()
    scores[:, END] = -math.inf

    def fraction(guidance_scale: float) -> list[float]:
        def begin(conditioning: Conditioning, batch: int) -> ConstantRows:
            rows = ConstantRows(scores[0], batch)
            rows.scores = scores[conditioning["text"]]
            return rows

        result = run(
            ((),) * 20,
            begin,
            max_length=100,
            cond={"text": torch.zeros(20, dtype=torch.int64)},
            uncond={"text": torch.ones(20, dtype=torch.int64)},
            settings=Sampling(guidance_scale=guidance_scale),
        )
        return [(result.tokens == token).double().mean().item() for token in (0, 1)]

    plain, strong = fraction(1.0), fraction(3.0)
    assert strong[0] > 2 * plain[0]
    assert strong[1] < plain[1] / 2


def test_invalid_arguments_are_refused() -> None:
    with pytest.raises(UsageError, match=r"sample\.guidance_scale is 3\.0"):
        run(settings=Sampling(guidance_scale=3.0))
    for wrong in ({"temperature": -1.0}, {"top_k": 0}, {"top_k": 1.5}, {"top_p": 0.0}, {"guidance_scale": math.inf}):
        with pytest.raises(UsageError, match=next(iter(wrong))):
            Sampling(**wrong)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="disagree"):
        run(rng=items(range(3)))
    with pytest.raises(ValueError, match="exceed"):
        decode(
            TableRows,
            torch.zeros(1, 2, dtype=torch.int64),
            torch.tensor([3]),
            end_id=END,
            max_length=4,
            rng=items([0]),
            settings=GREEDY,
            cond={},
        )
    with pytest.raises(ValueError, match="max_length"):
        run(max_length=-1)
    with pytest.raises(RunError, match="not finite"):
        run(begin=lambda conditioning, batch: ConstantRows(torch.full((CODES + 1,), math.nan), batch))
