"""The page in Chromium: readable on a telephone, in light and in dark, with the keyboard."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from poise.report.colours import on_dark
from poise.report.page.build import write_page
from tests.report import made

pytestmark = pytest.mark.browser

TEXT_SIZES = """
const scale = text => Math.hypot(text.getScreenCTM().a, text.getScreenCTM().b);
return [...document.querySelectorAll("figure svg text")].filter(text => text.getClientRects().length)
  .map(text => parseFloat(getComputedStyle(text).fontSize) * scale(text))"""
FIGURES = """
return [...document.querySelectorAll("figure")].map(figure => [figure.getBoundingClientRect().width,
  [...figure.querySelectorAll("svg")].filter(svg => svg.getClientRects().length).map(svg => svg.clientWidth)])"""


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    webdriver = pytest.importorskip("selenium.webdriver", reason="selenium is not installed")
    chromium, driver = shutil.which("chromium"), shutil.which("chromedriver")
    if not chromium or not driver:
        pytest.skip("chromium and chromedriver are not installed")
    options = webdriver.ChromeOptions()
    options.binary_location = chromium
    for flag in (
        "--headless=new",
        "--no-sandbox",
        "--disable-gpu",
        "--disable-background-networking",
        "--disable-component-update",
        "--disable-sync",
        "--no-first-run",
        f"--user-data-dir={tmp_path_factory.mktemp('profile')}",
    ):
        options.add_argument(flag)
    found = webdriver.Chrome(options=options, service=webdriver.ChromeService(driver))
    yield found
    found.quit()


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("page")
    levels = {"calibrate": 60, "coverage": 0.9, "max_error": 0.45}
    made.write_run(folder, datasets=("dtd",), methods=("zero-shot", "kld+cats"), images=160, config=levels)
    return write_page(folder, folder / "page.html", resamples=10)


def show(browser: Any, page: Path, width: int, scheme: str) -> None:
    metrics = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": width < 500}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)
    features = [{"name": "prefers-color-scheme", "value": scheme}]
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": features})
    browser.get(page.as_uri())


@pytest.mark.parametrize("width", [390, 800, 1280])
def test_text_is_readable_and_nothing_scrolls_sideways(browser: Any, page: Path, width: int) -> None:
    show(browser, page, width, "light")
    assert browser.execute_script("return document.documentElement.scrollWidth") <= width
    sizes = browser.execute_script(TEXT_SIZES)
    assert len(sizes) > 100
    assert min(sizes) >= 11
    for room, drawn in browser.execute_script(FIGURES):
        assert len(drawn) == 1  # one of the variants
        assert drawn[0] >= (0.97 * room if width != 800 else min(room, 460) - 1)


def test_no_link_is_cut_on_a_telephone_and_wide_tables_show_that_they_go_on(browser: Any, page: Path) -> None:
    show(browser, page, 390, "light")
    assert browser.execute_script("""
        return [...document.querySelectorAll("nav a")].every(link => link.getBoundingClientRect().right <= 390)""")
    assert browser.execute_script("""
        const wide = [...document.querySelectorAll(".scroll")].filter(each => each.scrollWidth > each.clientWidth);
        return wide.length > 0 && wide.every(each => getComputedStyle(each).backgroundAttachment.includes("local"))""")


def test_colours_follow_the_reader(browser: Any, page: Path) -> None:
    shades = {}
    for scheme in ("light", "dark"):
        show(browser, page, 1280, scheme)
        shades[scheme] = browser.execute_script(
            "const style = getComputedStyle(document.documentElement);"
            "return [getComputedStyle(document.body).backgroundColor, style.getPropertyValue('--c0072b2').trim()]"
        )
    assert shades["light"][0] != shades["dark"][0]
    assert [shades["light"][1], shades["dark"][1]] == ["#0072b2", on_dark("#0072b2")]


def test_filters_hide_and_tables_are_reached_with_the_keyboard(browser: Any, page: Path) -> None:
    show(browser, page, 390, "light")
    assert browser.execute_script("""
        const scroll = document.querySelector(".scroll"); scroll.focus(); return document.activeElement === scroll""")
    assert browser.execute_script("""
        return [...document.querySelectorAll("figure svg")].every(svg => svg.getAttribute("aria-label").length > 10)""")
    assert browser.execute_script("""
        return [...document.querySelectorAll("table")].every(table => table.querySelector("th[scope=col]")
          && [...table.tBodies[0].rows].every(row => row.cells[0].scope === "row"))""")
