"""The transformer against a naive one that loops over items, heads and queries, in fp64; masks; the KV cache."""

from __future__ import annotations

import math
from itertools import product
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from quintet.errors import UsageError
from quintet.nn.attention import MAX_BF16_LENGTH, Attention, attention_mask
from quintet.nn.positions import LearnedPositions, Rotary, apply_rotary
from quintet.nn.transformer import Block, FeedForward, Transformer
from quintet.training.engine import recompute_activations
from quintet.training.optim import named_parameters

EXACT = {"rtol": 1e-10, "atol": 1e-12}
DIM, HEADS, HEAD_DIM, CONTEXT_DIM = 12, 3, 8, 10


def random(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def make(**options: Any) -> Transformer:
    """Small, in fp64, without weights at initial values such as 0 or 1 that could hide an error."""
    torch.manual_seed(0)
    model = Transformer(DIM, 2, HEADS, HEAD_DIM, **options).double()
    for parameter in model.parameters():
        if parameter.ndim == 1:
            parameter.data.add_(torch.randn_like(parameter) * 0.3)
    return model


# --- a naive reference --------------------------------------------------------------------------------------------


def naive_norm(x: Tensor, weight: Tensor | None, kind: str) -> Tensor:
    centred = x - x.mean(-1, keepdim=True) if kind == "layer" else x
    normed = centred / (centred.square().mean(-1, keepdim=True) + 1e-6).sqrt()
    return normed if weight is None else normed * weight


def naive_rotary(vector: Tensor, position: tuple[int, ...], theta: float = 10_000.0) -> Tensor:
    """Each plane as a complex number; the first axes get the remaining planes."""
    planes = len(vector) // 2
    angles = []
    for axis, coordinate in enumerate(position):
        fraction = planes // len(position) + (1 if axis < planes % len(position) else 0)
        angles += [coordinate / theta ** (number / fraction) for number in range(fraction)]
    numbers = torch.complex(vector[:planes], vector[planes:])
    turned = numbers * torch.polar(torch.ones(planes, dtype=torch.float64), torch.tensor(angles, dtype=torch.float64))
    return torch.cat([turned.real, turned.imag])


def naive_attention(
    attention: Attention,
    x: Tensor,
    context: Tensor | None,
    allowed: Tensor,
    grid_positions: list[tuple[int, ...]] | None,
) -> Tensor:
    """One item: `x` is (n, dim), `allowed` (n, m)."""
    if context is None:
        queries, keys, values = attention.to_queries_keys_values(x).chunk(3, -1)
    else:
        queries = attention.to_queries(x)
        keys, values = attention.to_keys_values(context).chunk(2, -1)
    joined = []
    for head in range(HEADS):
        part = slice(head * HEAD_DIM, (head + 1) * HEAD_DIM)
        own, others = queries[:, part], keys[:, part]
        if attention.query_scale is not None:
            own, others = naive_norm(own, attention.query_scale, "layer"), naive_norm(others, None, "layer")
        rows = []
        for number, query in enumerate(own):
            seen = [key for key in range(len(others)) if allowed[number, key]]
            scores = []
            for key in seen:
                one, other = query, others[key]
                if grid_positions is not None:
                    one, other = naive_rotary(one, grid_positions[number]), naive_rotary(other, grid_positions[key])
                scores.append((one * other).sum() / math.sqrt(HEAD_DIM))
            weights = torch.stack(scores).exp() / torch.stack(scores).exp().sum()
            rows.append(sum(weight * values[key, part] for weight, key in zip(weights, seen, strict=True)))
        joined.append(torch.stack(rows))  # type: ignore[arg-type]
    return torch.cat(joined, -1) @ attention.to_out.weight.T


def naive_feed_forward(layer: FeedForward, x: Tensor) -> Tensor:
    values, gates = (x @ layer.to_hidden.weight.T).chunk(2, -1)
    return (values * gates / (1 + (-gates).exp())) @ layer.to_out.weight.T


def naive_transformer(
    model: Transformer,
    x: Tensor,
    mask: Tensor,
    context: Tensor | None,
    context_mask: Tensor | None,
    norm: str,
    grid: tuple[int, ...] | None,
) -> Tensor:
    grid_positions = None if grid is None else list(product(*map(range, grid)))
    items = []
    for number, item in enumerate(x):
        length = len(item)
        allowed = mask[number].expand(length, length)
        if model.causal:
            allowed = allowed & (torch.arange(length)[:, None] >= torch.arange(length))
        own = None
        if model.nothing is not None:
            given = context[number][context_mask[number]] if context is not None else item.new_zeros(0, CONTEXT_DIM)  # type: ignore[index]
            own = torch.cat([model.nothing[None], given])
        if isinstance(model.positions, LearnedPositions):
            item = item + torch.stack(  # noqa: PLW2901
                [
                    sum(table[at] for table, at in zip(model.positions.tables, position, strict=True))
                    for position in grid_positions
                ]  # type: ignore
            )
        rotary_positions = grid_positions if isinstance(model.positions, Rotary) else None
        for block in model.blocks:
            normed = naive_norm(item, block.attention_norm.weight, norm)
            item = item + naive_attention(block.attention, normed, None, allowed, rotary_positions)  # noqa: PLW2901
            if own is not None:
                normed = naive_norm(item, block.cross_norm.weight, norm)
                everything = torch.ones(length, len(own), dtype=torch.bool)
                item = item + naive_attention(block.cross_attention, normed, own, everything, None)  # noqa: PLW2901
            item = item + naive_feed_forward(block.feed_forward, naive_norm(item, block.feed_forward_norm.weight, norm))  # noqa: PLW2901
        items.append(naive_norm(item, model.norm.weight, norm))
    return torch.stack(items)


@pytest.fixture
def in_fp64() -> Any:
    """Tables of cosines use the default dtype."""
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)


@pytest.mark.usefixtures("in_fp64")
@pytest.mark.parametrize("norm", ["layer", "rms"])
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("where", ["nowhere", "learned", "rotary"])
@pytest.mark.parametrize(
    ("grid", "shape"), [((6,), (6,)), ((6,), (9,)), ((3, 2), (3, 2)), ((3, 2), (3, 4)), ((1, 3, 2), (2, 3, 2))]
)
def test_it_equals_the_naive_transformer(
    norm: str, causal: bool, where: str, grid: tuple[int, ...], shape: tuple[int, ...]
) -> None:
    kinds = {"nowhere": None, "learned": LearnedPositions(shape, DIM), "rotary": Rotary(shape, HEAD_DIM)}
    model = make(norm=norm, causal=causal, context_dim=CONTEXT_DIM, positions=kinds[where])
    x, context = random(2, 6, DIM), random(2, 4, CONTEXT_DIM, seed=1)
    mask = torch.tensor([[True] * 6, [True] * 4 + [False] * 2])
    context_mask = torch.tensor([[True, True, False, True], [False] * 4])
    with torch.no_grad():
        ours = model(x, mask, context, context_mask, grid)
        naive = naive_transformer(model, x, mask, context, context_mask, norm, grid)
        torch.testing.assert_close(ours[mask], naive[mask], **EXACT)
        full = model(x, context=context, grid=grid)
        all_true = torch.ones_like(mask), torch.ones_like(context_mask)
        torch.testing.assert_close(full, model(x, all_true[0], context, all_true[1], grid), **EXACT)


def test_without_normalised_queries_and_keys() -> None:
    torch.manual_seed(0)
    attention = Attention(DIM, HEADS, HEAD_DIM, normalise=False).double()
    x = random(1, 5, DIM)
    assert attention.query_scale is None
    naive = naive_attention(attention, x[0], None, torch.ones(5, 5, dtype=torch.bool), None)
    torch.testing.assert_close(attention(x)[0], naive, **EXACT)


# --- masks --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("causal", [False, True])
def test_masked_tokens_affect_no_other_even_as_nan(causal: bool) -> None:
    model = make(context_dim=CONTEXT_DIM, causal=causal)
    x, context = random(2, 6, DIM), random(2, 4, CONTEXT_DIM, seed=1)
    mask, context_mask = torch.rand(2, 6) < 0.6, torch.rand(2, 4) < 0.5
    mask[:, 0] = True
    before = model(x, mask, context, context_mask)
    x[~mask], context[~context_mask] = math.nan, math.nan
    after = model(x, mask, context, context_mask)
    assert torch.equal(before[mask], after[mask])
    assert after.isfinite().all()


@pytest.mark.parametrize("causal", [False, True])
def test_rows_of_only_padding_have_finite_values_and_gradients(causal: bool) -> None:
    model = make(context_dim=CONTEXT_DIM, causal=causal)
    mask = torch.tensor([[False] * 5, [False, False, True, True, False]])
    out = model(random(2, 5, DIM), mask, random(2, 3, CONTEXT_DIM), torch.zeros(2, 3, dtype=torch.bool))
    assert out.isfinite().all()
    out[mask].square().sum().backward()
    assert all(parameter.grad is None or parameter.grad.isfinite().all() for parameter in model.parameters())


def test_a_fully_masked_context_equals_no_context() -> None:
    """The unconditional branch of guidance must not depend on the dropped caption."""
    model = make(context_dim=CONTEXT_DIM)
    x, dropped = random(2, 5, DIM), torch.zeros(2, 3, dtype=torch.bool)
    without = model(x)
    for seed in (1, 2):
        torch.testing.assert_close(model(x, None, random(2, 3, CONTEXT_DIM, seed=seed), dropped), without, **EXACT)
    assert not torch.allclose(model(x, None, random(2, 3, CONTEXT_DIM, seed=1)), without)
    without.sum().backward()
    assert model.nothing is not None
    assert model.nothing.grad is not None
    assert model.nothing.grad.abs().sum() > 0


def test_causal_tokens_do_not_depend_on_later_ones() -> None:
    model = make(causal=True, positions=Rotary((8,), HEAD_DIM))
    x = random(1, 8, DIM)
    changed = x.clone()
    changed[:, 5] = random(DIM, seed=1)
    same = (model(x) - model(changed)).abs().amax(-1)[0]
    assert same[:5].max() < 1e-12
    assert same[5:].min() > 1e-6
    torch.testing.assert_close(model(x[:, :3]), model(x)[:, :3], **EXACT)


def test_attention_mask_leaves_every_query_a_key() -> None:
    mask = torch.tensor([[True, False, True], [False, False, False]])
    assert attention_mask(mask).tolist() == [[[[True, False, True]]], [[[True, True, True]]]]
    first, second = attention_mask(mask, causal=True)[:, 0].tolist()
    assert first == [[True, False, False], [True, True, False], [True, False, True]]
    assert second == [[True, False, False], [False, True, False], [False, False, True]]


# --- positions ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("shape", "head_dim"), [((9,), 2), ((4, 5), 4), ((4, 5), 32), ((3, 4, 5), 32), ((3, 4, 5), 64)]
)
def test_rotary_scores_depend_only_on_the_distance(shape: tuple[int, ...], head_dim: int) -> None:
    by = Rotary(shape, head_dim).double()(shape)
    query, key = (random(head_dim, seed=seed).expand(1, math.prod(shape), 1, head_dim) for seed in (0, 1))
    scores = (apply_rotary(query, by)[0, :, 0] @ apply_rotary(key, by)[0, :, 0].T).tolist()
    by_distance: dict[tuple[int, ...], list[float]] = {}
    grid_positions = list(product(*map(range, shape)))
    for one, two in product(range(len(grid_positions)), repeat=2):
        distance = tuple(a - b for a, b in zip(grid_positions[one], grid_positions[two], strict=True))
        by_distance.setdefault(distance, []).append(scores[one][two])
    assert all(max(values) - min(values) < 1e-5 for values in by_distance.values())
    assert len({round(values[0], 4) for values in by_distance.values()}) > 0.9 * len(by_distance)


def test_rotary_has_no_state_and_theta_sets_its_slowest_plane() -> None:
    assert Rotary((4, 4), 8).state_dict() == {}
    cosines, _ = Rotary((7,), 8, theta=16.0)((7,))
    torch.testing.assert_close(cosines[6, 0, :4], torch.tensor([6 / speed for speed in (1, 2, 4, 8)]).cos())


def test_a_smaller_grid_is_a_corner_of_the_larger_one() -> None:
    for positions in (LearnedPositions((2, 4, 6), 12), Rotary((2, 4, 6), 12)):
        part, full = positions((1, 3, 5)), positions((2, 4, 6))
        pairs = zip(part, full, strict=True) if isinstance(part, tuple) else [(part, full)]
        for small, large in pairs:
            assert torch.equal(small.view(1, 3, 5, -1), large.view(2, 4, 6, -1)[:1, :3, :5])


@pytest.mark.parametrize("grid", [(4, 3), (2, 2, 3), (12,), (1, 12)])
def test_grids_that_do_not_fit(grid: tuple[int, ...]) -> None:
    model = make(positions=LearnedPositions((3, 4), DIM))
    with pytest.raises(UsageError, match="does not fit"):
        model(random(1, 12, DIM), grid=grid)


def test_the_number_of_tokens_must_match_the_grid() -> None:
    model = make(positions=Rotary((3, 4), HEAD_DIM))
    with pytest.raises(UsageError, match="11 tokens do not match a grid of 3 x 4"):
        model(random(1, 11, DIM))
    with pytest.raises(UsageError, match="11 tokens do not match a grid of 2 x 4"):
        model(random(1, 11, DIM), grid=(2, 4))
    assert model(random(1, 8, DIM), grid=(2, 4)).shape == (1, 8, DIM)


# --- the whole ----------------------------------------------------------------------------------------------------


def test_gradients_equal_finite_differences() -> None:
    model = make(context_dim=CONTEXT_DIM, positions=Rotary((2, 2), HEAD_DIM))
    x, context = random(1, 4, DIM).requires_grad_(), random(1, 2, CONTEXT_DIM, seed=1).requires_grad_()
    assert torch.autograd.gradcheck(lambda x, context: model(x, None, context).sum(1), (x, context))


def test_every_weight_gets_a_gradient() -> None:
    model = make(context_dim=CONTEXT_DIM, positions=LearnedPositions((2, 3), DIM))
    model(random(2, 6, DIM), None, random(2, 3, CONTEXT_DIM)).square().mul(random(DIM)).sum().backward()
    for name, parameter in model.named_parameters():
        assert parameter.grad is not None, name
        assert parameter.grad.abs().sum() > 0, name


def test_activation_checkpointing_changes_no_bit() -> None:
    gradients = []
    for recompute in (False, True):
        model = make(context_dim=CONTEXT_DIM, dropout=0.3)
        assert Block.recomputable
        if recompute:
            recompute_activations(model)
        torch.manual_seed(1)
        model(random(2, 5, DIM), None, random(2, 3, CONTEXT_DIM)).square().mul(random(DIM)).sum().backward()
        gradients.append([parameter.grad for parameter in model.parameters()])
    for one, two in zip(*gradients, strict=True):
        assert torch.equal(one, two)


def test_dropout_applies_only_in_training() -> None:
    model, x = make(dropout=0.5), random(1, 4, DIM)
    assert not torch.equal(model(x), model(x))
    model.eval()
    assert torch.equal(model(x), model(x))


@pytest.mark.parametrize("where", [None, "learned", "rotary"])
def test_bf16_autocast_stays_near_and_keeps_the_residual_stream_exact(where: str | None) -> None:
    torch.manual_seed(0)
    kinds = {None: None, "learned": LearnedPositions((4, 4), 64), "rotary": Rotary((4, 4), 16)}
    model = Transformer(64, 2, 4, 16, context_dim=64, positions=kinds[where])
    x, context = torch.randn(2, 16, 64), torch.randn(2, 5, 64)
    mask = torch.ones(2, 16, dtype=torch.bool)
    exact = model(x, mask, context, mask[:, :5])
    with torch.autocast("cpu", torch.bfloat16):
        near = model(x, mask, context, mask[:, :5])
    assert near.dtype == torch.float32
    assert 1e-5 < (near - exact).abs().max() < 0.1


def test_the_initial_scale_does_not_depend_on_the_depth() -> None:
    scales = []
    for depth in (2, 16):
        torch.manual_seed(0)
        model = Transformer(64, depth, 4, 16)
        model.norm = nn.Identity()
        x = torch.randn(4, 16, 64)
        scales.append((model(x) - x).std().item())
    assert scales[1] < 1.5 * scales[0]


@pytest.mark.parametrize(("dim", "ff_mult"), [(256, 4.0), (96, 2.0), (20, 4.0)])
def test_the_gated_layer_has_the_weights_of_an_ungated_one(dim: int, ff_mult: float) -> None:
    layer = FeedForward(dim, ff_mult)
    count = sum(parameter.numel() for parameter in layer.parameters())
    plain = 2 * ff_mult * dim * dim
    assert plain <= count < plain + 3 * dim * 16
    assert layer.to_out.in_features % 16 == 0


def test_precomputed_cross_kv_equals_the_context() -> None:
    """Rows with the full context, with a part of it, and without it."""
    model = make(context_dim=CONTEXT_DIM)
    x, context = random(3, 5, DIM), random(3, 4, CONTEXT_DIM, seed=1)
    mask = torch.tensor([[True] * 4, [True, False, True, False], [False] * 4])
    looked = model.precompute_cross_kv(context, mask)
    expected = model(x, context=context, context_mask=mask)
    torch.testing.assert_close(model(x, context=looked), expected, **EXACT)
    rows = torch.tensor([2, 0])
    torch.testing.assert_close(model(x[rows], context=looked.select(rows)), expected[rows], **EXACT)


def test_rows_without_context_skip_cross_attention() -> None:
    model = make(context_dim=CONTEXT_DIM)
    x, context = random(3, 5, DIM), random(3, 4, CONTEXT_DIM, seed=1)
    asking: list[int] = []
    for block in model.blocks:
        assert isinstance(block, Block)
        block.cross_attention.to_queries.register_forward_hook(lambda _, given, __: asking.append(len(given[0])))
    for cond, rows in (([True] * 3, 3), ([False, True, False], 1), ([False] * 3, 0)):
        mask = torch.tensor(cond)[:, None].expand(3, 4)
        expected = model(x, context=context, context_mask=mask)
        looked = model.precompute_cross_kv(context, mask)
        asking.clear()
        torch.testing.assert_close(model(x, context=looked), expected, **EXACT)
        assert asking == [rows] * (2 if rows else 0)


def test_outputs_of_some_tokens_equal_those_of_all() -> None:
    model = make(context_dim=CONTEXT_DIM)
    x, context = random(3, 5, DIM), random(3, 4, CONTEXT_DIM, seed=1)
    where = torch.tensor([0, 2, 3, 12, 0])
    expected = model(x, context=context).flatten(0, 1)[where]
    found = model(x, context=context, where=where)
    torch.testing.assert_close(found, expected, **EXACT)
    gradients = [torch.autograd.grad(out.square().sum(), list(model.parameters())) for out in (found, expected)]
    torch.testing.assert_close(gradients[0], gradients[1], **EXACT)


def test_it_learns_from_positions_and_context() -> None:
    """Copy the context vector at the token's position, from identical tokens."""
    torch.manual_seed(0)
    model = Transformer(32, 2, 4, 8, context_dim=32, positions=LearnedPositions((4,), 32))
    offsets = torch.randn(4, 32)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    losses = []
    for _ in range(150):
        context = torch.randn(16, 4, 32)
        out = model(torch.zeros(16, 4, 32), None, context + 2 * offsets)
        losses.append(F.mse_loss(out, context))
        optimizer.zero_grad()
        losses[-1].backward()
        optimizer.step()
    assert losses[-1] < 0.6 * losses[0]


def test_scales_are_vectors_so_that_they_are_not_decayed() -> None:
    model = make(context_dim=CONTEXT_DIM)
    vectors = {name.rpartition(".")[2] for name, p in named_parameters({"m": model}, ["m"]).items() if p.ndim == 1}
    assert vectors == {"weight", "query_scale", "nothing"}


def test_invalid_arguments_are_refused() -> None:
    with pytest.raises(UsageError, match="depth of at least 1"):
        Transformer(8, 0, 1)
    with pytest.raises(UsageError, match="'rms' or 'layer'"):
        Transformer(8, 1, 1, norm="batch")  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="takes no context"):
        make()(random(1, 2, DIM), None, random(1, 2, CONTEXT_DIM))
    with pytest.raises(UsageError, match="cannot be causal"):
        Attention(8, 1, context_dim=8, causal=True)
    with pytest.raises(UsageError, match="even head_dim of at least 6"):
        Rotary((2, 2, 2), 4)
    with pytest.raises(UsageError, match="at least one position"):
        LearnedPositions((2, 0), 8)


# --- step by step -------------------------------------------------------------------------------------------------


def in_pieces(model: Transformer, x: Tensor, pieces: list[int], *context: Tensor) -> Tensor:
    cache = model.start(len(x), x.shape[1], *context)
    out = torch.cat([model.step(piece, cache) for piece in x.split(pieces, dim=1)], dim=1)
    assert cache.length == x.shape[1]
    return out


@pytest.mark.usefixtures("in_fp64")
@pytest.mark.parametrize("where", ["nowhere", "learned", "rotary", "both"])
@pytest.mark.parametrize("cond", [False, True], ids=["alone", "with context"])
@pytest.mark.parametrize("pieces", [[1] * 7, [7], [3, 1, 2, 1], [1, 6]], ids=str)
def test_cached_steps_equal_a_full_pass(where: str, cond: bool, pieces: list[int]) -> None:
    kinds = {"nowhere": None, "rotary": Rotary((9,), HEAD_DIM)}
    rotary = Rotary((9,), HEAD_DIM) if where == "both" else None
    positions = kinds[where] if where in kinds else LearnedPositions((9,), DIM)
    model = make(causal=True, context_dim=CONTEXT_DIM if cond else None, positions=positions, rotary=rotary)
    x, context = random(3, 7, DIM), random(3, 4, CONTEXT_DIM, seed=1)
    mask = torch.tensor([[True, True, False, True], [False] * 4, [True] * 4])
    given = (context, mask) if cond else ()
    with torch.no_grad():
        torch.testing.assert_close(in_pieces(model, x, pieces, *given), model(x, None, *given), **EXACT)
        if cond:
            torch.testing.assert_close(in_pieces(model, x, pieces), model(x), **EXACT)
            torch.testing.assert_close(in_pieces(model, x, pieces, context), model(x, None, context), **EXACT)


@torch.no_grad()
def test_a_cache_can_drop_rows_and_be_rewound() -> None:
    model = make(causal=True, context_dim=CONTEXT_DIM, positions=Rotary((6,), HEAD_DIM))
    x, context = random(3, 6, DIM), random(3, 4, CONTEXT_DIM, seed=1)
    mask = torch.tensor([[True, True, False, True], [False] * 4, [True] * 4])
    full = model(x, None, context, mask)
    cache = model.start(3, 6, context, mask)
    cache.select(torch.tensor([2, 1, 0]))
    cache.select(torch.tensor([2, 1, 0]))
    first = model.step(x[:, :4], cache)
    torch.testing.assert_close(first, full[:, :4], **EXACT)
    stay = torch.tensor([0, 2])
    cache.select(stay)
    torch.testing.assert_close(model.step(x[stay, 4:], cache), full[stay, 4:], **EXACT)
    cache.rewind()
    assert cache.length == 0
    torch.testing.assert_close(model.step(x[stay], cache), full[stay], **EXACT)


@torch.no_grad()
def test_cache_memory_is_allocated_once() -> None:
    model = make(causal=True)
    cache = model.start(2, 5)
    addresses = set()
    for number in range(5):
        model.step(random(2, 1, DIM, seed=number), cache)
        assert cache.layers[0].keys.shape == (2, HEADS, 5, HEAD_DIM)
        addresses.add(tuple(past.keys.data_ptr() for past in cache.layers))
    assert len(addresses) == 1


def test_steps_use_no_dropout() -> None:
    model, x = make(causal=True, dropout=0.5), random(1, 4, DIM)
    assert model.training
    torch.testing.assert_close(in_pieces(model, x, [1] * 4), model.eval()(x), **EXACT)


def test_bf16_autocast_caches_in_bf16() -> None:
    torch.manual_seed(0)
    model = Transformer(64, 2, 4, 16, context_dim=64, causal=True, positions=Rotary((8,), 16))
    x, context = torch.randn(2, 6, 64), torch.randn(2, 5, 64)
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
        cache = model.start(2, 8, context)
        near = torch.cat([model.step(piece, cache) for piece in x.split([2, 1, 3], dim=1)], dim=1)
        assert cache.layers[0].keys.dtype == torch.bfloat16
    assert near.dtype == torch.float32
    assert (near - model(x, None, context)).abs().max() < 0.1


def test_invalid_steps_are_refused() -> None:
    with pytest.raises(UsageError, match="causal"):
        make().start(1, 4)
    with pytest.raises(UsageError, match="on a line"):
        make(causal=True, positions=Rotary((2, 2), HEAD_DIM)).start(1, 4)
    with pytest.raises(UsageError, match="takes no context"):
        make(causal=True).start(1, 4, random(1, 2, CONTEXT_DIM))
    model = make(causal=True)
    with pytest.raises(UsageError, match="5 tokens do not fit into a KV cache of 4"):
        model.step(random(1, 5, DIM), model.start(1, 4))
    for positions in (Rotary((3,), HEAD_DIM), LearnedPositions((3,), DIM)):
        model = make(causal=True, positions=positions)
        with pytest.raises(UsageError, match="4 tokens do not fit into position embeddings of 3"):
            model.step(random(1, 4, DIM), model.start(1, 4))


@pytest.mark.parametrize("keys", [5, MAX_BF16_LENGTH + 1])
def test_attention_in_bf16_equals_fp32_in_both_implementations(keys: int) -> None:
    torch.manual_seed(0)
    exact = Attention(32, heads=2, head_dim=16, context_dim=8)
    rough = Attention(32, heads=2, head_dim=16, context_dim=8).bfloat16()
    rough.load_state_dict(exact.state_dict())
    x, context = torch.randn(2, 3, 32), torch.randn(2, keys, 8)
    valid_mask = torch.ones(2, keys, dtype=torch.bool)
    valid_mask[0, 2:] = False
    mask = attention_mask(valid_mask)
    found = rough(x.bfloat16(), context.bfloat16(), mask).float()
    torch.testing.assert_close(found, exact(x, context, mask), atol=0.03, rtol=0.05)
    # So are the gradients.
    for attention, dtype in ((exact, torch.float32), (rough, torch.bfloat16)):
        attention(x.to(dtype), context.to(dtype), mask).square().sum().backward()
    for name, parameter in rough.named_parameters():
        exact_grad = exact.get_parameter(name).grad
        assert parameter.grad is not None
        assert exact_grad is not None
        assert (parameter.grad.float() - exact_grad).norm() < 0.02 * exact_grad.norm(), name
    # Masked keys do not matter.
    context[0, 2:] = 100.0
    torch.testing.assert_close(rough(x.bfloat16(), context.bfloat16(), mask).float()[0], found[0])
