"""Makes the pictures of the server's page and of a plan in the documentation, with the models in the package.

    python scripts/page_screenshots.py docs/assets

Needs Chromium, and the packages of the extras `test` and `report`.
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
from tempfile import TemporaryDirectory
from typing import Any

from PIL import Image
from playwright.sync_api import Browser, sync_playwright
from transformers import LlamaConfig

SERVER = "serve zoo:target --drafts zoo:draft --method specinfer --methods prompt-lookup --port 0".split()
TEXT = (
    "Every morning Mia walks from the bridge to the lamp. We sold the lamp and kept the kettle. "
    "The garden was quiet, but nobody looked at the lamp."
)
QUESTIONS = {  # method -> message
    "prompt-lookup": f"Replace the word lamp with clock in this text:\n{TEXT}",
    "specinfer": f"Replace the word garden with station in this text:\n{TEXT}",
}
STEP = "3"  # the step of the last answer whose tree is shown
DESKTOP, PHONE = {"width": 1200, "height": 840}, {"width": 390, "height": 780}
PLAN = [
    *"plan --target llama-8b --head eagle --lookup --hardware h100-sxm --context 2000".split(),
    *"--batch 1,4,16,64,128".split(),
    *"--acceptance head=0.75/0.1/0.04 --acceptance lookup=0.35 --html plan.html".split(),
]
PLAN_PICTURES: dict[str, dict[str, Any]] = {
    "plan-desktop": {"viewport": {"width": 1000, "height": 940}},
    "plan-phone": {"viewport": {"width": 390, "height": 800}, "device_scale_factor": 2},
}
PICTURES: dict[str, dict[str, Any]] = {  # file name -> options of the browser's window
    "page-light": {"viewport": DESKTOP, "color_scheme": "light"},
    "page-dark": {"viewport": DESKTOP, "color_scheme": "dark"},
    "page-phone": {"viewport": PHONE, "color_scheme": "light", "device_scale_factor": 2},
}


@contextmanager
def server() -> Iterator[str]:
    """The address of a server, which is stopped at the end of the block."""
    command = [sys.executable, "-m", "outpace", *SERVER]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        try:
            yield next(found[0] for line in process.stderr if (found := re.search(r"http://\S+:\d+", line)))
        finally:
            process.send_signal(signal.SIGINT)


def write_plan(folder: Path) -> None:
    """Write plan.html into the folder, as docs/plan.md does."""
    sizes = {"vocab_size": 128256, "hidden_size": 4096, "intermediate_size": 14336, "num_hidden_layers": 32}
    heads = {"num_attention_heads": 32, "num_key_value_heads": 8}
    LlamaConfig(**sizes, **heads, dtype="bfloat16").save_pretrained(folder / "llama-8b")
    subprocess.run([sys.executable, "-m", "outpace", *PLAN], cwd=folder, check=True)


def take(browser: Browser, address: str, path: Path, options: dict[str, Any]) -> None:
    """Ask the questions, measure the speedup of the last answer, and save a picture of the page."""
    context = browser.new_context(**options)
    page = context.new_page()
    page.goto(address)
    page.locator("#method option").first.wait_for(state="attached")
    for method, question in QUESTIONS.items():
        page.locator("#method").select_option(method, force=True)  # hidden on a phone
        page.locator("#message").fill(question)
        page.keyboard.press("Enter")
        page.locator(".waiting").wait_for(state="detached")
    page.locator("#compare").dispatch_event("click")
    page.get_by_text("tokens/s,").wait_for(state="attached")
    if page.locator("#step").is_visible():
        page.locator("#step").fill(STEP)
    page.screenshot(path=path)
    context.close()
    shrink(path)


def take_plan(browser: Browser, folder: Path, path: Path, options: dict[str, Any]) -> None:
    """Save a picture of the top of the plan's page in `folder`."""
    context = browser.new_context(color_scheme="light", **options)
    page = context.new_page()
    page.goto((folder / "plan.html").as_uri())
    page.screenshot(path=path)
    context.close()
    shrink(path)


def shrink(path: Path) -> None:
    Image.open(path).quantize(256, dither=Image.Dither.NONE).save(path, optimize=True)  # a third of the bytes


if __name__ == "__main__":
    folder, chromium = Path(sys.argv[1]), shutil.which("chromium")
    with server() as address, sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        for name, options in PICTURES.items():
            take(browser, address, folder / f"{name}.png", options)
        with TemporaryDirectory() as place:
            write_plan(Path(place))
            for name, options in PLAN_PICTURES.items():
                take_plan(browser, Path(place), folder / f"{name}.png", options)
        browser.close()
