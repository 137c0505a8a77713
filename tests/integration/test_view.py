"""The server of `quintet view`: access control, files that are never served, live updates, playground and export."""

from __future__ import annotations

import json
import os
import re
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest

from contract.cases import Train
from helpers import error_line, made_once, quintet, succeed
from quintet.errors import UsageError
from quintet.web.playground import MAX_TEXT_LENGTH, GenerationJob
from quintet.web.safety import RateLimit
from quintet.web.server import LOOPBACK
from viewing import Address, add_row, add_samples, serving, viewing, wait_for, write_run, write_state

OUTSIDE = (
    "/media?run=run&step=10&file=../../../secret.png",
    "/media?run=run&step=10&file=..%2f..%2f..%2fsecret.png",
    "/media?run=run&step=10&file=%2e%2e/%2e%2e/state.json",
    "/media?run=run&step=10&file=/etc/passwd",
    "/media?run=run&step=10&file=a%00.png",
    "/media?run=run&step=../..&file=secret.png",
    "/media?run=../secret&step=10&file=000-made.png",
    "/media?run=..%2fsecret&step=10&file=000-made.png",
    "/media?run=/etc&step=10&file=passwd",
    "/media?run=run&step=10&file=link.png",
    "/media?run=run&step=10&file=samples.jsonl",
    "/media?run=run&step=10&file=page.html",
    "/media?run=run&step=10&file=drawing.svg",
    "/generated?job=..&file=secret.png",
    "/static/../app.py",
    "/static/..%2fapp.py",
    "/static/%2e%2e/%2e%2e/config.py",
    "/static//etc/passwd",
    "/../../etc/passwd",
    "/api/run?run=../secret",
    "/api/samples?run=run&step=..",
    "/api/curves?run=/&name=x",
)


@pytest.fixture
def runs(tmp_path: Path) -> Path:
    """A folder with one run, and a secret beside the folder."""
    write_run(tmp_path / "runs" / "run")
    folder = add_samples(tmp_path / "runs" / "run", 10, ("png", "wav"), caption="<img src=x onerror=alert(1)>")
    write_run(tmp_path / "secret")
    add_samples(tmp_path / "secret", 10)
    (tmp_path / "secret.png").write_bytes(b"secret")
    (folder / "link.png").symlink_to(tmp_path / "secret.png")
    (folder / "page.html").write_text("<script>secret</script>")
    (folder / "drawing.svg").write_text("<svg><script>secret</script></svg>")
    return tmp_path / "runs"


@pytest.fixture
def site(runs: Path) -> Iterator[Address]:
    with serving(runs) as address:
        yield address


# --- content --------------------------------------------------------------------------------------------------


def test_the_page_and_everything_it_asks_for_are_served(site: Address) -> None:
    page = site.ask("/")
    assert page.status == 200
    files = re.findall(r'(?:src|href)="(static/[^"]+)"', page.body.decode())
    assert len(files) > 10
    assert {site.ask(f"/{file}").status for file in files} == {200}
    assert not re.findall(r"https?://", page.body.decode())
    assert site.ask("/static/vendor/uPlot-LICENSE.txt").body.startswith(b"The MIT License")
    again = site.ask("/static/base.js", if_none_match=site.ask("/static/base.js").headers["etag"])
    assert (again.status, again.body) == (304, b"")


def test_a_run_its_curves_samples_and_media_are_served(site: Address) -> None:
    (line,) = site.ask("/api/runs").json["runs"]
    assert (line["id"], line["state"]) == ("run", "finished")
    about = site.ask("/api/run?run=run").json
    assert about["rows"] == 10
    assert about["data"]["skipped"] == [["bad <b>.png", "is cut off"]]
    curves = site.ask("/api/curves?run=run&name=train/lr&name=nothing&from=25&to=55").json
    assert curves == {"train/lr": {"steps": [20, 30, 40, 50, 60], "mean": [0.001] * 5}}
    assert [each["file"] for each in site.ask("/api/samples?run=run&step=10").json][:2] == [
        "000-made.png",
        "000-made.wav",
    ]
    image = site.ask("/media?run=run&step=10&file=000-made.png")
    assert (image.status, image.headers["content-type"]) == (200, "image/png")
    part = site.ask("/media?run=run&step=10&file=000-made.wav", range="bytes=0-3")
    assert (part.status, part.body) == (206, b"RIFF")


@pytest.mark.parametrize("path", OUTSIDE)
def test_nothing_outside_of_the_folders_is_served(site: Address, path: str) -> None:
    reply = site.ask(path)
    assert reply.status in (400, 404)
    assert b'secret"' not in reply.body.replace(b"there is no run ../secret", b"")
    assert b"root:" not in reply.body
    assert b"from __future__" not in reply.body


def test_captions_cannot_inject_markup(site: Address) -> None:
    """They are sent unchanged as JSON, which no browser treats as HTML, and the page only creates text nodes."""
    reply = site.ask("/api/samples?run=run&step=10")
    assert reply.json[0]["text"] == "<img src=x onerror=alert(1)> 0"
    assert reply.headers["content-type"] == "application/json"
    assert reply.headers["x-content-type-options"] == "nosniff"
    policy = reply.headers["content-security-policy"]
    assert "default-src 'none'; script-src 'self';" in policy
    assert "unsafe" not in policy
    for file in (Path(sys.modules["quintet.web.app"].__file__ or "").parent / "page").glob("*.js"):
        assert not re.search(r"innerHTML|outerHTML|insertAdjacent|document\.write|\beval\(", file.read_text("utf-8")), (
            file
        )


# --- access control --------------------------------------------------------------------------------------------


def test_without_a_token_only_the_machines_own_names_are_answered(site: Address) -> None:
    assert site.ask("/", host="localhost:1").status == 200
    assert site.ask("/api/runs", host="[::1]:80").status == 200
    for name in ("evil.example", "evil.example:80", "127.0.0.1.evil.example", "[", ""):
        assert site.ask("/api/runs", host=name).status == 403


def test_token_is_required_and_then_stored_in_a_cookie(runs: Path) -> None:
    with serving(runs, token="sesame0123456789") as site:
        for path in ("/", "/api/runs", "/static/base.js", "/media?run=run&step=10&file=000-made.png", "/?token=wrong"):
            reply = site.ask(path)
            assert (reply.status, b"open the address that `quintet view` printed" in reply.body) == (401, True)
        welcome = site.ask("/?token=sesame0123456789")
        assert (welcome.status, welcome.headers["location"]) == (303, "/")
        assert "HttpOnly; SameSite=Strict" in welcome.headers["set-cookie"]
        cookie = welcome.headers["set-cookie"].split(";")[0]
        assert site.ask("/api/runs", cookie=cookie, host=f"machine.example:{site.port}").status == 200
        assert site.ask("/api/runs", cookie=f"{cookie.partition('=')[0]}=sesame").status == 401
        assert site.ask("/api/runs", authorization="Bearer sesame0123456789").status == 200


def test_two_servers_on_one_machine_have_separate_cookies(runs: Path) -> None:
    """A browser sends the cookies of all ports of a machine to each of them."""
    tokens = ("sesame0123456789", "another123456789")
    with serving(runs, token=tokens[0]) as first, serving(runs, token=tokens[1]) as second:
        welcomes = [site.ask(f"/?token={token}") for site, token in zip((first, second), tokens, strict=True)]
        received = dict(reply.headers["set-cookie"].split(";")[0].split("=") for reply in welcomes)
        cookies = "; ".join(f"{name}={value}" for name, value in received.items())
        assert [site.ask("/api/runs", cookie=cookies).status for site in (first, second)] == [200, 200]


def test_command_creates_a_token_for_other_machines(runs: Path) -> None:
    assert "letters and digits" in error_line(quintet("view", runs, "--token", "short").errors)
    with viewing(runs, "--host", "0.0.0.0") as (site, output):
        found = re.search(r"1 run in .*: http://0\.0\.0\.0:\d+/\?token=([0-9a-f]{32}) ", output)
        assert found, output
        assert site.ask("/api/runs").status == 401
        assert site.ask("/api/runs", authorization=f"Bearer {found[1]}").status == 200


def test_browser_opens_the_printed_address(runs: Path, tmp_path: Path) -> None:
    browser, opened = tmp_path / "browser", tmp_path / "opened"
    browser.write_text(f'#!/bin/sh\nprintf %s "$1" > {opened}.writing && mv {opened}.writing {opened}\n')
    browser.chmod(0o755)
    with socket.socket() as free:
        free.bind((LOOPBACK, 0))
        port = free.getsockname()[1]
    with viewing(runs, "--port", port, browser=browser) as (site, output):
        assert site.port == port
        wait_for(opened.exists, "the browser is started")
        assert opened.read_text() == f"http://127.0.0.1:{port}/"
        assert f"1 run in {runs}: {opened.read_text()} (Ctrl-C to stop)" in output


# --- live updates ---------------------------------------------------------------------------------------------


def test_new_rows_samples_and_console_output_are_sent(runs: Path, site: Address) -> None:
    site.ask("/api/run?run=run")
    expected = {"rows", "samples", "console", "summary"}
    seen: dict[str, Any] = {}
    for name, content in site.news("/api/events?run=run"):
        if name == "hello":
            add_row(runs / "run", 110)
            add_samples(runs / "run", 110)
            write_state(runs / "run", recipe="vqgan", status="running", step=110, steps=200)
            (runs / "run" / "log.txt").write_text("something new\n")
        seen[name] = content
        if expected <= seen.keys():
            break
    assert [row["step"] for row in seen["rows"]][-1] == 110
    assert seen["samples"] == [10, 110]
    assert seen["console"] == "something new\n"
    assert seen["summary"]["state"] == "running"


def test_killed_run_is_reported_as_failed_and_has_a_playground(runs: Path, site: Address) -> None:
    run = write_run(runs / "muse", "muse")
    (run / "checkpoints" / "step-00000010").mkdir(parents=True)
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as process:
        write_state(run, recipe="muse", status="running", step=10, pid=process.pid, host=socket.gethostname())
        about = site.ask("/api/run?run=muse").json
        assert (about["summary"]["state"], about["playground"]) == ("running", None)
        for name, content in site.news("/api/events?run=muse"):
            if name == "hello":
                process.kill()
                process.wait()
            if name == "summary" and content["state"] == "failed":
                break
    about = site.ask("/api/run?run=muse").json
    assert (about["summary"]["state"], about["playground"] is None) == ("failed", False)


def test_list_reports_new_and_removed_runs(runs: Path, site: Address) -> None:
    write_run(runs / "other")
    new: set[str] = set()
    gone: set[str] = set()
    for name, content in site.news("/api/events"):
        if name == "hello":
            write_run(runs / "late")
            shutil.rmtree(runs / "other")
        if name == "runs":
            new |= {line["id"] for line in content["changed"]}
            gone |= set(content["gone"])
        if gone and new:
            break
    assert (new, gone) == ({"late"}, {"other"})


# --- bad input ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("words", [["nowhere"], ["file"]])
def test_invalid_folder_is_named(tmp_path: Path, words: list[str]) -> None:
    (tmp_path / "file").write_text("")
    outcome = quintet("view", *(tmp_path / word for word in words))
    assert outcome.code == 2
    assert "name a run folder, or a folder that contains runs" in error_line(outcome.errors)


def test_missing_dependency_of_the_server_is_named(runs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "uvicorn", None)
    monkeypatch.delitem(sys.modules, "quintet.web.server", raising=False)
    outcome = quintet("view", runs)
    assert "pip install starlette uvicorn" in error_line(outcome.errors)


@pytest.mark.parametrize(
    ("query", "status"),
    [("step=x", 400), ("step=-1", 400), ("step=9999999999999999999", 400), ("step=", 400), ("step=7", 200)],
)
def test_invalid_step_is_refused(site: Address, query: str, status: int) -> None:
    assert site.ask(f"/api/samples?run=run&{query}").status == status


def test_long_url_is_refused(site: Address) -> None:
    assert site.ask(f"/api/curves?run=run&name={'x' * 9_000}").status == 414


# --- playground -----------------------------------------------------------------------------------------------


def test_invalid_jobs_are_refused(runs: Path, site: Address) -> None:
    run = write_run(runs / "muse", "muse")
    (run / "checkpoints" / "step-00000010").mkdir(parents=True)
    refused = [
        ({"text": "x" * (MAX_TEXT_LENGTH + 1)}, 400),
        ({"text": 7}, 400),
        ({"text": "a", "num": 9}, 400),
        ({"text": "a", "num": 1.5}, 400),
        ({"text": "a", "seed": -1}, 400),
        ({"text": "a", "steps": 100_000}, 400),
        ({"text": "a", "guidance_scale": "much"}, 400),
        ({"text": "a", "guidance_scale": 1e9}, 400),
        ({"text": "a", "run": "run"}, 409),
        ({"text": "a", "run": "../secret"}, 404),
    ]
    for job, status in refused:
        reply = site.post("/api/generate", {"run": "muse", **job})
        assert (reply.status, list(reply.json)) == (status, ["problem"]), job
    assert site.post("/api/generate", {"run": "muse", "text": "x" * 100_000}).status == 413
    assert site.ask("/api/generate", "POST", b"{", content_type="application/json").status == 400
    assert site.post("/api/generate", [1]).status == 400


def test_other_pages_cannot_send_jobs(site: Address) -> None:
    body = json.dumps({"run": "run", "text": "a"}).encode()
    assert site.ask("/api/generate", "POST", body, content_type="text/plain").status == 403
    for origin in ("http://evil.example", "http://[", "null"):
        assert site.ask("/api/generate", "POST", body, content_type="application/json", origin=origin).status == 403
    own = f"http://{LOOPBACK}:{site.port}"
    assert site.ask("/api/generate", "POST", body, content_type="application/json", origin=own).status == 409


def test_read_only_page_generates_nothing(runs: Path) -> None:
    run = write_run(runs / "muse", "muse")
    (run / "checkpoints" / "step-00000010").mkdir(parents=True)
    with serving(runs, read_only=True) as site:
        assert site.ask("/api/run?run=muse").json["playground"] is None
        assert site.post("/api/generate", {"run": "muse", "text": "a"}).status == 403
    with serving(runs) as site:
        assert site.ask("/api/run?run=muse").json["playground"] is not None


def test_job_is_validated() -> None:
    assert GenerationJob.read({"text": "a", "seed": 3.0, "guidance_scale": 2}) == GenerationJob("a", 3, 1, 2.0, None)
    with pytest.raises(UsageError, match="guidance_scale must be a number from 0 to 100"):
        GenerationJob.read({"text": "a", "guidance_scale": float("nan")})


def test_rate_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]
    monkeypatch.setattr("quintet.web.safety.time.monotonic", lambda: now[0])
    limit = RateLimit(2, 60.0)
    assert [limit.allows("a") for _ in range(3)] == [True, True, False]
    assert limit.allows("b")
    now[0] = 61.0
    assert limit.allows("a")


@pytest.mark.parametrize("recipe", ["muse"], indirect=True)
def test_generator_gives_the_same_samples_for_the_same_seed(
    recipe: str, train: Train, shared: Path, tmp_path: Path
) -> None:
    shutil.copytree(made_once(shared, f"finished-{recipe}", train), tmp_path / "runs" / "muse")
    job = {"run": "muse", "text": "a red heart", "num": 2, "steps": 2}
    with serving(tmp_path / "runs") as site:
        first = site.post("/api/generate", job).json["job"]
        busy = site.post("/api/generate", {"run": "muse", "text": "another"})
        assert (busy.status, busy.json["problem"]) == (400, "another job is running; try again when it has finished")
        results = [finished(site, first)]
        for seed in (0, 5):
            results.append(finished(site, site.post("/api/generate", {**job, "seed": seed}).json["job"]))
        assert [each["file"] for each in results[0]["entries"]] == ["grid.png", "000.png", "001.png"]
        assert results[0]["entries"][1]["text"] == "a red heart"
        images = [site.ask(f"/generated?job={each['job']}&file=grid.png").body for each in results]
        assert images[0].startswith(b"\x89PNG")
        assert images[0] == images[1] != images[2]
        assert site.ask("/generated?job=job-1&file=../job-2/grid.png").status == 404


def finished(site: Address, job: str) -> dict[str, Any]:
    status: dict[str, Any] = {}

    def ended() -> bool:
        status.update(site.ask(f"/api/generate?job={job}").json)
        return bool(status["state"] != "working")

    wait_for(ended, "the job has finished")
    assert status["state"] == "done", status["message"]
    return status


# --- export ---------------------------------------------------------------------------------------------------


def exported(page: Path) -> list[dict[str, Any]]:
    """The runs in a page."""
    text = page.read_text("utf-8")
    found = re.search(r'<script type="application/json" id="exported">(.*?)</script>', text, re.DOTALL)
    assert found
    return list(json.loads(found[1])["runs"])


def test_export_is_one_self_contained_file(runs: Path, tmp_path: Path) -> None:
    add_samples(runs / "run", 20, caption="</script><script>alert(1)</script>")
    output = succeed("view", runs / "run", "--export", tmp_path / "out" / "page.html").output
    assert f"written: {tmp_path / 'out' / 'page.html'} (1 run; open it in a browser)" in output
    text = (tmp_path / "out" / "page.html").read_text("utf-8")
    assert not re.findall(r'(?:src|href)="(?!data:|#)', text)
    assert "<script>alert(1)" not in text
    (run,) = exported(tmp_path / "out" / "page.html")
    assert run["curves"]["train/lr"]["steps"] == list(range(10, 101, 10))
    assert run["media"]["20/000-made.png"].startswith("data:image/png;base64,")
    assert run["samples"]["20"][0]["text"] == "</script><script>alert(1)</script> 0"
    assert run["about"]["playground"] is None
    again = quintet("view", runs, "--export", tmp_path / "out" / "page.html")
    assert "already exists" in error_line(again.errors)


def test_export_to_a_folder_writes_media_files(runs: Path, tmp_path: Path) -> None:
    succeed("view", runs, "--export", tmp_path / "site")
    files = {
        path.relative_to(tmp_path / "site").as_posix() for path in (tmp_path / "site").rglob("*") if path.is_file()
    }
    assert files == {
        *(".quintet-output", "index.html"),
        *("media/0/step-00000010/000-made.png", "media/0/step-00000010/000-made.wav.js"),
    }
    run = exported(tmp_path / "site" / "index.html")[0]
    assert run["media"]["10/000-made.wav"] == "media/0/step-00000010/000-made.wav"
    assert next(each for each in run["samples"]["10"] if each["file"] == "link.png")["missing"] is True


def test_names_that_are_not_text_are_listed_opened_and_exported(tmp_path: Path) -> None:
    run = write_run(Path(os.fsdecode(os.fsencode(tmp_path) + b"/runs/b\xff")))
    (run / "data.json").write_text(json.dumps({"skipped": {"bad\udcff.png": "is cut off"}}))
    with serving(tmp_path / "runs") as site:
        (line,) = site.ask("/api/runs").json["runs"]
        about = site.ask(f"/api/run?run={quote(line['id'])}").json
        assert about["data"]["skipped"] == [["bad?.png", "is cut off"]]
    succeed("view", tmp_path / "runs", "--export", tmp_path / "page.html")
    assert [each["about"]["summary"]["id"] for each in exported(tmp_path / "page.html")] == ["b\\xff"]


def test_samples_that_do_not_fit_are_omitted_and_reported(
    runs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    add_samples(runs / "run", 20)
    size = (runs / "run" / "samples" / "step-00000020" / "000-made.png").stat().st_size
    monkeypatch.setattr("quintet.web.export.MAX_PAGE_BYTES", size)
    output = succeed("view", runs, "--export", tmp_path / "page.html").output
    run = exported(tmp_path / "page.html")[0]
    assert list(run["media"]) == ["20/000-made.png"]
    assert "omitted: 2 samples of older steps" in output


def test_export_without_runs_or_to_a_file_fails(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    assert "no run found in" in error_line(quintet("view", tmp_path / "empty", "--export", tmp_path / "x.html").errors)
    write_run(tmp_path / "runs" / "run")
    (tmp_path / "file").write_text("")
    outcome = quintet("view", tmp_path / "runs", "--export", tmp_path / "file" / "page.html")
    assert "cannot write" in error_line(outcome.errors)
