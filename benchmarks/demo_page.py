"""Times of `poise demo` as a person meets them, in Chromium: until the page is there, zero-shot, and the tuned answer.

python benchmarks/demo_page.py --repeat 5 [--shot FILE.png]
"""

from __future__ import annotations

import argparse
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from processes import processor_seconds
from selenium import webdriver
from selenium.webdriver.common.by import By

PHASES = ("page is usable", "model is ready", "click to zero-shot", "click to kld+cats")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeat", type=int, default=5, help="clicks on different examples")
    parser.add_argument("--shot", type=Path, help="save a screenshot of the last answer")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        browser = chromium(folder)
        log, started = Path(folder) / "log", time.perf_counter()
        with log.open("w") as file:
            command = [sys.executable, "-m", "poise", "demo", "--no-browser", "--port", "0"]
            server = subprocess.Popen(command, stderr=file)
        try:
            url = until(lambda: [word for word in log.read_text().split() if word.startswith("http")])[0]
            measure(browser, url, Clock(server.pid, started), options)
        finally:
            browser.quit()
            server.terminate()
            server.wait()


class Clock:
    """Seconds since the start, and the server's processor time, which other programs on the machine hardly change."""

    def __init__(self, pid: int, started: float) -> None:
        self._pid, self.started, self.used = pid, started, 0.0

    def restart(self) -> None:
        self.started, self.used = time.perf_counter(), processor_seconds(self._pid)

    def read(self) -> tuple[float, float]:
        return time.perf_counter() - self.started, processor_seconds(self._pid) - self.used


def measure(browser: Any, url: str, clock: Clock, options: argparse.Namespace) -> None:
    browser.get(url)
    until(lambda: len(find(browser, "#poise-examples button")) == 5 and find(browser, "#poise-image input"))
    times: dict[str, list[tuple[float, float]]] = {name: [] for name in PHASES}
    times["page is usable"].append(clock.read())
    script = "return fetch('/ready').then(answer => answer.status)"
    until(lambda: browser.execute_script(script) == 200)
    times["model is ready"].append(clock.read())
    for at in range(options.repeat):
        browser.refresh()
        until(lambda: len(find(browser, "#poise-examples button")) == 5)
        time.sleep(1)
        clock.restart()
        find(browser, "#poise-examples button")[at % 5].click()
        until(lambda: find(browser, "#poise-answer"))
        times["click to zero-shot"].append(clock.read())
        until(lambda: find(browser, "#poise-views"))
        times["click to kld+cats"].append(clock.read())
    print(f"load of the machine: {os.getloadavg()[0]:.1f} on {os.cpu_count()} processors")
    for name, values in times.items():
        walls, used = zip(*values, strict=True)
        spread = f"{min(walls):.2f} to {max(walls):.2f}, n = {len(walls)}"
        print(f"{name}: {statistics.median(walls):.2f} s ({spread}), processor {statistics.median(used):.2f} s")
    if options.shot:
        time.sleep(1)
        browser.save_screenshot(str(options.shot))


def until(holds: Callable[[], Any]) -> Any:
    end = time.monotonic() + 120
    while not (found := holds()):
        assert time.monotonic() < end, "it did not happen in two minutes"
        time.sleep(0.02)
    return found


def find(browser: Any, css: str) -> list[Any]:
    return browser.find_elements(By.CSS_SELECTOR, css)


def chromium(folder: str) -> Any:
    options = webdriver.ChromeOptions()
    options.binary_location = shutil.which("chromium") or ""
    for flag in (
        "headless=new",
        "no-sandbox",
        "disable-gpu",
        "disable-dev-shm-usage",
        "disable-background-networking",
        "disable-component-update",
        "disable-sync",
        "no-first-run",
        "hide-scrollbars",
        "window-size=1280,1500",
        f"user-data-dir={folder}/profile",
    ):
        options.add_argument(f"--{flag}")
    return webdriver.Chrome(options=options, service=webdriver.ChromeService(shutil.which("chromedriver") or ""))


if __name__ == "__main__":
    main()
