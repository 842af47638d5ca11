"""Makes the pictures of the server's page in the documentation, with the models in the package.

    python scripts/page_screenshots.py docs/assets

Needs Chromium, and the packages of the extra `test`.
"""

from __future__ import annotations

import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from playwright.sync_api import Browser, sync_playwright

SERVER = "serve zoo:target --drafts zoo:draft --method specinfer --methods prompt-lookup --port 0".split()
QUESTION = (
    "Replace the word lamp with clock in this text:\n"
    "Every morning Mia walks from the bridge to the lamp. We sold the lamp and kept the kettle. "
    "The garden was quiet, but nobody looked at the lamp."
)
STEP = "9"  # the step whose tree is shown
DESKTOP, PHONE = {"width": 1200, "height": 800}, {"width": 390, "height": 780}
PICTURES: dict[str, dict[str, Any]] = {  # file name -> options of the browser's window
    "page-light": {"viewport": DESKTOP, "color_scheme": "light"},
    "page-dark": {"viewport": DESKTOP, "color_scheme": "dark"},
    "page-phone": {"viewport": PHONE, "color_scheme": "light", "device_scale_factor": 2},
}


@contextmanager
def server() -> Iterator[str]:
    """The address of a server, which is stopped at the end of the block."""
    with subprocess.Popen([sys.executable, "-m", "outpace", *SERVER], stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        try:
            yield next(found[0] for line in process.stderr if (found := re.search(r"http://\S+:\d+", line)))
        finally:
            process.send_signal(signal.SIGINT)


def take(browser: Browser, address: str, path: Path, options: dict[str, Any]) -> None:
    """Ask a question, measure the speedup, and save a picture of the page."""
    context = browser.new_context(**options)
    page = context.new_page()
    page.goto(address)
    page.locator("#method option").first.wait_for(state="attached")
    page.locator("#message").fill(QUESTION)
    page.keyboard.press("Enter")
    page.locator("#compare:enabled").wait_for(state="attached")
    page.locator("#compare").dispatch_event("click")
    page.get_by_text("tokens/s,").wait_for(state="attached")
    page.locator("#step").fill(STEP)
    page.screenshot(path=path)
    context.close()


if __name__ == "__main__":
    folder, chromium = Path(sys.argv[1]), shutil.which("chromium")
    with server() as address, sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        for name, options in PICTURES.items():
            take(browser, address, folder / f"{name}.png", options)
        browser.close()
