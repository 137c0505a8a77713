"""MaskGit: dependence of its logits, super-resolution, self-critic, and initialisation from a codebook."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, distributed, nn
from torch.nn.parallel import DistributedDataParallel

from quintet.errors import UsageError
from quintet.nn.conditioning import covering_positions
from quintet.nn.maskgit import CodePatches, MaskGit, TokenCritic

GRID, CODES = (4, 6), 11
LOW = {"low_res_grid": (2, 3), "low_res_num_codes": 7}
SMALL: dict[str, Any] = {
    "grid": GRID, "num_codes": CODES, "dim": 32, "depth": 2, "heads": 4,
    "text_dim": 16, "text_depth": 1, "text_heads": 2, "text_length": 24,
}  # fmt: skip
TEXTS = ["a red circle", "", "two blue squares"]


def make(**keys: Any) -> MaskGit:
    torch.manual_seed(0)
    return MaskGit(**{**SMALL, **keys}).double().eval()


def tokens_of(model: MaskGit | TokenCritic, rows: int = 3) -> Tensor:
    return torch.randint(0, model.mask_id + 1, (rows, model.length), generator=torch.Generator().manual_seed(1))


def low_of(model: MaskGit, rows: int = 3) -> dict[str, Tensor]:
    assert model.low is not None
    shape = (rows, len(model.low.embedding.weight) // model.low.low_res_num_codes * 6)
    return {"low": torch.randint(0, model.low.low_res_num_codes, shape, generator=torch.Generator().manual_seed(2))}


def far(one: Tensor, other: Tensor) -> bool:
    return bool((one - other).abs().max() > 1e-6)


# --- super-resolution ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("grid", [(4, 6), (4, 6, 2), (5, 7)])
@pytest.mark.parametrize("low_res_grid", [(2, 3), (2, 3, 2)])
@pytest.mark.parametrize("text", ["bytes", "none"])
def test_a_row_does_not_depend_on_the_batch(grid: tuple[int, ...], low_res_grid: tuple[int, ...], text: str) -> None:
    model = make(grid=grid, low_res_grid=low_res_grid, low_res_num_codes=7, text=text)
    tokens = tokens_of(model)
    conditioning = {**model.texts(TEXTS, torch.tensor([True, True, False])), **low_of(model)}
    together = model(tokens, conditioning)
    assert together.shape == (3, model.length, CODES)
    for row in range(3):
        own = {name: part[row : row + 1] for name, part in conditioning.items()}
        torch.testing.assert_close(model(tokens[row : row + 1], own)[0], together[row], rtol=1e-11, atol=1e-11)


@pytest.mark.parametrize("low_res_grid", [(2, 3), (2, 3, 2)])
def test_every_low_resolution_token_and_its_position_matter(low_res_grid: tuple[int, ...]) -> None:
    model = make(low_res_grid=low_res_grid, low_res_num_codes=7, text="none")
    tokens, conditioning = tokens_of(model), low_of(model)
    logits, low = model(tokens, conditioning), conditioning["low"]
    for position in range(low.shape[1]):
        other = low.clone()
        other[:, position] = (other[:, position] + 1) % 7
        assert far(model(tokens, {"low": other}), logits), position
    assert far(model(tokens, {"low": low.roll(1, dims=1)}), logits)


def test_positions_of_low_resolution_tokens_matter_in_the_context() -> None:
    """Also without embeddings added to tokens, attention uses the positions of low-resolution tokens."""
    model = make(**LOW, text="none")
    assert model.low is not None
    torch.nn.init.zeros_(model.low.covering.weight)
    tokens, conditioning = tokens_of(model), low_of(model)
    logits, low = model(tokens, conditioning), conditioning["low"]
    assert far(model(tokens, {"low": low.roll(1, dims=1)}), logits)


def test_a_token_gets_the_embedding_of_the_low_resolution_token_at_its_position() -> None:
    model = make(**LOW, grid=(4, 6, 2), text="none")
    assert model.low is not None
    low = torch.arange(6)[None]
    covering = model.low(low).per_token.view(4, 6, 2, -1)
    for row in range(4):
        for column in range(6):
            expected = model.low.covering.weight[(row // 2) * 3 + column // 2]
            assert torch.equal(covering[row, column], expected.expand(2, -1))


def test_levels_of_low_resolution_tokens_have_separate_embeddings() -> None:
    model = make(low_res_grid=(2, 3, 2), low_res_num_codes=7, text="none")
    tokens, low = tokens_of(model), low_of(model)["low"]
    swapped = low.unflatten(1, (6, 2)).flip(2).flatten(1)
    assert far(model(tokens, {"low": swapped}), model(tokens, {"low": low}))


@pytest.mark.parametrize(
    ("low", "high", "indices"),
    [
        ((1, 2), (1, 4), [0, 0, 1, 1]),
        ((1, 2), (1, 5), [0, 0, 1, 1, 1]),
        ((1, 3), (1, 2), [0, 2]),
        ((2, 1), (4, 1), [0, 0, 1, 1]),
        ((2, 2), (2, 2, 2), [0, 0, 1, 1, 2, 2, 3, 3]),
    ],
)
def test_covering_positions(low: tuple[int, ...], high: tuple[int, ...], indices: list[int]) -> None:
    assert covering_positions(low, high).tolist() == indices


def test_low_resolution_tokens_remain_if_the_text_is_dropped() -> None:
    model = make(**LOW)
    tokens, low = tokens_of(model), low_of(model)
    dropped = torch.zeros(3, dtype=torch.bool)
    uncond = {**model.texts(TEXTS, dropped), **low}
    other = {**uncond, "low": (low["low"] + 1) % 7}
    assert far(model(tokens, uncond), model(tokens, other))
    assert far(model(tokens, uncond), model(tokens, {**model.texts(TEXTS), **low}))


def test_invalid_low_resolution_tokens_are_refused() -> None:
    model = make(**LOW)
    tokens, texts = tokens_of(model), model.texts(TEXTS)
    for wrong in (torch.zeros(3, 5, dtype=torch.int64), torch.zeros(3, 2, 3, dtype=torch.int64)):
        with pytest.raises(UsageError, match=r"do not have 6 codes per row \(model.low_res_grid=\(2, 3\)\)"):
            model(tokens, {**texts, "low": wrong})
    for code in (-1, 7):
        with pytest.raises(UsageError, match=r"out of range for model.low_res_num_codes=7"):
            model(tokens, {**texts, "low": torch.full((3, 6), code)})
    with pytest.raises(UsageError, match="needs the low-resolution codes"):
        model(tokens, texts)
    with pytest.raises(UsageError, match="need a super-resolution model"):
        make()(tokens, {**texts, **low_of(model)})


def test_every_weight_of_super_resolution_gets_a_gradient() -> None:
    model = make(**LOW).train()
    model(tokens_of(model), {**model.texts(TEXTS), **low_of(model)}).square().sum().backward()
    for name, parameter in model.named_parameters():
        assert parameter.grad is not None, name
        assert parameter.grad.abs().sum() > 0, name


# --- a start from the codebook ------------------------------------------------------------------------------------


@pytest.mark.parametrize("code_dim", [3, 32])
def test_similar_codes_start_similar_at_the_usual_scale(code_dim: int) -> None:
    model = make(num_codes=64)
    tables = {"embedding": model.embedding.weight, "logits": model.to_logits.weight}
    before = {name: table.detach().clone() for name, table in tables.items()}
    codebook = 5 + 3 * torch.randn(64, code_dim, generator=torch.Generator().manual_seed(3))
    torch.manual_seed(4)
    model.init_from_codebook(codebook)
    neighbours = nearest(codebook.double())
    for name, table in tables.items():
        codes, old = table.detach()[:64], before[name][:64]
        assert torch.equal(nearest(codes), neighbours), name
        assert not torch.equal(nearest(old), neighbours), name
        torch.testing.assert_close(codes.std(), old.std(), rtol=1e-9, atol=0)
        assert codes.mean(0).abs().max() < 1e-12
    assert torch.equal(model.embedding.weight[64], before["embedding"][64]), "the mask is no code"
    first = model.embedding.weight[:64]
    assert far(first, model.to_logits.weight * first.std() / model.to_logits.weight.std())
    again = make(num_codes=64)
    torch.manual_seed(4)
    again.init_from_codebook(codebook)
    assert torch.equal(again.embedding.weight, model.embedding.weight)


def nearest(vectors: Tensor) -> Tensor:
    return (torch.cdist(vectors, vectors) + 1e9 * torch.eye(len(vectors), dtype=vectors.dtype)).argmin(1)


def test_a_codebook_wider_than_the_model_keeps_most_neighbours() -> None:
    model = make(num_codes=64)
    generator = torch.Generator().manual_seed(3)
    centres = torch.randn(8, 256, generator=generator).repeat_interleave(8, 0)
    codebook = centres + 0.3 * torch.randn(64, 256, generator=generator)
    model.init_from_codebook(codebook)
    assert torch.equal(nearest(model.embedding.weight.detach()[:64]) // 8, torch.arange(64) // 8)


def test_invalid_codebooks_are_refused() -> None:
    model = make()
    for wrong in (torch.randn(CODES + 1, 4), torch.randn(CODES)):
        with pytest.raises(UsageError, match=f"does not have {CODES} codes"):
            model.init_from_codebook(wrong)
    for wrong in (torch.ones(CODES, 4), torch.full((CODES, 4), torch.nan)):
        with pytest.raises(UsageError, match="not finite, or all equal"):
            model.init_from_codebook(wrong)


# --- its own critic -----------------------------------------------------------------------------------------------


def test_a_self_critic_starts_at_zero_and_changes_no_logits() -> None:
    model = make(self_critic=True)
    tokens, texts = tokens_of(model), model.texts(TEXTS)
    assert torch.equal(model.score(tokens, texts), torch.zeros(3, model.length, dtype=torch.float64))
    assert torch.equal(model(tokens, texts), make()(tokens, texts))


def test_scores_come_from_the_last_hidden_states_of_the_generator() -> None:
    model = make(self_critic=True, **LOW)
    assert model.to_score is not None
    torch.nn.init.normal_(model.to_score.weight)
    tokens, conditioning = tokens_of(model), {**model.texts(TEXTS), **low_of(model)}
    scores = model.score(tokens, conditioning)
    assert torch.equal(scores, model.to_score(model.hidden(tokens, conditioning))[..., 0])
    where = torch.rand(tokens.shape, generator=torch.Generator().manual_seed(3)) < 0.5
    torch.testing.assert_close(model(tokens, conditioning, where=where, scores=True), scores[where])
    assert far(model.score(tokens, {**conditioning, **model.texts(TEXTS[::-1])}), scores)


@pytest.mark.parametrize("keys", [{}, {"code_patch_size": (2, 2)}], ids=str)
@pytest.mark.parametrize("fraction", [0.0, 0.4, 1.0])
def test_logits_of_some_positions_equal_those_of_all(keys: dict[str, Any], fraction: float) -> None:
    model = make(**keys)
    tokens, texts = tokens_of(model), model.texts(TEXTS)
    where = torch.rand(tokens.shape, generator=torch.Generator().manual_seed(3)) < fraction
    torch.testing.assert_close(model(tokens, texts, where=where), model(tokens, texts)[where], rtol=1e-11, atol=1e-11)


def test_numbers_of_positions_are_padded_to_few_shapes() -> None:
    """A kernel is compiled and cached for each shape."""
    model, shapes = make(grid=(16, 16)), set()
    model.to_logits.register_forward_hook(lambda _, given, __: shapes.add(len(given[0])))
    tokens, texts = tokens_of(model), model.texts(TEXTS)
    for count in range(1, 20):
        model(tokens, texts, where=torch.arange(256).expand(3, -1) < 5 * count)
    assert len(shapes) <= 5


def test_a_model_without_a_critic_has_no_scores() -> None:
    model = make()
    with pytest.raises(UsageError, match=r"no self-critic \(model\.self_critic=false\)"):
        model.score(tokens_of(model), model.texts(TEXTS))


def test_a_step_of_generator_and_critic_under_ddp() -> None:
    """Two calls and one backward pass, twice: an unused weight would fail in the second."""
    distributed.init_process_group("gloo", store=distributed.HashStore(), rank=0, world_size=1)
    try:
        model = make(self_critic=True, self_conditioning=True, **LOW).train()
        assert model.to_score is not None
        torch.nn.init.normal_(model.to_score.weight)
        # As in the engine.
        net = DistributedDataParallel(model, forward_sync_buffers=False)
        tokens, conditioning = tokens_of(model), {**model.texts(TEXTS), **low_of(model)}
        for _ in range(2):
            model.zero_grad()
            logits = net(tokens, conditioning, where=tokens == model.mask_id)
            scores = net(tokens % CODES, conditioning, scores=True)
            (logits.square().sum() + scores.square().sum()).backward()
        for name, parameter in model.named_parameters():
            assert parameter.grad is not None, name
            assert parameter.grad.abs().sum() > 0, name
    finally:
        distributed.destroy_process_group()


# --- exported -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("keys", [{}, LOW, {"text": "none"}, {**LOW, "text": "none"}, {"self_critic": True}])
def test_an_exported_model_round_trips(keys: dict[str, Any], tmp_path: Path) -> None:
    model = make(**keys).float()
    model.save_pretrained(tmp_path / "out")
    again = MaskGit.from_pretrained(tmp_path / "out")
    tokens = tokens_of(model)
    conditioning = {**model.texts(TEXTS), **(low_of(model) if model.low else {})}
    assert again.config == model.config
    assert torch.equal(again(tokens, conditioning), model(tokens, conditioning))


def test_rotary_changes_the_output_and_adds_no_weight() -> None:
    plain, turning = make(text="none"), make(text="none", rotary=True)
    assert plain.state_dict().keys() == turning.state_dict().keys()
    turning.load_state_dict(plain.state_dict())
    tokens = tokens_of(plain)
    assert not torch.allclose(plain(tokens, {}), turning(tokens, {}))
    for table in turning.transformer.positions.tables:  # type: ignore[union-attr]
        table.data.zero_()
    # Without learned positions, only rotary embeddings carry positions.
    moved = turning(tokens.roll(1, 1), {}).roll(-1, 1)
    assert not torch.allclose(turning(tokens, {}), moved)


# --- rows that end early, and codes that are one token --------------------------------------------------------------

VIDEO = (3, 4, 4)
PATCH_SIZES = pytest.mark.parametrize("patch_size", [None, (1, 2, 2), (1, 4, 1)])


@PATCH_SIZES
def test_tokens_after_the_end_of_a_row_do_not_matter(patch_size: tuple[int, ...] | None) -> None:
    model = make(grid=VIDEO, code_patch_size=patch_size, rotary=True, text="none")
    tokens = tokens_of(model, 2)
    valid_mask = torch.ones_like(tokens, dtype=torch.bool)
    valid_mask[1, 2 * 16 :] = False
    result = model(tokens, {"valid_mask": valid_mask})
    changed = torch.where(valid_mask, tokens, (tokens + 1) % CODES)
    assert not torch.equal(changed, tokens)
    torch.testing.assert_close(
        model(changed, {"valid_mask": valid_mask})[valid_mask], result[valid_mask], rtol=1e-11, atol=1e-11
    )
    # A row equals itself without padding, and a full row depends on all its tokens.
    torch.testing.assert_close(model(tokens[1:, : 2 * 16], {})[0], result[1, : 2 * 16], rtol=1e-11, atol=1e-11)
    torch.testing.assert_close(model(tokens[:1], {})[0], result[0], rtol=1e-11, atol=1e-11)


@PATCH_SIZES
def test_every_code_affects_every_other_code(patch_size: tuple[int, ...] | None) -> None:
    model = make(grid=VIDEO, code_patch_size=patch_size, text="none")
    tokens = tokens_of(model, 1)
    before = model(tokens, {})[0]
    for position in (0, 5, 47):
        changed = tokens.clone()
        changed[0, position] = (tokens[0, position] + 1) % CODES
        assert ((model(changed, {})[0] - before).abs().amax(-1) > 1e-9).all()


def test_patches_group_neighbouring_codes_and_round_trip() -> None:
    merging = CodePatches((1, 2, 2), 3)
    numbers = torch.arange(2 * 4 * 4.0).view(1, 32, 1)
    groups = merging.patchify(numbers, (2, 4, 4))
    assert groups[0, :3].tolist() == [[0, 1, 4, 5], [2, 3, 6, 7], [8, 9, 12, 13]]
    assert groups[0, 4].tolist() == [16, 17, 20, 21]
    merging.alone = nn.Identity()  # type: ignore[assignment]
    assert torch.equal(merging.unpatchify(groups, (2, 4, 4)), numbers)
    assert merging.patch_grid((2, 4, 4)) == (2, 2, 2)


def test_code_patch_size_must_divide_the_grid() -> None:
    with pytest.raises(UsageError, match=r"model\.code_patch_size=\[1, 3, 2\] does not divide model\.grid=\[3, 4, 4\]"):
        make(grid=VIDEO, code_patch_size=(1, 3, 2))
    with pytest.raises(UsageError, match="does not divide"):
        make(grid=VIDEO, code_patch_size=(2, 2))


def test_shorter_rows_equal_themselves_alone() -> None:
    """Rows of the same length are computed together; a gap inside a row is padding as well."""
    model = make(grid=(4, 2, 3))
    tokens, cond = tokens_of(model, 5), model.texts(["one", "two", "three", "four", "five"])
    valid_mask = torch.arange(24) < torch.tensor([24, 6, 18, 6, 12])[:, None]
    valid_mask[2, 3:5] = False
    together = model(tokens, {**cond, "valid_mask": valid_mask})
    for row in range(5):
        own = {name: part[row : row + 1] for name, part in cond.items()}
        end = int(valid_mask[row].nonzero()[-1]) + 1
        seen = valid_mask[row, :end]
        single = model(tokens[row : row + 1, :end], {**own, "valid_mask": seen[None]})[0]
        torch.testing.assert_close(together[row, :end][seen], single[seen], rtol=1e-11, atol=1e-11)
