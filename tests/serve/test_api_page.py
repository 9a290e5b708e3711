"""The page on which routes can be tried: on request only, from this server alone, and without its secrets."""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from fastapi.testclient import TestClient

from poise.serve.http.app import create_app
from poise.serve.service import Service
from tests.serve.live import png, running, settings

CHROMIUM, DRIVER = shutil.which("chromium"), shutil.which("chromedriver")


def test_there_is_no_page_unless_it_is_asked_for() -> None:
    assert TestClient(create_app(settings())).get("/docs").status_code == 404


def test_the_page_needs_nothing_of_other_machines() -> None:
    answer = TestClient(create_app(settings(token="secret", hosts=("here",)), page=True)).get("/docs")
    assert answer.status_code == 200
    assert not re.search(r"(https?:)?//[a-z]", answer.text.replace("// ", ""))
    assert "secret" not in answer.text
    rules = answer.headers["content-security-policy"]
    assert rules.startswith("default-src 'none'; connect-src 'self'")
    assert "unsafe" not in rules


def test_what_the_page_reads_needs_the_token() -> None:
    client = TestClient(create_app(settings(token="secret"), page=True))
    assert client.get("/openapi.json").status_code == 401
    assert client.post("/docs").status_code == 405


@pytest.fixture
def browser() -> Iterator[object]:
    selenium = pytest.importorskip("selenium.webdriver")
    options = selenium.ChromeOptions()
    options.binary_location = CHROMIUM
    for argument in ("--headless=new", "--no-sandbox", "--disable-dev-shm-usage", "--window-size=390,900"):
        options.add_argument(argument)
    driver = selenium.Chrome(options=options, service=selenium.ChromeService(DRIVER))
    yield driver
    driver.quit()


@pytest.mark.browser
@pytest.mark.skipif(not (CHROMIUM and DRIVER), reason="no chromium and chromedriver on this machine")
def test_an_image_is_classified_on_the_page(browser, tmp_path: Path) -> None:
    (tmp_path / "image.png").write_bytes(png(0))
    chosen = settings(token="secret")
    service = Service(chosen)
    with running(service, page=True) as live:
        browser.get(f"{live.url}/docs")
        wait = _wait(browser)
        wait(lambda: "needs a token. Type" in browser.find_element("id", "problem").text)
        browser.find_element("id", "token").send_keys("secret")
        browser.find_element("id", "load").click()
        wait(lambda: len(browser.find_elements("css selector", "details")) == 7)
        (part,) = (row for row in browser.find_elements("css selector", "details") if "/v1/classify:" in row.text)
        part.find_element("css selector", "summary").click()
        part.find_element("css selector", "input[type=file]").send_keys(str(tmp_path / "image.png"))
        part.find_element("css selector", "textarea").send_keys("cat\ndog")
        part.find_element("css selector", "button").click()
        wait(lambda: part.find_elements("css selector", "pre")[1].text.startswith("200"))
        curl, answer = (node.text for node in part.find_elements("css selector", "pre"))
        assert "-F 'image=@image.png' -F 'labels=cat' -F 'labels=dog'" in curl
        assert "secret" not in curl
        assert '"label"' in answer
        assert browser.execute_script("return document.body.scrollWidth <= window.innerWidth")
        assert not [row for row in browser.get_log("browser") if "Content Security Policy" in row["message"]]


def _wait(browser):
    from selenium.webdriver.support.ui import WebDriverWait

    return lambda check: WebDriverWait(browser, 120).until(lambda _: check())
