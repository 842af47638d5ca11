"""The files of the page, without a browser."""

from __future__ import annotations

import re
from typing import Any

import pytest

from outpace.serving.http.routes.page import FOLDER

FILES = sorted(path.name for path in FOLDER.iterdir())


@pytest.mark.parametrize("path", ["/", *(f"/page/{name}" for name in FILES)])
def test_every_file_is_served_with_strict_headers(running: Any, path: str) -> None:
    status, text, headers = running.call(path)
    name = path.removeprefix("/page/") if path != "/" else "index.html"
    assert status == 200 and text == (FOLDER / name).read_text(encoding="utf-8")
    kinds = {"html": "text/html", "css": "text/css", "js": "text/javascript", "svg": "image/svg+xml"}
    assert headers["content-type"].partition(";")[0] == kinds[name.rpartition(".")[2]]
    policy = headers["content-security-policy"].split("; ")
    assert "default-src 'self'" in policy and "require-trusted-types-for 'script'" in policy
    assert "unsafe" not in headers["content-security-policy"]
    assert headers["x-content-type-options"] == "nosniff" and headers["referrer-policy"] == "no-referrer"


def test_files_name_no_other_host_and_insert_no_html() -> None:
    for name in FILES:
        text = (FOLDER / name).read_text(encoding="utf-8").replace("http://www.w3.org/2000/svg", "")
        assert not re.search(r"https?:|//[a-z]+\.|innerHTML|outerHTML|insertAdjacent|\beval\b", text), name
    index = (FOLDER / "index.html").read_text(encoding="utf-8")
    assert not re.search(r"<style|\sstyle=|\son[a-z]+=|<script>", index)


def test_every_element_that_scripts_name_exists() -> None:
    index = (FOLDER / "index.html").read_text(encoding="utf-8")
    scripts = "".join(path.read_text(encoding="utf-8") for path in FOLDER.glob("*.js"))
    named = set(re.findall(r'byId\("([^"]+)"\)', scripts))
    assert named <= set(re.findall(r'\bid="([^"]+)"', index)) and len(named) > 20
    imported = set(re.findall(r'from "\./([^"]+)"', scripts)) | set(re.findall(r'="page/([^"]+)"', index))
    assert imported | {"index.html"} == set(FILES)


def test_only_files_of_the_page_need_no_key(model: Any, serve: Any) -> None:
    with serve(model, "autoregressive", api_keys=["right"]) as running:
        assert running.call("/")[0] == running.call("/page/main.js")[0] == 200
        assert running.call("/page/nothing.js")[0] == running.call("/page/../v1/models")[0] == 404
        assert running.call("/v1/models")[0] == running.call("/page")[0] == running.call("//")[0] == 401
