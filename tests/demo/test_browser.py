"""The page in a real browser: `poise demo` is started as a command, and Chromium uses it."""

from __future__ import annotations

import json
import os
import shlex
import shutil
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from selenium import webdriver
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys

import poise
from poise.demo.example_rows import EXAMPLES
from poise.demo.markup import percent
from tests.report import made

CHROMIUM, DRIVER = shutil.which("chromium"), shutil.which("chromedriver")
pytestmark = [
    pytest.mark.browser,
    pytest.mark.skipif(not (CHROMIUM and DRIVER), reason="no chromium and chromedriver on this machine"),
]
LABELS = ["coffee", "tea", "hot soup", "it's <b>"]
SOON = 60.0  # seconds; a generous limit for what takes a few
# The contrast of every text on the page with what is behind it, for those below 4.5 : 1.
CONTRAST = """
const parse = (text) => (text.match(/[\\d.]+/g) || [0, 0, 0]).map(Number);
const light = (rgb) => rgb.slice(0, 3).map(v => v / 255)
  .map(v => v <= .03928 ? v / 12.92 : ((v + .055) / 1.055) ** 2.4)
  .reduce((sum, v, i) => sum + v * [.2126, .7152, .0722][i], 0);
const behind = (node) => { for (; node; node = node.parentElement) {
  const c = parse(getComputedStyle(node).backgroundColor);
  if (c.length < 4 || c[3] > .5) return c; } return [255, 255, 255]; };
const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT), found = [];
while (walker.nextNode()) {
  const node = walker.currentNode.parentElement, style = getComputedStyle(node);
  if (!walker.currentNode.data.trim()) continue;
  if (!node.checkVisibility({opacityProperty: true, visibilityProperty: true})) continue;
  if (['SCRIPT', 'STYLE', 'NOSCRIPT'].includes(node.tagName) || !node.getClientRects().length) continue;
  const [a, b] = [light(parse(style.color)), light(behind(node))].sort((x, y) => y - x);
  if ((a + .05) / (b + .05) < 4.5) found.push(`${walker.currentNode.data.trim().slice(0, 40)}: ${style.color}`);
}
return found;
"""


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of a running `poise demo`."""
    runs = tmp_path_factory.mktemp("runs")
    made.write_run(runs, run="first", datasets=("caltech101",), methods=("zero-shot", "kld+cats"), seeds=(1,))
    command = [sys.executable, "-m", "poise", "demo", "--no-browser", "--port", "0", "--views", "8"]
    log = tmp_path_factory.mktemp("log") / "stderr.txt"
    uploads = {**os.environ, "GRADIO_TEMP_DIR": str(tmp_path_factory.mktemp("uploads"))}
    with log.open("w") as file:
        process = subprocess.Popen([*command, "--device", "cpu", "--runs", str(runs)], stderr=file, env=uploads)
    try:
        yield wait(lambda: [word for word in log.read_text().split() if word.startswith("http")])[0]
    finally:
        process.terminate()
        assert process.wait(SOON) == 0, log.read_text()


@pytest.fixture(scope="module")
def chromium(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """A browser that can reach this machine only, and records what it asks for."""
    options = webdriver.ChromeOptions()
    options.binary_location = CHROMIUM
    for flag in (
        "headless=new",
        "no-sandbox",
        "disable-gpu",
        "disable-dev-shm-usage",
        "disable-background-networking",
        "disable-component-update",
        "disable-sync",
        "no-first-run",
        "window-size=1280,1000",
        "host-resolver-rules=MAP * ~NOTFOUND , EXCLUDE 127.0.0.1",
        f"user-data-dir={tmp_path_factory.mktemp('profile')}",
    ):
        options.add_argument(f"--{flag}")
    options.set_capability("goog:loggingPrefs", {"performance": "ALL", "browser": "ALL"})
    driver = webdriver.Chrome(options=options, service=webdriver.ChromeService(DRIVER))
    yield driver
    driver.quit()


@pytest.fixture
def page(chromium: Any, url: str) -> Any:
    """The page, freshly loaded."""
    shape(chromium, 1280, "light")
    chromium.get(f"{url}/")
    wait(lambda: find(chromium, "#poise-run"))
    return chromium


def shape(driver: Any, width: int, mode: str) -> None:
    size = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": False}
    driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
    driver.execute_cdp_cmd(
        "Emulation.setEmulatedMedia", {"features": [{"name": "prefers-color-scheme", "value": mode}]}
    )


def wait(holds: Callable[[], Any]) -> Any:
    until = time.monotonic() + SOON
    while not (found := holds()):
        assert time.monotonic() < until, "it did not happen in time"
        time.sleep(0.05)
    return found


def find(driver: Any, css: str) -> list[Any]:
    return driver.find_elements(By.CSS_SELECTOR, css)


def ask(page: Any, file: Path, labels: str) -> None:
    wait(lambda: find(page, "#poise-image input[type=file]"))[0].send_keys(str(file))
    wait(lambda: find(page, "#poise-image img"))
    find(page, "#poise-labels textarea")[0].send_keys(labels)
    find(page, "#poise-run")[0].click()


def numbers(page: Any) -> dict[tuple[str, str], float]:
    script = """return [...document.querySelectorAll('#poise-answer .bar')].map(
        e => [e.dataset.method, e.dataset.label, e.querySelector('data').value])"""
    return {(method, label): float(value) for method, label, value in page.execute_script(script)}


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "my image; it's.png"
    path.write_bytes(EXAMPLES[1].path.read_bytes())
    return path


def test_numbers_on_the_page_are_those_of_the_classifier_and_of_the_call_that_it_shows(page, file) -> None:
    ask(page, file, "coffee, tea\nhot soup, it's <b>")
    wait(lambda: find(page, "#poise-views"))
    shown = numbers(page)
    want = poise.Classifier(LABELS, method=["zero-shot", "kld+cats"], views=8, device="cpu")(file)
    assert set(shown) == {(name, label) for name in want for label in LABELS}
    for (method, label), prob in shown.items():
        assert prob == pytest.approx(want[method].probabilities[label], abs=1e-5)
    assert 0.5 < want["kld+cats"].confidence < 0.99
    assert find(page, "#poise-answer .headline b")[0].text == want["kld+cats"].label
    assert percent(want["kld+cats"].confidence) in find(page, "#poise-answer .headline")[0].text
    assert len(find(page, "#poise-views .views img")) == len(find(page, "#poise-views .views li")) >= 1
    if shutil.which("curl"):
        words = shlex.split(find(page, "#poise-calls pre")[2].text)
        done = subprocess.run([*words, "--silent"], cwd=file.parent, capture_output=True, text=True, timeout=SOON)
        results = json.loads(done.stdout)["results"]
        for (method, label), prob in shown.items():
            assert results[method]["probabilities"][label] == pytest.approx(prob, abs=1e-5)


def test_an_answer_to_earlier_inputs_is_marked(page, file) -> None:
    stale = "return getComputedStyle(document.querySelector('#poise-stale')).display !== 'none'"
    ask(page, file, "coffee, tea")
    wait(lambda: find(page, "#poise-views"))
    assert page.execute_script(stale) is False
    find(page, "#poise-labels textarea")[0].send_keys(", hot soup")
    wait(lambda: page.execute_script(stale))
    find(page, "#poise-run")[0].click()
    wait(lambda: find(page, "#poise-answer [data-method='kld+cats'][data-label='hot soup']"))
    assert page.execute_script(stale) is False


def test_a_bad_file_and_missing_labels_are_explained(page, file: Path, tmp_path: Path) -> None:
    bad = tmp_path / "bad.png"
    bad.write_text("this is not an image")
    find(page, "#poise-run")[0].click()
    assert "no labels" in wait(lambda: find(page, "[role=alert]"))[0].text
    ask(page, bad, "cat, dog")
    wait(lambda: "not an image" in "".join(alert.text for alert in find(page, "[role=alert]")))
    assert not find(page, "#poise-answer")


def test_labels_can_t_run_code(page, file: Path) -> None:
    title = page.title
    code = ["<img src=x onerror=document.title='a'>", "${document.title='b'}", "{{title}}", "<script>alert(1)</script>"]
    ask(page, file, ", ".join(code))
    wait(lambda: find(page, "#poise-views"))
    assert {name.text for name in find(page, "#poise-answer .name")} == set(code)
    assert page.title == title
    assert not find(page, "#poise-panels script, #poise-panels img[src=x]")


@pytest.mark.parametrize("mode", ["light", "dark"])
@pytest.mark.parametrize("width", [1280, 390])
def test_the_page_fits_and_can_be_read(page, width: int, mode: str) -> None:
    shape(page, width, mode)
    page.refresh()
    wait(lambda: find(page, "#poise-examples button"))
    find(page, "#poise-examples button")[3].click()
    wait(lambda: find(page, "#poise-views"))
    assert find(page, "#poise-answer .lesson")[0].text.startswith("This answer is wrong")
    assert page.execute_script("return document.documentElement.scrollWidth") <= width
    assert page.execute_script("return document.body.classList.contains('dark')") is (mode == "dark")
    assert page.execute_script(CONTRAST) == []


def test_everything_can_be_reached_by_keyboard(page, file: Path) -> None:
    wait(lambda: find(page, "#poise-image input[type=file]"))[0].send_keys(str(file))
    wait(lambda: find(page, "#poise-image img"))
    reached: list[str] = []
    for _ in range(40):
        focused = page.switch_to.active_element
        where = page.execute_script("return arguments[0].closest('[id]')?.id + ' ' + arguments[0].innerText", focused)
        reached.append(where)
        if focused.tag_name == "textarea":
            focused.send_keys("cat, dog")
        if "Classify" in where and "poise-run" in where:
            focused.send_keys(Keys.ENTER)
            break
        focused.send_keys(Keys.TAB)
    assert "Classify" in reached[-1], reached
    wait(lambda: find(page, "#poise-views"))
    unnamed = page.execute_script(
        "return [...document.querySelectorAll('input, textarea, select, button')].filter(e => e.checkVisibility() && "
        "!e.labels?.length && !e.ariaLabel && !e.innerText.trim() && !e.title).map(e => e.outerHTML.slice(0, 200))"
    )
    assert unnamed == []


def test_a_benchmark_run_is_shown_in_the_second_tab(page) -> None:
    next(tab for tab in find(page, "button[role=tab]") if "Benchmark" in tab.text).click()
    frame = wait(lambda: find(page, "iframe.poise-run"))[0]
    page.switch_to.frame(frame)
    assert "Calibration error" in wait(lambda: find(page, "h2"))[0].text
    page.switch_to.default_content()


def test_nothing_is_asked_of_other_machines(chromium, url) -> None:
    """The log of all tests above: the browser asked the server only."""
    asked = [
        message["params"]["request"]["url"]
        for entry in chromium.get_log("performance")
        if (message := json.loads(entry["message"])["message"])["method"] == "Network.requestWillBeSent"
    ]
    sent = [each for each in asked if each.startswith(("http:", "https:", "ws:", "wss:"))]
    assert sent
    assert [each for each in sent if not each.startswith(f"{url}/")] == []
    with urllib.request.urlopen(f"{url}/") as response:
        assert "default-src 'self'" in response.headers["content-security-policy"]
