"""Make the pictures of the dashboard in the docs: ``joulery demo --serve`` as Chromium shows it.

usage: python scripts/dashboard_images.py [--out FOLDER]
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path

from playwright.sync_api import Browser, sync_playwright

ROOT = Path(__file__).resolve().parents[1]
CHROMIUM = "/usr/bin/chromium"
FLAGS = ["--headless", "--no-sandbox", "--disable-gpu"]
PATIENCE_MILLISECONDS = 60_000
WIDTH = 1280
# Name of a picture, list whose first entry it shows (none for the overview), and its height.
PICTURES = (("overview", "", 700), ("run", "/runs", 880), ("job", "/jobs", 1000))


def take_pictures(browser: Browser, address: str, token: str, folder: Path) -> None:
    """The overview, the first run and the first job, each as one screen."""
    page = browser.new_page(timezone_id="UTC")
    page.set_default_timeout(PATIENCE_MILLISECONDS)
    page.goto(f"{address}/login")
    page.fill("#token", token)
    page.click("button.main")
    page.wait_for_selector("nav")
    for name, path, height in PICTURES:
        page.set_viewport_size({"width": WIDTH, "height": height})
        page.goto(address + path)
        if path:
            page.click(f'tbody a[href^="{path}/"]')
        page.wait_for_selector("figure svg")
        page.wait_for_load_state("load")
        page.screenshot(path=str(folder / f"dashboard-{name}.png"))
    page.close()


def main() -> int:
    """Serve the demo, look at it, end it."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--out", type=Path, default=ROOT / "docs" / "images")
    folder = parser.parse_args().out
    with tempfile.TemporaryDirectory() as store:
        command = [sys.executable, "-m", "joulery", "demo", "--serve", "--json", "--out", store]
        with subprocess.Popen(
            [*command, "--listen", "127.0.0.1:0"], stdout=subprocess.PIPE, text=True
        ) as server:
            try:
                served = json.loads(server.stdout.readline())  # type: ignore[union-attr]
                with sync_playwright() as driver:
                    browser = driver.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
                    take_pictures(browser, served["address"], served["token"], folder)
            finally:
                server.terminate()
    return 0


if __name__ == "__main__":
    sys.exit(main())
