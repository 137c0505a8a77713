"""Training on shards: the same weights as on the folder, exact resumption within an epoch, several processes, S3."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread

import fsspec
import pyarrow
import pyarrow.parquet
import pytest

from contract import worlds
from contract.cases import GOLDEN, case_of
from faulty_s3 import CREDENTIALS, FaultyS3, faulty_s3
from helpers import copied, error_line, executed, made_once, quintet, state, succeed, tensor_hashes, torchrun, tree
from quintet.data.check import MEDIA
from quintet.data.index.folder import scan
from quintet.data.index.listing import list_media
from quintet.data.index.shard_index import INDEX_NAME
from quintet.data.index.shard_store import Patience, RemoteStore
from quintet.errors import RunError, UsageError
from quintet.media.files import media_ref, read_file

QUICK = Patience(4, 0.001)


def shards_of(folder: Path, shared: Path) -> Path:
    """Created once per session. Read-only."""
    return made_once(
        shared, f"shards-of-{folder.name}", lambda out: succeed("data", "shard", folder, out, "--items", 10)
    )


def trained_on(recipe: str, data: object, out: Path, *more: object) -> dict[str, str]:
    succeed("train", recipe, data, "--out", out, *case_of(recipe).tiny, *more)
    return tensor_hashes(out, 12)


# --- the same weights ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("recipe", ["vqgan", "mesh-autoencoder", "audio-codec", "cvivit", "muse"])
def test_shards_give_the_weights_of_the_folder(
    recipe: str, shared: Path, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    folder = request.getfixturevalue(case_of(recipe).data)
    assert trained_on(recipe, shards_of(folder, shared), tmp_path / "shards") == trained_on(
        recipe, folder, tmp_path / "folder"
    )
    record = json.loads((tmp_path / "shards" / "data.json").read_text())
    assert type(record["train"]) is type(record["validation"]) is int
    assert record["skipped"] == {}


def test_workers_do_not_change_the_weights(pictures: Path, shared: Path, tmp_path: Path) -> None:
    shards = shards_of(pictures, shared)
    found = [trained_on("vqgan", shards, tmp_path / str(count), f"data.num_workers={count}") for count in (0, 1, 2)]
    assert found[0] == found[1] == found[2]


@pytest.mark.parametrize("shuffle", ["data.shuffle_shards=null", "data.shuffle_shards=2"])
def test_a_run_is_resumed_exactly_within_an_epoch(shuffle: str, pictures: Path, shared: Path, tmp_path: Path) -> None:
    """Half of the training items are used by step 5; then the shards move, and there are fewer workers."""
    shards = copied(shards_of(pictures, shared), tmp_path / "moved")
    straight = trained_on("vqgan", shards, tmp_path / "straight", shuffle)
    parts = tmp_path / "parts"
    succeed(
        "train", "vqgan", shards, "--out", parts, *case_of("vqgan").tiny, "train.steps=5", "optim.decay_steps=12",
        shuffle, "data.num_workers=2",
    )  # fmt: skip
    shards.rename(tmp_path / "elsewhere")
    succeed("resume", parts, "train.steps=12", f"data.path={tmp_path / 'elsewhere'}", "data.num_workers=0")
    assert tensor_hashes(parts, 12) == straight


def test_shuffle_shards_needs_shards(pictures: Path) -> None:
    outcome = quintet("train", "vqgan", pictures, "--preset", "debug", "data.shuffle_shards=2")
    assert outcome.code == 2
    assert "data.shuffle_shards=2 needs shards, but" in error_line(outcome.errors)


def test_two_processes_see_the_items_that_one_sees(pictures: Path, shared: Path, tmp_path: Path) -> None:
    arguments = {"recipe": "vqgan", "data": str(shards_of(pictures, shared)), "words": case_of("vqgan").tiny}
    worlds.train(**arguments, out=str(tmp_path / "one"))
    (tmp_path / "plan.json").write_text(json.dumps([{**arguments, "out": str(tmp_path / "two")}]))
    command = torchrun(2, "-m", worlds.__name__, tmp_path / "plan.json")
    with executed(command, tmp_path / "said", cwd=Path(__file__).parents[1]) as process:
        assert process.end() == 0, process.seen
    assert seen_in(tmp_path / "two") == seen_in(tmp_path / "one")


def seen_in(out: Path) -> set[tuple[int, str]]:
    files = sorted(out.glob("seen-*.json"))
    return {(epoch, name) for file in files for epoch, name in json.loads(file.read_text())}


def test_a_resume_on_other_shards_is_refused(pictures: Path, shared: Path, tmp_path: Path) -> None:
    shards = copied(shards_of(pictures, shared), tmp_path / "shards")
    trained_on("vqgan", shards, tmp_path / "run")
    sorted(shards.glob("*.tar"))[-1].unlink()
    outcome = quintet("resume", tmp_path / "run", "train.steps=14")
    assert outcome.code == 2
    assert "shard-00004.tar, which the index names, is missing" in error_line(outcome.errors)
    (shards / INDEX_NAME).unlink()
    outcome = quintet("resume", tmp_path / "run", "train.steps=14")
    assert outcome.code == 2
    assert "the data changed since the run started (41 items before, 35 now, and another index)" in error_line(
        outcome.errors
    )
    succeed("resume", tmp_path / "run", "train.steps=14", "--force")


def test_an_unreadable_item_of_a_shard_is_replaced_and_named(pictures: Path, shared: Path, tmp_path: Path) -> None:
    shards = copied(shards_of(pictures, shared), tmp_path / "shards")
    content = bytearray((shards / "shard-00000.tar").read_bytes())
    content[512 : 512 + 200] = bytes(200)
    (shards / "shard-00000.tar").write_bytes(content)
    succeed("train", "vqgan", shards, "--out", tmp_path / "run", *case_of("vqgan").tiny)
    assert list(json.loads((tmp_path / "run" / "data.json").read_text())["skipped"].values()) == [
        "damaged: its content does not match its hash in the shard"
    ]


def test_a_model_is_used_on_shards_as_on_a_folder(sounds: Path, shared: Path, tmp_path: Path) -> None:
    shards = shards_of(sounds, shared)
    model = GOLDEN / "mulan-format-1" / "hub"
    found = [succeed("search", model, data, "--text", "a flute", "--json").output for data in (sounds, shards)]
    assert found[0] == found[1]
    tokenizer = GOLDEN / "audio-codec-format-1" / "hub"
    for name, data in (("folder", sounds), ("shards", shards)):
        succeed("encode", tokenizer, data, "--out", tmp_path / name)
    assert tree(tmp_path / "folder") == tree(tmp_path / "shards")


# --- S3 -----------------------------------------------------------------------------------------------------------


@pytest.fixture
def s3(pictures: Path, shared: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FaultyS3]:
    """`s3://bucket/set` holds the shards of the images."""
    with reachable(shards_of(pictures, shared), monkeypatch) as server:
        yield server


@contextmanager
def reachable(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FaultyS3]:
    """A folder as `s3://bucket/set`. A hanging request times out after a second."""
    with faulty_s3(folder) as server:
        for name, value in {**CREDENTIALS, "AWS_ENDPOINT_URL": server.address}.items():
            monkeypatch.setenv(name, value)
        options = {"config_kwargs": {"read_timeout": 1, "retries": {"max_attempts": 0}}}
        monkeypatch.setitem(fsspec.config.conf, "s3", options)
        yield server
        fsspec.get_filesystem_class("s3").clear_instance_cache()


def test_a_run_on_s3_equals_that_on_the_folder(s3: FaultyS3, pictures: Path, tmp_path: Path) -> None:
    expected = trained_on("vqgan", pictures, tmp_path / "folder")
    cache = f"data.cache_dir={tmp_path / 'cache'}"
    assert trained_on("vqgan", "s3://bucket/set", tmp_path / "s3", cache) == expected
    assert sorted(s3.requested) == sorted({*s3.requested}), "each file is downloaded once"
    downloads = len(s3.requested)
    succeed("resume", tmp_path / "s3", "train.steps=13")
    assert len(s3.requested) == downloads, "all are in the cache"


def test_errors_timeouts_and_truncations_are_retried_with_a_message(
    s3: FaultyS3, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    store = RemoteStore("s3://bucket/set", tmp_path, QUICK)
    assert len(store.list_shards()) == 5
    for number, fault in enumerate(("error", "hang", "cut")):
        s3.faults = [fault, fault]
        name = f"shard-0000{number}.tar"
        path = store.file(name)
        assert path.stat().st_size == store.known[name].size
        first, second = capsys.readouterr().err.splitlines()
        for line, again in ((first, "attempt 2 of 4 in 0.001 s"), (second, "attempt 3 of 4 in 0.002 s")):
            assert line.startswith(f"s3://bucket/set/{name}: ")
            assert line.endswith(again)
    assert not list(tmp_path.rglob("*.writing"))


@pytest.mark.parametrize("fault", ["error", "cut"])
def test_a_shard_that_never_arrives_is_named_in_an_error(fault: str, s3: FaultyS3, tmp_path: Path) -> None:
    store = RemoteStore("s3://bucket/set", tmp_path, QUICK)
    store.list_shards()
    s3.faults = [fault] * 1000
    with pytest.raises(
        RunError, match=r"cannot read s3://bucket/set/shard-00001.tar after 4 attempts \(.*\); run `quintet"
    ):
        store.file("shard-00001.tar")
    assert not [path for path in tmp_path.rglob("*") if path.suffix in (".tar", ".writing")]
    s3.faults.clear()
    assert store.file("shard-00001.tar").stat().st_size == store.known["shard-00001.tar"].size


@pytest.mark.parametrize("workers", [0, 2])
def test_faults_do_not_change_the_weights(workers: int, s3: FaultyS3, pictures: Path, tmp_path: Path) -> None:
    """Nothing is skipped, so the weights are the same. Workers have their own connections."""
    s3.faults = ["cut", "well", "error", "well", "cut"]
    more = (f"data.cache_dir={tmp_path / 'cache'}", f"data.num_workers={workers}")
    found = trained_on("vqgan", "s3://bucket/set", tmp_path / "s3", *more)
    assert not s3.faults
    assert found == trained_on("vqgan", pictures, tmp_path / "folder")
    assert json.loads((tmp_path / "s3" / "data.json").read_text())["skipped"] == {}
    assert state(tmp_path / "s3")["status"] == "finished"


def test_a_url_without_shards_is_refused(s3: FaultyS3) -> None:
    for address in ("s3://bucket/nothing", "s3://no-such-bucket/set"):
        outcome = quintet("train", "vqgan", address, "--preset", "debug")
        assert outcome.code == 2
        assert error_line(outcome.errors) == f"error: {address} does not exist or holds no shard"
    with pytest.raises(UsageError, match="nosuch://x is not a URL that can be read"):
        list_media("nosuch://x", MEDIA["image"].extensions)


def test_remote_parquet_files_equal_those_of_a_folder(
    pictures: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Their items have other names than those of the folder, and names decide the split and the order."""
    entries = scan(pictures, MEDIA["image"].extensions).entries
    (tmp_path / "tables").mkdir()
    for number, part in enumerate((entries[:30], entries[30:])):
        rows = [
            {"image": {"bytes": (pictures / entry.file).read_bytes(), "path": None}, "text": entry.text}
            for entry in part
        ]
        pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), tmp_path / "tables" / f"train-{number}.parquet")
    expected = trained_on("vqgan", tmp_path / "tables", tmp_path / "local")
    assert json.loads((tmp_path / "local" / "data.json").read_text())["captions_from"] == "shards"
    with reachable(tmp_path / "tables", monkeypatch) as server:
        server.faults = ["cut", "error"]
        more = (f"data.cache_dir={tmp_path / 'cache'}", "data.num_workers=2")
        assert trained_on("vqgan", "s3://bucket/set", tmp_path / "s3", *more) == expected


def test_missing_credentials_are_reported_at_once(
    s3: FaultyS3, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name)
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "none"))
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "none"))
    fsspec.get_filesystem_class("s3").clear_instance_cache()
    with pytest.raises(UsageError, match=r"no permission to read s3://bucket/set: NoCredentialsError"):
        RemoteStore("s3://bucket/set", tmp_path, QUICK).list_shards()
    assert "attempt" not in capsys.readouterr().err


def test_a_url_may_contain_an_equals_sign(s3: FaultyS3) -> None:
    address = "s3://bucket/date=2024/shards"
    outcome = quintet("train", "vqgan", address, "--preset", "debug")
    assert error_line(outcome.errors) == f"error: {address} does not exist or holds no shard"
    outcome = quintet("train", "vqgan", f"data.path={address}", "--preset", "debug")
    assert error_line(outcome.errors) == f"error: {address} does not exist or holds no shard"


def test_shards_without_an_index_are_listed_from_s3(s3: FaultyS3, pictures: Path, tmp_path: Path) -> None:
    all_items = list_media("s3://bucket/set", MEDIA["image"].extensions, cache=str(tmp_path))
    one = list_media("s3://bucket/set/shard-00001.tar", MEDIA["image"].extensions, cache=str(tmp_path))
    assert [entry.file for entry in one.entries] == [entry.file for entry in all_items.entries[10:20]]
    assert succeed("data", "check", "s3://bucket/set").output.startswith("folder      s3://bucket/set\n")


# --- web servers --------------------------------------------------------------------------------------------------


class WebServer(SimpleHTTPRequestHandler):
    """A folder with a listing without sizes, which only a request for a file returns."""

    def do_HEAD(self) -> None:
        self._answer(super().do_HEAD)

    def do_GET(self) -> None:
        self._answer(super().do_GET)

    def _answer(self, answer: Callable[[], None]) -> None:
        assert isinstance(self.server, Web)
        if self.server.faults and self.path.endswith(".tar"):
            self.send_error(self.server.faults.pop(0))
        else:
            answer()

    def log_message(self, *_: object) -> None:
        """No output, which would mix with that of quintet."""


class Web(ThreadingHTTPServer):
    def __init__(self, folder: Path) -> None:
        super().__init__(("127.0.0.1", 0), partial(WebServer, directory=str(folder)))
        self.faults: list[int] = []
        """The status codes of the next requests for shards."""
        self.address = f"http://127.0.0.1:{self.server_port}/set"


@pytest.fixture
def web(pictures: Path, shared: Path, tmp_path: Path) -> Iterator[Web]:
    copied(shards_of(pictures, shared), tmp_path / "web" / "set")
    with Web(tmp_path / "web") as server:
        thread = Thread(target=server.serve_forever)
        thread.start()
        yield server
        server.shutdown()
        thread.join()


@pytest.mark.parametrize("end", ["", "/"])
def test_shards_of_a_web_server_equal_those_of_the_folder(end: str, web: Web, pictures: Path, tmp_path: Path) -> None:
    entries = list_media(web.address + end, MEDIA["image"].extensions, cache=str(tmp_path / "cache")).entries
    of_folder = scan(pictures, MEDIA["image"].extensions).entries
    assert [entry.file for entry in entries] == [entry.file for entry in of_folder]
    for entry in entries:
        assert read_file(media_ref(entry.media(""))) == (pictures / entry.file).read_bytes()


def test_a_single_shard_of_a_web_server_is_used(web: Web, tmp_path: Path) -> None:
    for number, query in enumerate(("", "?signature=a")):
        cache = tmp_path / f"cache {number}"
        address = f"{web.address}/shard-00001.tar{query}"
        entries = list_media(address, MEDIA["image"].extensions, cache=str(cache)).entries
        assert len(entries) == 10
        assert [path.name[-15:] for path in cache.rglob("*.tar")] == ["shard-00001.tar"]


def test_a_failing_web_server_is_retried(web: Web, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    address = f"{web.address}/shard-00001.tar"
    store = RemoteStore(address, tmp_path / "cache", QUICK)
    web.faults = [503, 503]  # the size is requested in two ways
    found = store.list_shards()
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 1
    assert lines[0].startswith(f"{address}: ClientResponseError: 503")
    web.faults = [503]
    assert store.file(found[0].name).stat().st_size == found[0].size
    assert capsys.readouterr().err.startswith(f"{address}: ClientResponseError: 503")
    assert found[0].version, "the server reports a version"


def test_a_missing_shard_of_a_web_server_is_named(web: Web, tmp_path: Path) -> None:
    address = f"{web.address}/shard-00001.tar"
    store = RemoteStore(address, tmp_path / "cache", QUICK)
    store.list_shards()
    (tmp_path / "web" / "set" / "shard-00001.tar").unlink()
    for request in (lambda: store.file("shard-00001.tar"), store.list_shards):
        with pytest.raises(UsageError) as caught:
            request()
        assert str(caught.value) == f"{address} does not exist or holds no shard"


def test_a_long_download_from_a_web_server_has_no_total_timeout(web: Web, tmp_path: Path) -> None:
    """The default of the client is five minutes."""
    system, _ = RemoteStore(web.address, tmp_path)._system()
    timeout = system.client_kwargs["timeout"]
    assert timeout.total is None
    assert timeout.sock_read
