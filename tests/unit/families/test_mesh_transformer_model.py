"""The mesh transformer: what is a target, what sees what, and generation with a cache against generation without."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from quintet.common.rng import ItemRNG
from quintet.errors import UsageError
from quintet.families.mesh_transformer.grammar import CanonicalCoordinates, whole_faces
from quintet.families.mesh_transformer.model import PADDING, MeshTransformer
from quintet.sampling import autoregressive
from quintet.sampling.autoregressive import Sampling
from quintet.sampling.guidance import Conditioning
from text_models import make_folder

KINDS = ["coarse_fine", "flat"]
CODES, SIZE, MOST = 7, 3, 5
END = CODES
EXACT = {"rtol": 1e-9, "atol": 1e-11}


@pytest.fixture(autouse=True)
def in_fp64() -> Iterator[None]:
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)


def make(kind: str = "coarse_fine", **keys: Any) -> MeshTransformer:
    """Small, with weights large enough for what one code does to be seen in all later ones."""
    torch.manual_seed(0)
    small = {"dim": 16, "depth": 2, "heads": 2, "text_dim": 16, "text_depth": 1, "text_heads": 2, "face_buckets": 4}
    sizes = {"num_codes": CODES, "tokens_per_face": SIZE, "max_faces": MOST}
    model = MeshTransformer(**{"kind": kind, **small, **sizes, **keys})
    for parameter in model.parameters():
        if parameter.ndim > 1:
            parameter.data.mul_(2)
    return model


def random_codes(batch: int, faces: int, seed: int = 0) -> Tensor:
    return torch.randint(CODES, (batch, faces, SIZE), generator=torch.Generator().manual_seed(seed))


def items(count: int, first: int = 0) -> ItemRNG:
    return ItemRNG(1, [0] * count, range(first, first + count))


# --- training -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
def test_targets_are_the_codes_and_one_end(kind: str) -> None:
    model, codes = make(kind), random_codes(4, MOST)
    lengths = [3, 5, 1, 0]
    begins, ends = [True, False, True, True], [True, False, False, True]
    logits, targets = model(
        codes, torch.tensor(lengths), model.texts([""] * 4), torch.tensor(begins), torch.tensor(ends)
    )
    wanted: list[int] = []
    for row, length, first, last in zip(codes.tolist(), lengths, begins, ends, strict=True):
        wanted += [code for face in row[0 if first else 1 : length] for code in face] + ([END] if last else [])
    assert targets.tolist() == wanted
    assert logits.shape == (len(wanted), CODES + 1)
    every = model(codes, torch.tensor(lengths), model.texts([""] * 4))
    assert (every.targets == END).sum() == 4


@pytest.mark.parametrize("kind", KINDS)
def test_padding_and_neighbours_change_nothing(kind: str) -> None:
    model, codes = make(kind), random_codes(3, 4)
    lengths, texts = torch.tensor([2, 4, 1]), ["a cup", "", "a long table"]
    there = (torch.arange(4) < lengths[:, None])[..., None]
    together = model(codes.masked_fill(~there, PADDING), lengths, model.texts(texts) | model.faces(lengths))
    other = model(codes.masked_fill(~there, CODES - 1), lengths, model.texts(texts) | model.faces(lengths))
    assert torch.equal(together.logits, other.logits)
    assert torch.equal(together.targets, other.targets)
    alone = [
        model(codes[[row], :length], lengths[[row]], model.texts([texts[row]]) | model.faces(lengths[[row]]))
        for row, length in enumerate(lengths.tolist())
    ]
    torch.testing.assert_close(together.logits, torch.cat([one.logits for one in alone]), **EXACT)
    assert torch.equal(together.targets, torch.cat([one.targets for one in alone]))


@pytest.mark.parametrize("kind", KINDS)
def test_a_code_is_seen_by_all_later_places_and_no_earlier(kind: str) -> None:
    model, codes, lengths = make(kind), random_codes(1, 4), torch.tensor([4])
    before = model(codes, lengths, {}).logits
    for place in range(4 * SIZE):
        changed = codes.flatten(1).clone()
        changed[0, place] = (changed[0, place] + 1) % CODES
        moved = (model(changed.view(1, 4, SIZE), lengths, {}).logits - before).abs().amax(-1)
        assert moved[: place + 1].max() < 1e-12
        assert moved[place + 1 :].min() > 1e-9


@pytest.mark.parametrize("kind", KINDS)
def test_every_weight_gets_a_gradient(kind: str) -> None:
    model, lengths = make(kind), torch.tensor([3, 2])
    for begins in (True, False):
        conditioning = model.texts(["a cup", ""], torch.tensor([True, False])) | model.faces(lengths)
        made = model(random_codes(2, 3), lengths, conditioning, torch.tensor([begins, True]))
        F.cross_entropy(made.logits, made.targets).backward()
    for name, parameter in model.named_parameters():
        assert parameter.grad is not None, name
        assert parameter.grad.abs().sum() > 0, name


@pytest.mark.parametrize("kind", KINDS)
def test_it_learns_which_mesh_a_class_is(kind: str) -> None:
    model = make(kind, text="classes", classes=("one", "two", "three"))
    codes, lengths = random_codes(3, 4), torch.tensor([4, 2, 3])
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    for _ in range(100):
        made = model(codes, lengths, model.texts(["one", "two", "three"]))
        loss = F.cross_entropy(made.logits, made.targets)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    assert loss < 0.05
    model.eval()
    drawn = model.generate(["one", "two", "three"], items(3), Sampling(temperature=0))
    assert drawn.lengths.tolist() == [4, 2, 3]
    assert drawn.ended.all()
    for row, length in enumerate(lengths.tolist()):
        assert torch.equal(drawn.codes[row, :length], codes[row, :length])
        assert (drawn.codes[row, length:] == PADDING).all()


# --- what it is told ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
def test_what_is_dropped_is_not_known(kind: str) -> None:
    model, codes, lengths = make(kind), random_codes(2, 3), torch.tensor([3, 3])
    dropped = torch.tensor([False, False])

    def logits(texts: list[str], counts: list[int], keep: Tensor | None) -> Tensor:
        told: Tensor = model(codes, lengths, model.texts(texts, keep) | model.faces(torch.tensor(counts), keep)).logits
        return told

    unknown = model(codes, lengths, {}).logits
    torch.testing.assert_close(logits(["a cup", "b"], [1, 5], dropped), unknown, **EXACT)
    torch.testing.assert_close(logits(["a very tall cup", ""], [3, 4], dropped), unknown, **EXACT)
    seen = [logits(["a cup", "b"], [0, 0], None), logits(["a cup", "c"], [0, 0], None)]
    assert not torch.allclose(seen[0], unknown)
    assert not torch.allclose(seen[0], seen[1])
    counted = model(codes, lengths, model.faces(torch.tensor([5, 5]))).logits
    assert not torch.allclose(counted, unknown)


def test_face_counts_are_put_into_buckets_in_order() -> None:
    model = make(max_faces=800, face_buckets=32)
    buckets = model.faces(torch.arange(801))["faces"].tolist()
    assert buckets[0] == 0
    assert buckets[1] == 1
    assert buckets[800] == 32
    assert buckets == sorted(buckets)
    assert len(set(buckets)) >= 28
    assert model.faces(torch.tensor([10**6]))["faces"].tolist() == [32]
    assert make(face_buckets=0).faces(torch.tensor([3])) == {}


def test_a_frozen_encoder_reads_the_text(tmp_path: Path) -> None:
    torch.set_default_dtype(torch.float32)
    model = make(text=f"hf:{make_folder(tmp_path / 't5')}")
    model.cache_texts(None)
    made = model(random_codes(2, 2), torch.tensor([2, 1]), model.texts(["red", "blue"]))
    assert made.logits.isfinite().all()
    drawn = model.eval().generate(["red"], items(1), Sampling(guidance_scale=2.0), negative="blue")
    assert drawn.codes.shape[2] == SIZE


# --- generation ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("negative", "kept"), [(None, False), ("", False), ("a flat disc", True)])
def test_an_empty_negative_text_is_none(monkeypatch: pytest.MonkeyPatch, negative: str | None, kept: bool) -> None:
    model = make().eval()
    begin, seen = model.begin, []

    def begin_and_note(conditioning: Conditioning, batch: int) -> Any:
        seen.append(conditioning["text_mask"].any(1).tolist())
        return begin(conditioning, batch)

    monkeypatch.setattr(model, "begin", begin_and_note)
    model.generate(["a cup"], items(1), Sampling(guidance_scale=2.0), negative=negative)
    assert seen == [[True, kept]]


class WholeRows:
    """Rows without a cache: every step is a whole forward pass of training."""

    def __init__(self, model: MeshTransformer, conditioning: Conditioning, batch: int) -> None:
        self.model, self.conditioning = model, dict(conditioning)
        self.seen = torch.empty(batch, 0, dtype=torch.int64)

    def advance(self, tokens: Tensor) -> Tensor:
        self.seen = torch.cat([self.seen, tokens], dim=1)
        length = self.seen.shape[1]
        faces = min(length // SIZE + 1, MOST)
        codes = F.pad(self.seen, (0, faces * SIZE - length)).view(-1, faces, SIZE)
        logits = self.model(codes, torch.full((len(codes),), faces), self.conditioning).logits
        whole: Tensor = logits.view(len(codes), faces * SIZE + 1, -1)[:, length]
        return whole

    def select(self, numbers: Tensor) -> None:
        self.seen = self.seen[numbers]
        self.conditioning = {key: value[numbers] for key, value in self.conditioning.items()}


PROMPTS = [[], [1, 2], [3, 4, 5, 6], [0] * (MOST * SIZE), [1] * 7, []]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("told", ["nothing", "texts", "guided", "away"])
@pytest.mark.parametrize("prompted", [False, True], ids=["from nothing", "prompted"])
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_generation_with_the_cache_is_generation_without(
    monkeypatch: pytest.MonkeyPatch, kind: str, told: str, prompted: bool, temperature: float
) -> None:
    model = make(kind).eval()
    model.to_logits.bias.data[END] = 0.5
    prompts = [torch.tensor(prompt, dtype=torch.int64) for prompt in PROMPTS]
    texts = [""] * 6 if told == "nothing" else ["a cup", "", "a tall lamp", "b", "stairs", "a cup"]
    options: dict[str, Any] = {
        "settings": Sampling(temperature=temperature, guidance_scale=3.0 if told in ("guided", "away") else 1.0),
        "negative": "a flat disc" if told == "away" else None,
        "face_counts": None if told == "nothing" else [3, 0, 5, 2, 4, 1],
        "prompts": prompts if prompted else None,
    }
    cached = model.generate(texts, items(6), **options)
    monkeypatch.setattr(model, "begin", lambda conditioning, batch: WholeRows(model, conditioning, batch))
    whole = model.generate(texts, items(6), **options)
    for one, other in zip(cached, whole, strict=True):
        assert torch.equal(one, other)
    if prompted:
        for row, prompt in zip(cached.codes.flatten(1).tolist(), PROMPTS, strict=True):
            assert row[: len(prompt)] == prompt
        assert cached.lengths[3] == MOST
        assert not cached.ended[3]


@pytest.mark.parametrize("kind", KINDS)
def test_scores_with_the_cache_are_those_without(kind: str) -> None:
    model = make(kind).eval()
    tokens = random_codes(3, MOST).flatten(1)
    conditioning = model.texts(["a cup", "", "b"], torch.tensor([True, True, False])) | model.faces(
        torch.tensor([3, 0, 5])
    )
    with torch.no_grad():
        for pieces in ([0] + [1] * (MOST * SIZE), [2, 1, 5, 1, 6], [SIZE * 2, SIZE], [7]):
            cached, whole = model.begin(conditioning, 3), WholeRows(model, conditioning, 3)
            for piece in tokens[:, : sum(pieces)].split(pieces, dim=1):
                torch.testing.assert_close(cached.advance(piece), whole.advance(piece), **EXACT)
            cached.select(torch.tensor([2, 0]))
            whole.select(torch.tensor([2, 0]))
            if sum(pieces) < MOST * SIZE:
                piece = tokens[[2, 0], :1]
                torch.testing.assert_close(cached.advance(piece), whole.advance(piece), **EXACT)


@pytest.mark.parametrize("kind", KINDS)
def test_a_mesh_is_the_same_in_any_batch(kind: str) -> None:
    model = make(kind).eval()
    texts, prompts = ["a", "bb", "", "dddd"], [torch.tensor(prompt) for prompt in ([1], [], [2, 3, 4, 5], [6] * 3)]
    settings = Sampling(top_p=0.95, guidance_scale=2.0)

    def part(rows: list[int]) -> list[list[int]]:
        made = model.generate(
            [texts[row] for row in rows],
            ItemRNG(1, [0] * len(rows), rows),
            settings,
            prompts=[prompts[row].long() for row in rows],
        )
        return [codes[:length].flatten().tolist() for codes, length in zip(made.codes, made.lengths, strict=True)]

    whole = part([0, 1, 2, 3])
    assert [part([row])[0] for row in range(4)] == whole
    assert part([3, 1]) == [whole[3], whole[1]]


@pytest.mark.parametrize("kind", KINDS)
def test_prompts_of_any_length_and_limits_of_any_size(kind: str) -> None:
    model = make(kind, text="none").eval()
    for length in range(MOST * SIZE + 1):
        prompt = torch.arange(length) % CODES
        for most in (None, 1, 3):
            made = model.generate([""], items(1), prompts=[prompt], max_faces=most)
            faces = int(made.lengths[0])
            assert made.codes.shape == (1, faces, SIZE)
            assert length // SIZE <= faces <= max(most or MOST, length // SIZE)
            kept = min(length, faces * SIZE)
            assert made.codes.flatten()[:kept].tolist() == prompt[:kept].tolist()
            assert ((made.codes >= 0) & (made.codes < CODES)).all()


def test_no_text_at_all_makes_no_mesh() -> None:
    made = make().eval().generate([], items(0))
    assert made.codes.shape == (0, 0, SIZE)


@pytest.mark.parametrize("kind", KINDS)
def test_a_grammar_holds(kind: str) -> None:
    bins = 6
    model = make(kind, num_codes=bins, tokens_per_face=9, max_faces=6).eval()
    made = model.generate([""] * 8, items(8), legal=CanonicalCoordinates(bins))
    for codes, length in zip(made.codes.tolist(), made.lengths.tolist(), strict=True):
        faces = codes[:length]
        assert length > 0
        assert faces == sorted(faces)
        for face in faces:
            assert face[:3] < min(face[3:6], face[6:])
            assert face[3:6] != face[6:]


def test_without_a_grammar_of_its_own_a_mesh_has_whole_faces(monkeypatch: pytest.MonkeyPatch) -> None:
    model = make("flat").eval()
    model.to_logits.bias.data[END] = 4
    seen: list[int] = []

    def decode(*arguments: Any, **options: Any) -> autoregressive.Decoded:
        decoded = real(*arguments, **options)
        seen.extend(decoded.lengths.tolist())
        assert torch.equal(options["legal"](torch.zeros(1, SIZE)), whole_faces(torch.zeros(1, SIZE), SIZE, CODES))
        return decoded

    real = autoregressive.decode
    monkeypatch.setattr(autoregressive, "decode", decode)
    model.generate([""] * 8, items(8))
    assert all(length % SIZE == 0 and length for length in seen)


# --- the rest -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
def test_bf16_autocast_does_not_fail(kind: str) -> None:
    torch.set_default_dtype(torch.float32)
    model = make(kind)
    lengths = torch.tensor([3, 1])
    with torch.autocast("cpu", torch.bfloat16):
        made = model(random_codes(2, 3), lengths, model.texts(["a", ""]) | model.faces(lengths))
        loss = F.cross_entropy(made.logits.float(), made.targets)
        drawn = model.generate(["a", "b"], items(2), Sampling(guidance_scale=2.0), face_counts=[2, 3])
    loss.backward()
    assert all(parameter.grad is None or parameter.grad.isfinite().all() for parameter in model.parameters())
    assert drawn.codes.dtype == torch.int64


@pytest.mark.parametrize("kind", KINDS)
def test_it_is_read_back_as_it_was(tmp_path: Path, kind: str) -> None:
    model = make(kind).float().eval()
    model.save_pretrained(tmp_path / "out")
    torch.set_default_dtype(torch.float32)
    back = MeshTransformer.from_pretrained(tmp_path / "out")
    assert back.config == model.config
    for name, weight in model.state_dict().items():
        assert torch.equal(weight, back.state_dict()[name]), name


def test_the_size_of_the_comparison() -> None:
    with torch.device("meta"):
        model = MeshTransformer(
            num_codes=1024, tokens_per_face=6, max_faces=128, dim=256, depth=6, heads=8, fine_depth=2
        )
    assert sum(parameter.numel() for parameter in model.parameters()) < 10.4e6


def test_requests_that_make_no_sense() -> None:
    with pytest.raises(UsageError, match="tokens_per_face"):
        MeshTransformer(num_codes=5)
    with pytest.raises(UsageError, match="even parts"):
        make(heads=16)
    with pytest.raises(UsageError, match="hf:PATH_OR_NAME"):
        make(text="letters")
    model, lengths = make(), torch.tensor([1])
    with pytest.raises(UsageError, match=r"not \(batch, faces, 3\)"):
        model(torch.zeros(1, 2, 4, dtype=torch.int64), lengths, {})
    with pytest.raises(UsageError, match="6 faces are more than"):
        model(random_codes(1, 6), lengths, {})
    with pytest.raises(UsageError, match="1 prompts for 2 texts"):
        model.generate(["a", "b"], items(2), prompts=[torch.tensor([1])])
    with pytest.raises(UsageError, match="16 tokens is longer"):
        model.generate(["a"], items(1), prompts=[torch.zeros(16, dtype=torch.int64)])
    for wrong in (-1, END):
        with pytest.raises(UsageError, match="no codes below"):
            model.generate(["a"], items(1), prompts=[torch.tensor([wrong])])
    for most in (0, 6):
        with pytest.raises(UsageError, match="not between 1 and"):
            model.generate(["a"], items(1), max_faces=most)
    with pytest.raises(UsageError, match="face_buckets=0"):
        make(face_buckets=0).generate(["a"], items(1), face_counts=[3])
    silent = make(text="none")
    with pytest.raises(UsageError, match="takes no text"):
        silent.generate(["a"], items(1))
    with pytest.raises(UsageError, match="takes no text"):
        silent(random_codes(1, 1), lengths, model.texts(["a"]))
    with pytest.raises(UsageError, match=r"sample\.guidance_scale"):
        silent.generate([""], items(1), Sampling(guidance_scale=2.0))
