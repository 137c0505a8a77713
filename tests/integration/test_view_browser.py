"""The page in a real browser, Chromium driven by Playwright, without errors in its console and without requests to
other machines. Screenshots are written to artifacts/."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import pytest

from contract.cases import Train
from helpers import made_once, succeed
from quintet import config as configs
from quintet import registry
from quintet.web.playground import GenerationJob
from viewing import DEADLINE, Address, add_row, add_samples, row, serving, write_run, write_state

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

ARTIFACTS = Path(os.environ.get("QUINTET_ARTIFACTS") or Path(__file__).parents[2] / "artifacts")
REQUIRED = bool(os.environ.get("QUINTET_BROWSER_REQUIRED"))
"""Set if these tests may not be skipped."""
WITHOUT_A_SCREEN = ("--no-sandbox", "--use-angle=swiftshader", "--enable-unsafe-swiftshader", "--mute-audio")
UNNAMED = """() => {
  const named = (element) => element.textContent.trim() || element.ariaLabel || element.alt || element.closest('label');
  const all = document.querySelectorAll('button, input, select, audio, video, canvas:not([aria-hidden]), img');
  return [...all].filter((element) => !named(element)).map((element) => element.outerHTML);
}"""
DIFFERENT = """(before) => {
  const canvas = document.querySelector('.mesh');
  return canvas.toDataURL() !== before && canvas.dataset.triangles === '4';
}"""


HOLD_BACK = """(part) => {
  const bytes = quintet.source.bytes.bind(quintet.source);
  quintet.source.bytes = async (address) => {
    const found = await bytes(address);
    if (address.includes(part)) await new Promise((release) => { window.release = release; });
    return found;
  };
}"""
"""Delays responses whose address contains this part until `release` is called."""
LET_GO = """async () => {
  release();
  const { address } = document.querySelector('.card').dataset;
  await quintet.audio.player('').show('', await quintet.source.bytes(address), () => true);
}"""
"""Releases the delayed response, and waits until audio that was requested later is decoded."""
WITHOUT_3D = """() => {
  const original = HTMLCanvasElement.prototype.getContext;
  HTMLCanvasElement.prototype.getContext = function (kind, ...more) {
    return kind === 'webgl' ? null : original.call(this, kind, ...more);
  };
}"""


def chromium() -> str | None:
    """Path of the browser: from the environment, or an installed one."""
    named = os.environ.get("QUINTET_BROWSER")
    return named or next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)


def missing() -> str | None:
    """The missing dependency of these tests, or None."""
    if find_spec("playwright") is None:
        return "no Playwright: pip install playwright"
    return None if chromium() else "no Chromium: apt-get install chromium, or name one in QUINTET_BROWSER"


pytestmark = pytest.mark.skipif(not REQUIRED and missing() is not None, reason=missing() or "")


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    assert missing() is None, missing()
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        launched = playwright.chromium.launch(executable_path=chromium(), args=list(WITHOUT_A_SCREEN))
        yield launched
        launched.close()


Open = Callable[..., "Page"]
Serve = Callable[..., Address]


@pytest.fixture
def serve() -> Iterator[Serve]:
    """Starts servers, which run longer than the pages that use them."""
    with ExitStack() as servers:
        yield lambda *folders: servers.enter_context(serving(*folders))


@pytest.fixture
def open_page(browser: Browser, serve: Serve) -> Iterator[Open]:
    """Opens pages; none of them may log an error or send a request to another machine."""
    errors: list[str] = []
    elsewhere: list[str] = []
    contexts: list[Any] = []

    def opened(site: Address | None, path: str = "", width: int = 1280, dark: bool = False) -> Page:
        context = browser.new_context(
            viewport={"width": width, "height": 900}, color_scheme="dark" if dark else "light", reduced_motion="reduce"
        )
        contexts.append(context)
        page = context.new_page()
        page.set_default_timeout(1_000 * DEADLINE)
        page.on(
            "console", lambda message: errors.append(message.text) if message.type in ("error", "warning") else None
        )
        page.on("pageerror", lambda error: errors.append(str(error)))
        page.on("request", lambda request: elsewhere.append(request.url) if _is_elsewhere(request.url) else None)
        page.goto(f"http://127.0.0.1:{site.port}/{path}" if site else path)
        return page

    yield opened
    for context in contexts:
        context.close()
    assert errors == []
    assert elsewhere == []


def _is_elsewhere(url: str) -> bool:
    parts = urlsplit(url)
    return parts.scheme not in ("data", "blob", "file", "about") and parts.hostname != "127.0.0.1"


def save_screenshot(page: Page, name: str) -> None:
    (ARTIFACTS / "view").mkdir(parents=True, exist_ok=True)
    page.screenshot(path=ARTIFACTS / "view" / f"{name}.png")


@pytest.fixture
def runs(tmp_path: Path) -> Path:
    folder = tmp_path / "runs"
    write_run(folder / "images", steps=400)
    for step in (100, 200, 300):
        add_samples(folder / "images", step, count=2, caption="<script>document.title = 'broken'</script>")
    write_run(folder / "sounds", "soundstorm", steps=300)
    add_samples(folder / "sounds", 100, ("wav",), count=2)
    write_run(folder / "meshes", "mesh-transformer", status="stopped", steps=200)
    add_samples(folder / "meshes", 100, ("glb",), count=2)
    write_run(folder / "videos", steps=100)
    add_samples(folder / "videos", 100, ("mp4",))
    write_state(folder / "videos", recipe="vqgan", status="running", step=100, steps=1_000)
    return folder


@pytest.fixture
def site(runs: Path, serve: Serve) -> Address:
    return serve(runs)


def until(page: Page, expression: str, argument: object = None) -> None:
    """Wait until an expression is true. Playwright's own method evaluates strings, which the page's policy forbids."""
    deadline = time.monotonic() + DEADLINE
    while not page.evaluate(expression, argument):
        assert time.monotonic() < deadline, f"{DEADLINE} s passed before {expression}"
        page.wait_for_timeout(20)


def text(page: Page, selector: str) -> str:
    return page.locator(selector).first.text_content() or ""


def test_the_list_is_filtered_and_sorted_and_opens_a_run(site: Address, open_page: Open) -> None:
    page = open_page(site)
    rows = page.locator(".runs tbody tr")
    rows.nth(3).wait_for()
    assert "4 runs" in text(page, ".count")
    assert "running" in page.locator("tr[data-run=videos]").inner_text()
    save_screenshot(page, "list")
    page.get_by_role("button", name="Run", exact=True).click()
    assert [row.get_attribute("data-run") for row in rows.all()] == ["images", "meshes", "sounds", "videos"]
    page.get_by_role("button", name="Run", exact=True).click()
    assert rows.first.get_attribute("data-run") == "videos"
    page.get_by_label("Show runs with this text").fill("soundstorm")
    assert "1 of 4 runs" in text(page, ".count")
    page.keyboard.press("Tab")  # past the heads, by the keyboard alone
    page.locator("tr[data-run=sounds] a").focus()
    page.keyboard.press("Enter")
    page.locator("h1", has_text="sounds").wait_for()
    assert page.title() == "sounds · quintet"


def test_slider_moves_through_training_and_captions_are_plain_text(site: Address, open_page: Open) -> None:
    page = open_page(site, "#/run/images")
    slider = page.get_by_label("Step of training")
    shown = page.locator(".card img").first
    until(page, "document.querySelectorAll('.card img[src*=\"step=300\"]').length === 2")
    assert "<script>document.title = 'broken'</script>" in text(page, ".card .caption")
    slider.focus()
    page.keyboard.press("ArrowLeft")
    until(page, "document.querySelectorAll('.card img[src*=\"step=200\"]').length === 2")
    slider.fill("0")
    until(page, "document.querySelectorAll('.card img[src*=\"step=100\"]').length === 2")
    assert "100 (1 of 3)" in text(page, "output")
    until(page, "document.querySelector('.card img').naturalWidth === 32")
    shown.click()
    page.locator("dialog[open]").wait_for()
    page.keyboard.press("Escape")
    page.locator("dialog").wait_for(state="detached")
    save_screenshot(page, "samples")
    page.get_by_role("button", name="Play").click()
    until(page, "document.querySelectorAll('.card img[src*=\"step=300\"]').length === 2")
    assert page.title() == "images · quintet"


def test_audio_has_a_spectrogram_and_plays(site: Address, open_page: Open) -> None:
    page = open_page(site, "#/run/sounds")
    until(page, "document.querySelectorAll('.spectrogram[data-painted]').length === 2")
    colours = page.evaluate(
        "new Set(document.querySelector('.spectrogram').getContext('2d').getImageData(0, 0, 560, 128).data).size"
    )
    assert colours > 20
    page.evaluate("document.querySelector('audio').play()")
    until(page, "document.querySelector('audio').currentTime > 0.05")
    save_screenshot(page, "sounds")
    page.locator(".spectrogram").nth(1).click()  # plays from there, and pauses the other
    until(page, "document.querySelectorAll('audio')[1].currentTime > 0.4")
    until(page, "document.querySelector('audio').paused")


def test_late_response_of_an_older_step_is_not_shown(runs: Path, serve: Serve, open_page: Open) -> None:
    add_samples(runs / "sounds", 200, ("wav",))
    page = open_page(serve(runs), "#/run/sounds")
    until(page, "document.querySelectorAll('.spectrogram[data-painted]').length === 1")
    page.evaluate(HOLD_BACK, "step=100&file=000")
    slider = page.get_by_label("Step of training")
    slider.fill("0")
    until(page, "typeof window.release === 'function'")
    slider.fill("1")
    until(page, "document.querySelector('.card').dataset.address.includes('step=200')")
    painted = page.evaluate("document.querySelector('.spectrogram').toDataURL()")
    page.evaluate(LET_GO)
    assert "step=200" in page.evaluate("document.querySelector('audio').src")
    assert page.evaluate("document.querySelector('.spectrogram').toDataURL()") == painted


def test_browser_without_webgl_shows_a_message(site: Address, open_page: Open) -> None:
    page = open_page(site)
    page.evaluate(WITHOUT_3D)
    page.locator("tr[data-run=meshes] a").click()
    page.locator(".problem", has_text="no WebGL").first.wait_for()


def test_mesh_rotates_with_mouse_and_keyboard(site: Address, open_page: Open) -> None:
    page = open_page(site, "#/run/meshes")
    until(page, "document.querySelector('.mesh')?.dataset.triangles === '4'")
    mesh = page.locator(".mesh").first
    until(page, DIFFERENT, page.evaluate("document.createElement('canvas').toDataURL()"))
    save_screenshot(page, "meshes")
    before = mesh.evaluate("canvas => canvas.toDataURL()")
    box = mesh.bounding_box()
    assert box is not None
    page.mouse.move(box["x"] + 100, box["y"] + 100)
    page.mouse.down()
    page.mouse.move(box["x"] + 180, box["y"] + 140, steps=4)
    page.mouse.up()
    until(page, DIFFERENT, before)
    dragged = mesh.evaluate("canvas => canvas.toDataURL()")
    page.keyboard.press("ArrowRight")
    until(page, DIFFERENT, dragged)


def test_a_video_plays(site: Address, open_page: Open) -> None:
    page = open_page(site, "#/run/videos")
    until(page, "document.querySelector('video')?.currentTime > 0")
    assert page.evaluate("document.querySelector('video').videoWidth") == 32


def test_a_curve_is_zoomed_smoothed_and_compared(site: Address, open_page: Open) -> None:
    page = open_page(site, "#/run/images/curves")
    area = page.locator(".area[data-points]").first
    area.wait_for()
    assert area.get_attribute("data-range") == "10-400"
    assert "generator/loss" in (area.get_attribute("aria-label") or "")
    save_screenshot(page, "curves")
    box = page.locator(".u-over").first.bounding_box()
    assert box is not None
    page.mouse.move(box["x"] + box["width"] * 0.25, box["y"] + 40)
    page.mouse.down()
    page.mouse.move(box["x"] + box["width"] * 0.5, box["y"] + 60, steps=4)
    page.mouse.up()
    until(page, "document.querySelector('.area').dataset.range !== '10-400'")
    low, high = map(int, (area.get_attribute("data-range") or "").split("-"))
    assert 90 < low < 125
    assert 190 < high < 225
    area.focus()
    page.keyboard.press("0")
    until(page, "document.querySelector('.area').dataset.range === '10-400'")
    page.get_by_label("Log scale").check()
    page.get_by_label("Smoothing").fill("0.8")
    before = int(area.get_attribute("data-points") or 0)
    page.get_by_label("Compare with another run").select_option("sounds")
    until(page, "(before) => Number(document.querySelector('.area').dataset.points) > before", before)
    assert "sounds · train/generator/loss" in text(page, ".chart")


def test_new_content_appears_without_a_reload(runs: Path, site: Address, open_page: Open) -> None:
    page = open_page(site, "#/run/videos/curves")
    page.locator(".area[data-points]").first.wait_for()
    page.locator(".pulse.on").wait_for()
    for step in (110, 120):
        add_row(runs / "videos", step)
    write_state(runs / "videos", recipe="vqgan", status="running", step=120, steps=1_000)
    until(page, "document.querySelector('.area').dataset.range === '10-120'")
    page.locator("dd", has_text="120 of 1 000").wait_for()
    page.get_by_role("tab", name="Samples").click()
    add_samples(runs / "videos", 120, caption="just made")
    page.locator(".caption", has_text="just made").wait_for()
    page.get_by_role("tab", name="Console").click()
    with (runs / "videos" / "log.txt").open("a") as log:
        log.write("a new line\n")
    page.locator(".console", has_text="a new line").wait_for()
    page.get_by_role("link", name="All runs").click()
    page.locator("tr[data-run=videos]", has_text="120").wait_for()
    write_run(runs / "late")
    page.locator("tr[data-run=late]").wait_for()


def test_finished_run_gets_a_playground_and_checkpoints_without_a_reload(
    runs: Path, site: Address, open_page: Open
) -> None:
    run = write_run(runs / "muse", "muse", status="running")
    page = open_page(site, "#/run/muse/checkpoints")
    page.get_by_text("No checkpoint yet.").wait_for()
    page.locator(".pulse.on").wait_for()
    assert page.get_by_role("tab", name="Try it").count() == 0
    (run / "checkpoints" / "step-00000100").mkdir(parents=True)
    write_state(run, recipe="muse", status="finished", step=100, steps=100)
    page.get_by_role("table", name="Checkpoints").wait_for()
    page.get_by_role("tab", name="Try it").wait_for()
    # The link back stays as it was.
    page.get_by_role("tab", name="Try it").click()
    write_state(run, recipe="muse", status="running", step=100, steps=200)
    page.get_by_role("tab", name="Curves", selected=True).wait_for()
    assert page.get_by_role("tab", name="Try it").count() == 0


def test_charts_survive_a_new_metric_and_are_removed_with_their_page(
    runs: Path, site: Address, open_page: Open
) -> None:
    page = open_page(site, "#/run/videos/curves")
    page.locator(".area[data-points]").nth(1).wait_for()
    page.locator(".pulse.on").wait_for()
    page.get_by_label("Show metrics with this text").fill("generator")
    assert page.locator(".chart:visible").count() == 1
    page.evaluate("document.querySelector('.chart:not([hidden]) .area').dataset.kept = 'yes'")
    with (runs / "videos" / "metrics.jsonl").open("a", encoding="utf-8") as file:
        file.write(row(110, **{"train/new": 1.0}))
    page.locator("figcaption", has_text="new").wait_for(state="attached")
    assert page.locator(".chart:visible").count() == 1
    page.locator(".area[data-kept][data-range='10-110']").wait_for()
    page.get_by_role("link", name="All runs").click()
    page.locator("tr[data-run=images]").wait_for()
    assert page.evaluate("uPlot.sync('steps').plots.length") == 0


def test_missing_files_and_runs_are_reported(runs: Path, site: Address, open_page: Open) -> None:
    (runs / "sounds" / "samples" / "step-00000100" / "000-made.wav").unlink()
    page = open_page(site, "#/run/sounds")
    page.locator(".problem", has_text="000-made.wav is missing").wait_for()
    until(page, "document.querySelectorAll('.spectrogram[data-painted]').length === 1")
    page.locator(".pulse.on").wait_for()
    shutil.rmtree(runs / "sounds")
    page.locator("#notice", has_text="no longer exists").wait_for()
    save_screenshot(page, "gone")
    page.get_by_role("link", name="All runs").click()
    page.locator("tr[data-run=images]").wait_for()
    assert page.locator("tr[data-run=sounds]").count() == 0


def test_empty_folder_shows_a_message(tmp_path: Path, serve: Serve, open_page: Open) -> None:
    (tmp_path / "empty").mkdir()
    page = open_page(serve(tmp_path / "empty"))
    page.get_by_text("No runs yet").wait_for()


def test_tables_of_keys_data_checkpoints_and_codes(site: Address, open_page: Open) -> None:
    page = open_page(site, "#/run/images/config")
    page.locator("th", has_text="train.steps").wait_for()
    assert page.locator("td.changed").all_inner_texts() == ["400"]
    page.get_by_label("Only differences").uncheck()
    assert page.locator(".plain tbody tr").count() > 40
    page.get_by_role("tab", name="Data (1 skipped)").click()
    page.get_by_text("bad <b>.png").wait_for()
    page.keyboard.press("ArrowLeft")  # between the tabs
    page.keyboard.press("ArrowLeft")
    page.locator(".heat").first.wait_for()
    assert "at the end 50 %" in (page.locator(".heatmap .heat").first.get_attribute("aria-label") or "")


def test_ten_thousand_samples_scroll(tmp_path: Path, serve: Serve, open_page: Open) -> None:
    run = write_run(tmp_path / "runs" / "many")
    folder = add_samples(run, 10)
    for number in range(1, 10_000):
        os.link(folder / "000-made.png", folder / f"{number:05d}.png")
    page = open_page(serve(tmp_path / "runs"), "#/run/many")
    cards = page.locator(".card")
    cards.first.wait_for()
    first = cards.count()
    assert first < 500
    for _ in range(3):
        before = cards.count()
        page.evaluate("scrollTo(0, document.body.scrollHeight)")
        until(page, "(before) => document.querySelectorAll('.card').length > before", before)
    page.get_by_label("Show samples with this text").fill("09999")
    page.locator(".card .caption", has_text="09999.png").wait_for()
    assert cards.count() == 1


def test_page_works_on_a_phone_and_in_dark_mode(site: Address, open_page: Open) -> None:
    page = open_page(site, width=390, dark=True)
    page.locator("tr[data-run=sounds]").wait_for()
    save_screenshot(page, "phone-list")
    for path in ("#/run/images/curves", "#/run/sounds", "#/run/images/config", "#/"):
        page.goto(f"http://127.0.0.1:{site.port}/{path}")
        page.wait_for_load_state("networkidle") if path == "#/" else page.locator(".tabs").wait_for()
        assert page.evaluate("document.documentElement.scrollWidth") <= 390, path
    assert page.evaluate("document.documentElement.dataset.theme") == "dark"
    page.get_by_label("Dark or light theme").click()
    assert page.evaluate("document.documentElement.dataset.theme") == "light"


def test_every_control_and_image_has_an_accessible_name(site: Address, open_page: Open) -> None:
    page = open_page(site)
    for path in ("", "images", "images/curves", "sounds", "meshes", "images/config"):
        page.goto(f"http://127.0.0.1:{site.port}/{f'#/run/{path}' if path else ''}")
        page.locator("h1", has_text=path.split("/", maxsplit=1)[0] or "runs").wait_for()
        assert page.evaluate(UNNAMED) == []


@pytest.mark.parametrize("recipe", ["muse"], indirect=True)
def test_prompt_generates_images(
    recipe: str, train: Train, shared: Path, tmp_path: Path, serve: Serve, open_page: Open
) -> None:
    shutil.copytree(made_once(shared, f"finished-{recipe}", train), tmp_path / "runs" / "muse")
    page = open_page(serve(tmp_path / "runs"), "#/run/muse/try")
    page.get_by_label("Text").fill("a red heart")
    page.get_by_label("Number").fill("2")
    page.get_by_label("Steps").fill("2")
    page.get_by_role("button", name="Generate").click()
    page.get_by_role("status").filter(has_text="Generated in").wait_for()
    until(page, "[...document.querySelectorAll('.card img')].filter((i) => i.naturalWidth).length === 3")
    save_screenshot(page, "try")


def test_settings_of_the_run_are_valid_form_values(tmp_path: Path, serve: Serve, open_page: Open) -> None:
    run = write_run(tmp_path / "runs" / "muse", "muse")
    (run / "checkpoints" / "step-00000100").mkdir(parents=True)
    numbers = {"sample.guidance_scale": 1.75, "sample.steps": 1_000}
    built = configs.build(registry.find("muse").config_class(), preset="debug", overrides=numbers)
    (run / "config.yaml").write_text(built.to_yaml(), encoding="utf-8")
    page = open_page(serve(tmp_path / "runs"), "#/run/muse/try")
    assert page.get_by_label("Guidance scale").input_value() == "1.75"
    assert page.get_by_label("Steps").input_value() == "1000"
    assert page.evaluate("document.querySelector('form.try').checkValidity()")
    assert GenerationJob.read({"text": "a", "steps": 1_000}).steps == 1_000


@pytest.mark.parametrize("target", ["page.html", "site"])
def test_export_opens_from_a_disk(runs: Path, tmp_path: Path, open_page: Open, target: str) -> None:
    succeed("view", runs, "--export", tmp_path / target)
    file = tmp_path / target if target.endswith(".html") else tmp_path / target / "index.html"
    page = open_page(None, file.as_uri())
    page.locator("tr[data-run=sounds] a").click()
    until(page, "document.querySelectorAll('.spectrogram[data-painted]').length === 2")
    page.evaluate("document.querySelector('audio').play()")
    until(page, "document.querySelector('audio').currentTime > 0.05")
    page.goto(f"{file.as_uri()}#/run/meshes")
    until(page, "document.querySelector('.mesh')?.dataset.triangles === '4'")
    page.goto(f"{file.as_uri()}#/run/images")
    until(page, "document.querySelector('.card img')?.naturalWidth === 32")
    page.get_by_role("tab", name="Curves").click()
    page.locator(".area[data-points]").first.wait_for()
    assert page.get_by_role("tab", name="Try it").count() == 0


def test_page_reports_a_stopped_server(runs: Path, browser: Browser) -> None:
    """Without `open_page`, because the browser itself logs the connection error."""
    page = browser.new_page()
    with serving(runs) as site:
        page.goto(f"http://127.0.0.1:{site.port}/#/run/images")
        page.locator(".pulse.on").wait_for()
    page.locator(".pulse.off").wait_for()
    page.get_by_role("link", name="All runs").click()
    page.locator("#notice", has_text="is `quintet view` still running?").wait_for()
    page.close()


def test_page_without_live_updates_asks_for_a_reload(
    runs: Path, browser: Browser, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without `open_page`, because the browser itself logs the refusal."""
    monkeypatch.setattr("quintet.web.live.MAX_VIEWERS", 0)
    page = browser.new_page()
    with serving(runs) as site:
        page.goto(f"http://127.0.0.1:{site.port}/#/run/images")
        page.locator(".pulse.off[title*='reload the page']").wait_for()
        page.close()
