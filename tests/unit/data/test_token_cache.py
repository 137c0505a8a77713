"""The token cache: codes are encoded once, whatever happens, and read without the media."""

from __future__ import annotations

import fcntl
import multiprocessing
import os
import pickle
import shutil
import signal
from dataclasses import dataclass, replace
from multiprocessing.synchronize import Barrier, Event
from pathlib import Path

import pytest
import torch
from torch import Tensor

from helpers import flip_bit
from quintet.common.batch import Batch, Item, collate
from quintet.common.rng import ItemRNG
from quintet.common.weights import checkpoint
from quintet.data import token_cache
from quintet.data.token_cache import CacheKey, TokenCache
from quintet.errors import RunError, UnreadableItem

KEY = CacheKey("tokenizer", "data", "centre", variants=1)


@pytest.fixture(autouse=True)
def small_shards(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(token_cache, "SHARD", 4)


@dataclass
class Media:
    """Items computed from their number and their variant; some cannot be read."""

    num: int = 10
    broken: frozenset[int] = frozenset()

    def __len__(self) -> int:
        return self.num

    def name(self, item: int) -> str:
        return f"item-{item}"

    def load(self, item: int, rng: ItemRNG) -> Item:
        if item in self.broken:
            raise UnreadableItem(f"{item} is broken")
        return {"images": torch.full((2, 2), 100 * int(rng.epochs[0]) + item), "texts": "not cached"}

    def metadata(self, item: int) -> Item:
        return {"texts": f"caption {item}"}


class Encoder:
    """Records the items it encodes, and may fail after some of them."""

    def __init__(self, fail_after: int | None = None) -> None:
        self.encoded: list[str] = []
        self.fail_after = fail_after

    def __call__(self, batch: Batch) -> Tensor:
        if self.fail_after is not None and len(self.encoded) >= self.fail_after:
            raise KeyboardInterrupt
        self.encoded += batch.names
        images: Tensor = batch["images"]
        return images * 2


def cache(folder: Path, encoder: Encoder, media: Media | None = None, key: CacheKey = KEY) -> TokenCache:
    return TokenCache(folder, key, media or Media(), collate, encoder, batch_size=3)


def everything(source: token_cache.TokenDataset) -> list[int]:
    return [int(source.load(item, ItemRNG(0, [0], [item]))["codes"][0, 0]) for item in range(len(source))]


def test_codes_are_encoded_once_and_read_without_the_media(tmp_path: Path) -> None:
    encoder = Encoder()
    first = cache(tmp_path, encoder).open()
    assert everything(first) == [2 * item for item in range(10)]
    assert encoder.encoded == [f"item-{item}" for item in range(10)]
    item = first.load(7, ItemRNG(0, [0], [7]))
    assert item["codes"].dtype == torch.int64
    assert item["texts"] == "caption 7"

    again = cache(tmp_path, encoder).open()
    assert everything(again) == everything(first)
    assert len(encoder.encoded) == 10


def test_progress_is_reported_once_per_shard(tmp_path: Path) -> None:
    reported: list[tuple[int, int]] = []
    replace(cache(tmp_path, Encoder()), progress=lambda done, total: reported.append((done, total))).open()
    assert reported == [(0, 10), (4, 10), (8, 10), (10, 10)]


def test_an_interrupted_encoding_continues_where_it_stopped(tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt):
        cache(tmp_path, Encoder(fail_after=6)).open()
    encoder = Encoder()
    assert everything(cache(tmp_path, encoder).open()) == [2 * item for item in range(10)]
    assert encoder.encoded == [f"item-{item}" for item in range(4, 10)]


def test_a_killed_encoding_continues_where_it_stopped(tmp_path: Path) -> None:
    process = multiprocessing.get_context("fork").Process(target=_encode_and_die, args=(tmp_path,))
    process.start()
    process.join()
    assert process.exitcode == -signal.SIGKILL
    encoder = Encoder()
    assert everything(cache(tmp_path, encoder).open()) == [2 * item for item in range(10)]
    assert encoder.encoded == [f"item-{item}" for item in range(4, 10)]


def _encode_and_die(folder: Path) -> None:
    encoder = Encoder()

    def encode(batch: Batch) -> Tensor:
        if "item-7" in batch.names:
            os.kill(os.getpid(), signal.SIGKILL)
        return encoder(batch)

    TokenCache(folder, KEY, Media(), collate, encode).open()


def contents(folder: Path) -> dict[str, bytes]:
    """The shards of a cache and their records."""
    return {path.name: path.read_bytes() for path in folder.glob("codes-*/shard-*")}


@pytest.mark.parametrize("broken", [frozenset[int](), frozenset({0, 5, 6})], ids=len)
def test_workers_make_no_difference(broken: frozenset[int], tmp_path: Path) -> None:
    key = replace(KEY, variants=2)
    for workers in (0, 2):
        encoder = Encoder()
        made = cache(tmp_path / str(workers), encoder, Media(broken=broken), key)
        replace(made, workers=workers).open()
    assert len(contents(tmp_path / "0")) == 6
    assert contents(tmp_path / "0") == contents(tmp_path / "2")


class Deadly(Media):
    def load(self, item: int, rng: ItemRNG) -> Item:
        if item == 3:
            os.kill(os.getpid(), signal.SIGKILL)
        return super().load(item, rng)


def test_a_dead_worker_is_one_sentence(tmp_path: Path) -> None:
    made = replace(cache(tmp_path, Encoder(), Deadly()), workers=2)
    with pytest.raises(RunError, match=r"^a data worker died while items were encoded .*data\.num_workers \(now 2\)"):
        made.open()


class Failing(Media):
    def load(self, item: int, rng: ItemRNG) -> Item:
        raise RunError("the shard of this item is damaged")


def test_errors_of_workers_are_those_of_the_process(tmp_path: Path) -> None:
    for workers in (0, 2):
        with pytest.raises(RunError, match=r"^the shard of this item is damaged$"):
            replace(cache(tmp_path, Encoder(), Failing()), workers=workers).open()


def test_vectors_are_cached_as_float32(tmp_path: Path) -> None:
    def encode(batch: Batch) -> Tensor:
        return batch["images"].flatten(1).float() * -0.1

    key = replace(KEY, tokenizer="listener")
    for _ in range(2):  # encoded, then read
        dataset = TokenCache(tmp_path, key, Media(broken=frozenset({2})), collate, encode, field="clip").open()
        item = dataset.load(7, ItemRNG(0, [0], [7]))
        assert item.keys() == {"texts", "clip"}
        assert torch.equal(item["clip"], torch.full((4,), 7) * -0.1)
        assert item["clip"].dtype == torch.float32
        with pytest.raises(UnreadableItem, match="2 is broken"):
            dataset.load(2, ItemRNG(0, [0], [2]))


@pytest.mark.parametrize("damage", ["flip", "cut", "empty", "no record", "strange record", "no shard"])
def test_a_damaged_shard_is_encoded_again(tmp_path: Path, damage: str) -> None:
    cache(tmp_path, Encoder()).open()
    (shard,) = tmp_path.glob("*/shard-00001.npy")
    content = bytearray(shard.read_bytes())
    if damage == "flip":
        content[-1] ^= 1
        shard.write_bytes(content)
    elif damage == "cut":
        shard.write_bytes(content[:-8])
    elif damage == "empty":
        shard.write_bytes(b"")
    elif damage == "no record":
        shard.with_suffix(".json").unlink()
    elif damage == "strange record":
        shard.with_suffix(".json").write_text('{"sha256": []}')
    else:
        shard.unlink()
    encoder = Encoder()
    assert everything(cache(tmp_path, encoder).open()) == [2 * item for item in range(10)]
    assert encoder.encoded == [f"item-{item}" for item in range(4, 8)]


def test_an_unreadable_item_is_remembered_with_its_reason(tmp_path: Path) -> None:
    media = Media(broken=frozenset({0, 5, 6}))
    for _ in range(2):
        source = cache(tmp_path, Encoder(), media).open()
        assert source.skipped == {0: "0 is broken", 5: "5 is broken", 6: "6 is broken"}
        with pytest.raises(UnreadableItem, match="5 is broken"):
            source.load(5, ItemRNG(0, [0], [5]))
        assert [int(source.codes(item)[0, 0, 0]) for item in (1, 4, 7, 9)] == [2, 8, 14, 18]


def test_a_shard_without_readable_items_is_cached(tmp_path: Path) -> None:
    media = Media(broken=frozenset(range(4)))
    cache(tmp_path, Encoder(), media).open()
    encoder = Encoder()
    source = cache(tmp_path, encoder, media).open()
    assert encoder.encoded == []
    assert int(source.codes(4)[0, 0, 0]) == 8


def test_variants_are_augmented_like_epochs_and_chosen_by_epoch_and_item(tmp_path: Path) -> None:
    source = cache(tmp_path, Encoder(), key=replace(KEY, variants=3)).open()
    assert [int(codes[0, 0]) for codes in source.codes(7)] == [14, 214, 414]
    seen = {int(source.load(7, ItemRNG(0, [epoch], [7]))["codes"][0, 0]) for epoch in range(40)}
    assert seen == {14, 214, 414}
    once, again = (source.load(7, ItemRNG(0, [11], [7]))["codes"] for _ in range(2))
    assert torch.equal(once, again)


class Ragged:
    """Item n has n % 5 + 1 rows in variant 0 and one more in each further variant, padded within a batch."""

    def __call__(self, batch: Batch) -> Tensor:
        numbers = [int(image[0, 0]) for image in batch["images"]]
        lengths = [number % 100 % 5 + 1 + number // 100 for number in numbers]
        codes = torch.full((len(numbers), max(lengths), 2), -1)
        for row, (number, length) in enumerate(zip(numbers, lengths, strict=True)):
            codes[row, :length] = number
        return codes


def test_items_of_different_length_come_back_without_padding(tmp_path: Path) -> None:
    media = Media(broken=frozenset({5}))
    key = replace(KEY, variants=3)
    for _ in range(2):
        source = TokenCache(tmp_path, key, media, collate, Ragged()).open()
        assert source.lengths() == [0 if item == 5 else item % 5 + 3 for item in range(10)]
        shapes = set()
        for item in (0, 3, 7, 9):
            for epoch in range(20):
                codes = source.load(item, ItemRNG(0, [epoch], [item]))["codes"]
                variant, number = divmod(int(codes[0, 0]), 100)
                assert number == item
                assert codes.shape == (item % 5 + 1 + variant, 2)
                assert (codes == codes[0, 0]).all()
                shapes.add(tuple(codes.shape))
        assert len(shapes) > 4


@pytest.mark.parametrize(
    "change", [{"tokenizer": "x"}, {"data": "x"}, {"transform": "x"}, {"variants": 2}, {"encoding": "x"}]
)
def test_codes_of_something_else_are_not_used(tmp_path: Path, change: dict[str, object]) -> None:
    cache(tmp_path, Encoder()).open()
    encoder = Encoder()
    cache(tmp_path, encoder, key=replace(KEY, **change)).open()  # type: ignore[arg-type]
    assert len(encoder.encoded) >= 10


def test_a_cache_that_was_encoded_with_the_defaults_keeps_its_name() -> None:
    assert KEY.name == "552393b4c149a5c34442bdbccb3208c5"


def test_codes_survive_the_deletion_of_the_cache(tmp_path: Path) -> None:
    opened = cache(tmp_path / "cache", Encoder()).open()
    copy = pickle.loads(pickle.dumps(opened))
    shutil.rmtree(tmp_path / "cache")
    assert everything(opened) == [2 * item for item in range(10)]
    # A data worker that was not forked has to open the files itself.
    with pytest.raises(RunError, match=r"cannot be read any more .*`quintet resume` encodes the data again"):
        everything(copy)


def test_a_dataset_of_codes_can_be_pickled(tmp_path: Path) -> None:
    source = cache(tmp_path, Encoder()).open()
    everything(source)
    assert everything(pickle.loads(pickle.dumps(source))) == everything(source)


def _encode_and_note(folder: Path, number: int) -> None:
    encoder = Encoder()
    source = cache(folder, encoder).open()
    (folder / f"noted-{number}").write_text(f"{len(encoder.encoded)} {everything(source)}")


def test_several_processes_encode_each_item_once(tmp_path: Path) -> None:
    context = multiprocessing.get_context("fork")
    processes = [context.Process(target=_encode_and_note, args=(tmp_path, number)) for number in range(3)]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
        assert process.exitcode == 0
    noted = [(tmp_path / f"noted-{number}").read_text().split(" ", 1) for number in range(3)]
    assert sum(int(count) for count, _ in noted) == 10
    assert {codes for _, codes in noted} == {str([2 * item for item in range(10)])}


def test_processes_share_the_encoding_and_start_at_different_shards(tmp_path: Path) -> None:
    """The two wait for each other inside the encoder, so each encodes another shard at the same time."""
    context = multiprocessing.get_context("fork")
    barrier = context.Barrier(2, timeout=60)
    processes = [context.Process(target=_encode_together, args=(tmp_path, rank, barrier)) for rank in range(2)]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
    assert [process.exitcode for process in processes] == [0, 0]
    encoded = [(tmp_path / f"rank-{rank}").read_text().split() for rank in range(2)]
    assert all(encoded)
    assert sorted([*encoded[0], *encoded[1]]) == sorted(f"item-{item}" for item in range(16))
    cache(tmp_path / "alone", Encoder(), Media(16)).open()
    assert contents(tmp_path) == contents(tmp_path / "alone")


def test_processes_of_a_launcher_hash_each_shard_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cache(tmp_path, Encoder()).open()
    alone = contents(tmp_path)
    hashed: list[str] = []
    hash_file = checkpoint.hash_file
    monkeypatch.setattr(checkpoint, "hash_file", lambda path: hashed.append(path.name) or hash_file(path))
    monkeypatch.setenv("WORLD_SIZE", "2")
    for port, expected in (("1", [3, 0]), ("2", [3, 0])):  # another launcher checks for itself
        monkeypatch.setenv("MASTER_PORT", port)
        for rank, count in enumerate(expected):
            monkeypatch.setenv("RANK", str(rank))
            hashed.clear()
            assert everything(cache(tmp_path, Encoder(fail_after=0)).open()) == [2 * item for item in range(10)]
            assert len(hashed) == count
    assert contents(tmp_path) == alone


def test_a_shard_that_changed_after_its_check_is_encoded_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.setenv("RANK", "0")
    cache(tmp_path, Encoder()).open()
    whole = contents(tmp_path)
    flip_bit(next(tmp_path.glob("codes-*/shard-00001.npy")))
    monkeypatch.setenv("RANK", "1")
    encoder = Encoder()
    cache(tmp_path, encoder).open()
    assert encoder.encoded == [f"item-{item}" for item in range(4, 8)]
    assert contents(tmp_path) == whole


def _encode_together(folder: Path, rank: int, barrier: Barrier) -> None:
    os.environ.update(RANK=str(rank), WORLD_SIZE="2")
    encoder = Encoder()

    def encode(batch: Batch) -> Tensor:
        if not encoder.encoded:
            barrier.wait()
        return encoder(batch)

    opened = TokenCache(folder, KEY, Media(16), collate, encode).open()
    assert [opened.load(item, ItemRNG(0, [0], [item]))["texts"] for item in (0, 15)] == ["caption 0", "caption 15"]
    (folder / f"rank-{rank}").write_text(" ".join(encoder.encoded))


def test_existing_codes_are_checked_without_a_lock(tmp_path: Path) -> None:
    """Another process may hold the lock for hours."""
    cache(tmp_path, Encoder()).open()
    (lock,) = tmp_path.glob("codes-*/lock")
    context = multiprocessing.get_context("fork")
    holding, done = context.Event(), context.Event()
    holder = context.Process(target=_hold, args=(lock, holding, done))
    holder.start()
    assert holding.wait(60)
    opened = cache(tmp_path, Encoder(fail_after=0)).open()
    done.set()
    holder.join()
    assert len(opened) == 10


def _hold(lock: Path, holding: Event, done: Event) -> None:
    with lock.open("ab") as file:
        fcntl.lockf(file, fcntl.LOCK_EX)
        holding.set()
        done.wait(60)
