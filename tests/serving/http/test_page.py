"""The page in a real browser, against a real server."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page, Route

BROWSERS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
CHROMIUM = next(filter(None, map(shutil.which, BROWSERS)), None)
pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="needs Chromium (apt-get install chromium)")

HELLO = "Say hello to Noah."
# its answer does not end for hundreds of tokens
LONG = "class A:\n    pass\n\nclass B:\n    pass\n\nclass C:\n    pass"
EDIT = "Replace the word lamp with clock in this text:\nWe sold the lamp and kept the kettle."
WIDE, PHONE = {"width": 1200, "height": 800}, {"width": 360, "height": 740}
HTML = '<img src="x" onerror="document.title = 1"><script>document.title = 2</script>'
TOKENS = 8  # of an answer
TIMEOUT = 60_000  # milliseconds until a test fails
# the contrast, as WCAG 2 defines it, of each visible text with the nearest background behind it
CONTRAST = """(selector) => {
  const luminance = (color) => {
    const [r, g, b] = color.match(/[0-9.]+/g).map((value) => value / 255)
      .map((value) => (value <= 0.04045 ? value / 12.92 : ((value + 0.055) / 1.055) ** 2.4));
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  const contrast = (element) => {
    let behind = element;
    while (getComputedStyle(behind).backgroundColor === "rgba(0, 0, 0, 0)") behind = behind.parentElement;
    const [dark, light] = [getComputedStyle(element).color, getComputedStyle(behind).backgroundColor]
      .map(luminance).sort((a, b) => a - b);
    return (light + 0.05) / (dark + 0.05);
  };
  return [...document.querySelectorAll(selector)]
    .filter((element) => element.checkVisibility() && element.textContent.trim())
    .map((element) => [element.textContent, contrast(element)]);
}"""


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        found = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield found
        found.close()


@contextmanager
def opened(browser: Browser, url: str, *, errors: tuple[str, ...] = (), **options: Any) -> Iterator[Page]:
    """The page of a server in a window of its own. It must ask no other host, and write no errors to the
    console but those that match a pattern of `errors`."""
    context = browser.new_context(**{"viewport": WIDE} | options)
    context.set_default_timeout(TIMEOUT)
    page = context.new_page()
    asked, written = list[str](), list[str]()
    page.on("request", lambda request: asked.append(request.url))
    page.on("console", lambda message: written.append(message.text) if message.type != "log" else None)
    page.on("pageerror", lambda error: written.append(str(error)))
    page.goto(url)
    yield page
    context.close()
    assert asked and all(each.startswith(url) for each in asked)
    assert [text for text in written if not any(re.search(each, text) for each in errors)] == []


@pytest.fixture
def page(browser: Browser, running: Any) -> Iterator[Page]:
    with opened(browser, running.url) as found:
        yield found


def choose(page: Page, *, tokens: int = TOKENS, method: str | None = None, **fields: str) -> None:
    """Fill in the settings, when the page knows the server's methods."""
    page.locator("#method option").first.wait_for(state="attached")
    page.locator("#max-tokens").fill(str(tokens))
    page.locator("#formatted").uncheck()  # answers are compared as they are
    if method:
        page.locator("#method").select_option(method)
    for name, value in fields.items():
        page.locator(f"#{name}").fill(value)


def send(page: Page, text: str) -> str:
    """Send a message by keyboard; returns the complete answer."""
    number = page.locator(".answer").count()
    enter(page, text)
    page.locator(".answer").nth(number).and_(page.locator(":not(.waiting)")).wait_for()
    return page.locator(".answer .content").nth(number).inner_text()


def enter(page: Page, text: str) -> None:
    page.locator("#message").fill(text)
    page.locator("#message").press("Enter")


def legend(page: Page) -> dict[str, int]:
    rows = page.locator("#legend li").all()
    return {row.locator("span").nth(1).inner_text(): int(row.locator(".count").inner_text()) for row in rows}


def asked(client: Any, *messages: str, tokens: int = TOKENS, **extra: Any) -> Any:
    """The answer of the API to messages that take turns."""
    roles = ("user", "assistant")
    return client.chat.completions.create(
        model="zoo",
        messages=[{"role": roles[i % 2], "content": text} for i, text in enumerate(messages)],
        temperature=0,
        max_tokens=tokens,
        extra_body={"include_metrics": True} | extra,
    )


def chunk(content: str, tokens: list[str], method: str | None = None, accepted: int = 0) -> dict[str, Any]:
    """A chunk of a stream, with a step whose draft was accepted as a whole."""
    draft = [{"token": text, "parent": i - 1 if i else None} for i, text in enumerate(tokens[:accepted])]
    step = {"method": method, "draft": draft, "accepted": list(range(accepted)), "tokens": tokens}
    return {"choices": [{"index": 0, "delta": {"content": content}, "finish_reason": None, "step": step}]}


def stream(*chunks: Any, end: str = "data: [DONE]\n\n") -> Callable[[Route], None]:
    """A handler that answers a request with these chunks."""
    body = "".join(f"data: {json.dumps(each)}\n\n" for each in chunks) + end
    return lambda route: route.fulfill(content_type="text/event-stream", body=body)


def test_an_answer_is_that_of_the_api_and_its_drafts_are_shown(page: Page, client: Any) -> None:
    expected = asked(client, EDIT)
    counts = expected.metrics["speculative_decoding"]
    choose(page)
    assert page.locator("#model").inner_text() == "zoo"
    text = send(page, EDIT)
    assert text == expected.choices[0].message.content
    drafted, target = "accepted, drafted by speculative-sampling", "written by the target"
    num_accepted = counts["num_accepted_tokens"]
    assert legend(page) == {drafted: num_accepted, target: expected.usage.completion_tokens - num_accepted}
    assert (
        page.locator("#drafted").inner_text()
        == f"{num_accepted} of {counts['num_draft_tokens']} draft tokens"
    )
    runs = page.locator(".answer .source")
    assert "".join(runs.all_inner_texts()) == text
    colours = {(run.get_attribute("title") or "").partition(": ")[2]: background(run) for run in runs.all()}
    assert colours.keys() == {drafted, target} and len(set(colours.values())) == 2
    page.locator("#colours").press("Space")
    assert {background(run) for run in runs.all()} == {"rgba(0, 0, 0, 0)"}
    assert page.locator("#message").evaluate("each => each === document.activeElement") is False


def background(run: Any) -> str:
    return run.evaluate("each => getComputedStyle(each).backgroundColor")


@pytest.mark.slow
def test_a_conversation_goes_on_and_begins_again(page: Page, client: Any) -> None:
    choose(page, method="prompt-lookup")
    first = send(page, HELLO)
    second = send(page, "Again.")
    assert second == asked(client, HELLO, first, "Again.").choices[0].message.content
    assert page.locator("article").count() == 2
    page.locator("#restart").click()
    assert page.locator("article").count() == 0 and page.locator(".welcome").is_visible()
    assert set(legend(page).values()) == {0} and page.locator("#compare").is_disabled()
    assert send(page, HELLO) == first


@pytest.mark.slow
def test_the_tree_of_every_step_can_be_chosen(page: Page) -> None:
    choose(page)
    send(page, EDIT)
    slider, words = page.locator("#step"), page.locator("#step-words")
    last = int(slider.get_attribute("max") or 0)
    assert slider.input_value() == str(last) and last > 1
    generated = 0
    slider.press("Home")
    for step in range(1, last + 1):
        found = re.fullmatch(
            rf"Step {step} of {last}: (\d+) tokens drafted by \S+, (\d+) accepted, (\d+) generated\.",
            words.inner_text(),
        )
        assert found or "nothing drafted" in words.inner_text()
        counts = [page.locator(f"#tree .node.{kind}").count() for kind in ("accepted", "rejected", "bonus")]
        if found:
            num_drafted, num_accepted, num_generated = map(int, found.groups())
            assert counts == [num_accepted, num_drafted - num_accepted, num_generated - num_accepted]
        assert page.locator("#tree .edge").count() == sum(counts)
        marked = titles(page.locator(".answer .marked"))
        assert marked and all(each.startswith(f"step {step}:") for each in marked)
        generated += counts[0] + counts[2]
        slider.press("ArrowRight")
    assert generated == sum(legend(page).values())


def titles(runs: Any) -> list[str]:
    return [each.get_attribute("title") for each in runs.all()]


@pytest.mark.slow
def test_branches_lie_below_the_accepted_path(page: Page) -> None:
    draft = [("a", None), ("b", None), ("c", 0), ("d", 0), ("e", 3), ("f", 1)]
    step = {
        "method": "prompt-lookup",
        "draft": [{"token": token, "parent": parent} for token, parent in draft],
        "accepted": [0, 3],
        "tokens": ["a", "d", "!"],
    }
    answered = {"choices": [{"index": 0, "delta": {"content": "ad!"}, "finish_reason": "stop", "step": step}]}
    page.route("**/chat/completions", stream(answered))
    choose(page)
    enter(page, "x")
    page.locator("#tree .node.bonus").wait_for()
    places = {
        node.locator("text").text_content(): node.locator("rect").evaluate(
            "each => [each.x.baseVal.value, each.y.baseVal.value]"
        )
        for node in page.locator("#tree .node").all()
    }
    columns, rows = zip(*[places[token] for token in ("prompt", "a", "d", "!")], strict=True)
    assert len(set(rows)) == 1 and list(columns) == sorted(columns)
    assert {token for token, (_, y) in places.items() if y > rows[0]} == {"b", "c", "e", "f"}
    assert len({tuple(place) for place in places.values()}) == len(places)  # none lies on another
    assert places["b"][1] == places["f"][1] and places["e"][0] == places["!"][0]


@pytest.mark.slow
def test_the_speedup_is_measured_with_the_same_request(page: Page) -> None:
    bodies: list[Any] = []
    page.on(
        "request", lambda request: bodies.append(request.post_data_json) if request.method == "POST" else None
    )
    # more tokens than one draft has: the speed is that after the first step
    choose(page, tokens=16, system="Be brief.")
    text = send(page, EDIT)
    page.locator("#restart").click()
    choose(page, tokens=16, prediction=text)
    bodies.clear()
    assert send(page, EDIT) == text
    page.locator("#compare").press("Enter")
    page.get_by_text(re.compile(r"^plain: [\d.]+ tokens/s, same text$")).wait_for()
    assert re.fullmatch(r"[\d.]+×", page.locator("#speedup").inner_text())
    drafted, plain = bodies
    assert plain == {k: v for k, v in drafted.items() if k != "prediction"} | {"speculation": False}
    assert drafted["speculation"] == {"method": "speculative-sampling"} and drafted["include_steps"] is True
    assert [message["role"] for message in drafted["messages"]] == ["system", "user"]
    assert drafted["prediction"] == {"type": "content", "content": text}
    assert "accepted, from the predicted answer" in legend(page)


@pytest.mark.slow
def test_nothing_is_drafted_in_plain_decoding(page: Page, client: Any) -> None:
    choose(page, method="(plain)")
    assert send(page, HELLO) == asked(client, HELLO, speculation=False).choices[0].message.content
    assert legend(page) == {"written by the target": TOKENS}
    assert page.locator("#length").inner_text() == "1.00" and page.locator("#rate").inner_text() == "–"
    assert page.locator("#tree .node").count() == 2  # root and bonus token


@pytest.mark.parametrize("way", ["Escape", pytest.param("button", marks=pytest.mark.slow)])
def test_stopping_ends_the_request_on_the_server(page: Page, running: Any, wait: Any, way: str) -> None:
    wait(lambda: running.service.engine.num_running == 0)
    choose(page, tokens=2000)
    enter(page, LONG)
    page.locator(".answer .source").first.wait_for()
    assert running.service.engine.num_running == 1
    page.locator("#message").fill("kept")
    if way == "Escape":
        page.keyboard.press("Escape")
    else:
        page.locator("#stop").press("Enter")
    page.get_by_text("Stopped.").wait_for()
    focused = page.evaluate("document.activeElement.id")
    assert focused == ("message" if way == "Escape" else "send")
    wait(lambda: running.service.engine.num_running == 0)
    assert page.locator("#message").input_value() == "kept" and page.locator("#failure").is_hidden()


@pytest.mark.slow
def test_shift_and_enter_begin_a_new_line(page: Page) -> None:
    choose(page)
    message = page.locator("#message")
    message.press("a")
    message.press("Shift+Enter")
    message.press("b")
    assert message.input_value() == "a\nb" and message.get_attribute("rows") == "2"
    assert page.locator("article").count() == 0


@pytest.mark.slow
def test_text_is_never_html(page: Page) -> None:
    page.route("**/chat/completions", stream(chunk(HTML, [HTML, ""], "prompt-lookup", 1)))
    choose(page)
    assert send(page, HTML) == HTML
    assert page.locator(".question .text").inner_text() == HTML
    assert page.locator("main img, main script, aside img, aside script").count() == 0
    assert page.title() == "zoo – outpace"
    assert page.locator("#tree .node title").nth(1).text_content() == f"{json.dumps(HTML)}, accepted"


@pytest.mark.slow
def shown(page: Page, text: str) -> Any:
    """The answer that consists of this text, formatted."""
    page.route("**/chat/completions", stream(chunk(text, [text], "prompt-lookup", 1)))
    choose(page)
    send(page, "x")
    page.locator("#formatted").check()
    return page.locator(".answer .content").last


MARKDOWN = """# Title

A *word*, **two** and `x ** y` at https://example.org/a_b, [a page](https://example.org/c).
def __init__(self): snake_case_name

1. one
   - inner **bold `**k**`**
2. two

> quoted

| a | `b` |
|---|:-:|
| 1 |  |

---
```python
def f(*a, **k):

    return "*x*"
```"""


@pytest.mark.slow
def test_markdown_is_formatted_with_the_colours_of_its_tokens(page: Page) -> None:
    found = shown(page, MARKDOWN)
    assert found.locator("h3").inner_text() == "Title"
    assert found.locator("> p em").inner_text() == "word"
    assert found.locator("> p").inner_text().splitlines()[1] == "def __init__(self): snake_case_name"
    assert found.locator("strong").all_inner_texts() == ["two", "bold **k**"]
    assert found.locator("p > code").inner_text() == "x ** y"
    assert [[each.inner_text(), each.get_attribute("href")] for each in found.locator("a").all()] == [
        ["https://example.org/a_b", "https://example.org/a_b"],
        ["a page", "https://example.org/c"],
    ]
    assert found.locator("ol > li > p").all_inner_texts() == ["one", "two"]
    assert found.locator("ol > li:first-child > ul > li").inner_text() == "inner bold **k**"
    assert found.locator("blockquote p").inner_text() == "quoted"
    assert found.locator("th").all_inner_texts() == ["a", "b"]
    assert found.locator("td").all_inner_texts() == ["1", ""] and found.locator("hr").count() == 1
    assert found.locator("pre").inner_text() == 'def f(*a, **k):\n\n    return "*x*"'
    assert found.locator(".code span").first.inner_text() == "python"
    assert "monospace" in found.locator("pre").evaluate("each => getComputedStyle(each).fontFamily")
    runs = found.locator("pre .source, em .source")
    assert {background(run) for run in runs.all()} != {"rgba(0, 0, 0, 0)"}
    page.locator("#formatted").uncheck()
    assert found.inner_text() == MARKDOWN


@pytest.mark.slow
def test_markdown_makes_no_html_and_no_other_links(page: Page) -> None:
    text = f"{HTML}\n\n[x](javascript:alert(1)) [y](data:text/html,z) ![i](https://example.org/i.png)\n```\n{HTML}\n```"
    found = shown(page, text)
    assert found.locator("img, script").count() == 0 and page.title() == "zoo – outpace"
    assert [each.get_attribute("href") for each in found.locator("a").all()] == ["https://example.org/i.png"]
    assert found.locator("a").get_attribute("rel") == "noopener noreferrer"
    assert found.locator("pre").inner_text() == HTML and HTML in found.locator("p").first.inner_text()


@pytest.mark.slow
def test_markdown_is_read_quickly_and_loses_no_text(page: Page) -> None:
    patterns = [
        "*a ",
        "**",
        "*_",
        "[",
        "`` ` ",
        "> ",
        "- ",
        "| ",
        "#",
        " ",
        "1. ",
        "[a](",
        "~~~\n",
        "\\",
        "__a",
    ]
    found = page.evaluate(
        """async (patterns) => {
          const { blocksOf } = await import("./page/markdown.js");
          const { partsOf } = await import("./page/inline.js");
          const times = [];
          for (const pattern of patterns) {
            const long = pattern.repeat(4000);
            for (const text of [long, `# ${long}x`, `${pattern}\n`.repeat(2000)]) {
              const began = performance.now();
              const visit = (blocks) => blocks.forEach((block) => {
                if (block.content) partsOf(block.content.text);
                for (const inner of [block.blocks ?? [], ...block.items ?? []]) visit(inner);
              });
              visit(blocksOf(text));
              times.push([performance.now() - began, text.slice(0, 20)]);
            }
          }
          return times.filter(([time]) => time > 2000);
        }""",
        patterns,
    )
    assert found == []


@pytest.mark.slow
def test_blocks_that_are_complete_keep_their_elements(page: Page) -> None:
    found = page.evaluate(
        """async () => {
          const { Passage } = await import("./page/answer.js");
          const { PassageView } = await import("./page/passage_view.js");
          const { Sources } = await import("./page/sources.js");
          const [box, passage] = [document.createElement("div"), new Passage()];
          const view = new PassageView(box, passage, new Sources([]));
          const seen = [];
          for (const text of ["# A\\n", "b *c", "*\\n\\n", "```\\nd", "\\n```", "\\n- e", "\\n- f"]) {
            passage.append(text, null, seen.length);
            view.draw(true);
            seen.push([...box.children]);
          }
          const kept = seen.slice(1).map((after, i) => seen[i].filter((each) => after.includes(each)).length);
          return [kept, [...box.children].map((each) => each.localName + ": " + each.textContent)];
        }"""
    )
    assert found == [[1, 1, 2, 2, 3, 3], ["h3: A", "p: b c", "div: Copyd", "ul: ef"]]


@pytest.mark.slow
def test_reasoning_is_folded_and_not_sent_again(page: Page) -> None:
    bodies: list[Any] = []
    thought = chunk("", ["<t>", "Hm", "</t>"], "prompt-lookup", 2)
    thought["choices"][0]["delta"] = {"reasoning": "Hm", "reasoning_content": "Hm"}
    answer = stream(thought, chunk("Yes", ["Yes"]))

    def handle(route: Route) -> None:
        bodies.append(route.request.post_data_json)
        answer(route)

    page.route("**/chat/completions", handle)
    choose(page)
    assert send(page, "x") == "Yes"
    text = page.locator(".reasoning .text")
    assert text.is_hidden()
    page.locator(".reasoning summary").press("Enter")
    assert text.is_visible() and text.inner_text() == "Hm"
    send(page, "y")
    assert [message["content"] for message in bodies[1]["messages"]] == ["x", "Yes", "y"]


@pytest.mark.slow
def test_answers_and_code_are_copied(page: Page) -> None:
    page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    found = shown(page, "See:\n```sh\nls\n\npwd\n```")
    for button, text in (
        (found.get_by_role("button", name="Copy the code"), "ls\n\npwd"),
        (page.get_by_role("button", name="Copy the answer"), "See:\n```sh\nls\n\npwd\n```"),
    ):
        button.press("Enter")
        page.get_by_role("button", name="Copied").wait_for()
        assert page.evaluate("navigator.clipboard.readText()") == text
        page.get_by_role("button", name="Copied").wait_for(state="detached")
    page.evaluate("Object.defineProperty(navigator, 'clipboard', { value: undefined })")  # as without HTTPS
    page.get_by_role("button", name="Copy the code").press("Enter")
    page.get_by_role("button", name="Copied").wait_for()
    page.locator("#message").press("Control+V")
    assert page.locator("#message").input_value() == "ls\n\npwd"


@pytest.mark.slow
def test_an_answer_is_generated_again(browser: Browser, running: Any, client: Any) -> None:
    with opened(browser, running.url, errors=("ERR_FAILED",)) as page:
        choose(page)
        first = send(page, HELLO)
        send(page, "Again.")
        page.locator("#max-tokens").fill("4")
        assert page.get_by_role("button", name="Regenerate").count() == 1  # of the last answer
        page.get_by_role("button", name="Regenerate").press("Enter")
        page.get_by_text("4 tokens in").wait_for()
        assert page.locator("article").count() == 2
        assert page.locator(".answer .content").last.inner_text() == (
            asked(client, HELLO, first, "Again.", tokens=4).choices[0].message.content
        )
        page.route("**/chat/completions", lambda route: route.abort())
        page.get_by_role("button", name="Regenerate").press("Enter")
        page.get_by_text("the server cannot be reached").wait_for()
        assert page.locator("article").count() == 2 and sum(legend(page).values()) == 4


@pytest.mark.slow
def test_a_conversation_is_kept_over_a_reload(page: Page, client: Any) -> None:
    choose(page)
    first = send(page, HELLO)
    before = [legend(page), page.locator("#step-words").inner_text(), page.locator("#status").inner_text()]
    page.reload()
    page.locator("article").wait_for()
    choose(page)
    assert before == [
        legend(page),
        page.locator("#step-words").inner_text(),
        page.locator("#status").inner_text(),
    ]
    assert page.locator(".answer .content").inner_text() == first
    assert page.locator(".answer > .note").inner_text() == "The limit on tokens was reached."
    second = send(page, "Again.")
    assert second == asked(client, HELLO, first, "Again.").choices[0].message.content
    page.locator("#restart").click()
    page.reload()
    page.locator("#method option").first.wait_for(state="attached")
    assert page.locator("article").count() == 0 and page.locator(".welcome").is_visible()
    page.evaluate("localStorage.setItem('outpace-conversation zoo', '{broken')")
    page.reload()
    page.locator("#method option").first.wait_for(state="attached")
    assert page.locator("article").count() == 0


@pytest.mark.slow
def test_a_conversation_that_is_too_long_to_be_kept_says_so(page: Page) -> None:
    choose(page)
    page.evaluate("localStorage.setItem('filled', 'x'.repeat(5 * 2 ** 20 - 100))")
    send(page, HELLO)
    page.get_by_text("too long for this browser to keep").wait_for()
    assert page.locator("article").count() == 1


@pytest.mark.slow
def test_a_model_without_a_chat_template_continues_texts(browser: Browser, model: Any, serve: Any) -> None:
    with (
        serve(model, "prompt-lookup", chat_template="") as running,
        opened(browser, running.url) as page,
    ):
        page.locator("#method option").first.wait_for(state="attached")
        assert "no chat template" in page.locator(".welcome").inner_text()
        assert page.get_by_label("Beginning of a text").is_visible()
        assert page.get_by_label("System prompt").is_hidden() and page.locator("#formatted").is_hidden()
        page.locator("#max-tokens").fill("12")
        text = send(page, "Once upon a time")
        expected = running.client().completions.create(
            model="zoo", prompt="Once upon a time", temperature=0, max_tokens=12
        )
        assert text == expected.choices[0].text
        assert sum(legend(page).values()) == 12 and page.locator("#tree .node").count() > 1
        assert page.locator("article h2").all_inner_texts() == ["Text", "Continuation"]
        send(page, "Once upon a time")
        assert page.locator(".answer .content").all_inner_texts() == [text, text]


@pytest.mark.slow
def test_text_that_was_held_back_keeps_its_source(page: Page) -> None:
    chunks = [chunk("He", ["Hello", " you"], "prompt-lookup", 1), chunk("llo you now", [" now"])]
    page.route("**/chat/completions", stream(*chunks))
    choose(page)
    assert send(page, "x") == "Hello you now"
    lookup, target = "accepted, drafted by prompt-lookup", "written by the target"
    assert [
        (run.inner_text(), run.get_attribute("title")) for run in page.locator(".text .source").all()
    ] == [
        ("Hello", f"step 1: {lookup}"),
        (" you", f"step 1: {target}"),
        (" now", f"step 2: {target}"),
    ]


@pytest.mark.slow
def test_events_are_read_wherever_the_body_is_divided(page: Page) -> None:
    first, second = 'data: {"a":\ndata: "Straße 😀"}\n\n', 'event: x\r\ndata:{"a":2}\r\n\r\n'
    body = f"{first}: keep-alive\n\n{second}data: [DONE]\n\ndata: 3\n\n"
    for size in (1, 2, 3, 7, 1000):
        found = page.evaluate(
            """async ([bytes, size]) => {
              const { events } = await import("./page/events.js");
              const body = new ReadableStream({ start(controller) {
                for (let i = 0; i < bytes.length; i += size) {
                  controller.enqueue(new Uint8Array(bytes.slice(i, i + size)));
                }
                controller.close();
              }});
              const found = [];
              for await (const value of events(body)) found.push(value.a);
              return found;
            }""",
            [list(body.encode()), size],
        )
        assert found == ["Straße 😀", 2]


@pytest.mark.slow
def test_an_answer_that_breaks_off_says_so(page: Page) -> None:
    sentence = "the server shut down before the answer was complete: ask again"
    for end, words in (
        (f'data: {{"error": {{"message": "{sentence}"}}}}\n\ndata: [DONE]\n\n', sentence),
        ("", "the connection ended before the answer was complete: send the message again"),
    ):
        page.route("**/chat/completions", stream(chunk("He", ["He"]), end=end))
        choose(page)
        enter(page, HELLO)
        page.get_by_text(words).wait_for()
        assert page.locator(".answer .content").last.inner_text() == "He"
        assert page.locator(".answer .note").last.inner_text() == "The answer is not complete."
        page.unroute("**/chat/completions")


@pytest.mark.slow
@pytest.mark.usefixtures("clock")
def test_a_key_is_asked_for_and_kept_for_the_tab(browser: Browser, model: Any, serve: Any) -> None:
    with (
        serve(model, "autoregressive", api_keys=["right"], rate_limit=1) as running,
        opened(browser, running.url, errors=("status of 401", "status of 429")) as page,
    ):
        page.get_by_label("API key").wait_for()
        assert page.locator("#failure").inner_text() == "This server asks for an API key."
        for key in ("wrong", "right"):
            page.get_by_label("API key").fill(key)
            page.get_by_label("API key").press("Enter")
            if key == "wrong":
                page.get_by_text("Wrong key: enter another.").wait_for()
        page.locator("#key-form").wait_for(state="hidden")
        choose(page, tokens=4)
        assert len(send(page, HELLO)) > 1
        stored = page.evaluate("[Object.values(sessionStorage), Object.keys(localStorage), document.cookie]")
        assert stored == [["right"], ["outpace-conversation zoo"], ""]
        enter(page, "Again.")
        page.get_by_text("more than 1 requests in a minute").wait_for()
        page.locator("#send").wait_for()
        assert page.locator("#message").input_value() == "Again." and page.locator("article").count() == 1
        assert set(legend(page).values()) == {4}  # the first answer's
        page.reload()
        page.locator("#method option").first.wait_for(state="attached")


@pytest.mark.slow
def test_a_message_is_kept_when_the_server_is_gone(browser: Browser, model: Any, serve: Any) -> None:
    with serve(model, "autoregressive") as running:
        with opened(browser, running.url, errors=("ERR_CONNECTION_REFUSED",)) as page:
            choose(page)
            running.server.should_exit = True
            running.thread.join(60)
            enter(page, HELLO)
            page.get_by_text("the server cannot be reached").wait_for()
            assert page.locator("#message").input_value() == HELLO and page.locator("article").count() == 0
            assert page.locator(".welcome").is_visible()


@pytest.mark.slow
def test_nothing_is_wider_than_a_phone(browser: Browser, running: Any) -> None:
    with opened(browser, running.url, viewport=PHONE, has_touch=True) as page:
        boxes = (
            "[document.documentElement, document.body, ...document.querySelectorAll('#conversation, #panel')]"
        )
        too_wide = f"{boxes}.some((each) => each.scrollWidth > innerWidth)"
        page.locator("#method option").first.wait_for(state="attached")
        page.locator("#max-tokens").evaluate("each => each.value = 8")  # hidden on a phone
        send(page, "A" * 200)
        assert page.evaluate(too_wide) is False
        toggle = page.get_by_role("button", name="Drafts & settings")
        assert toggle.get_attribute("aria-expanded") == "false" and page.locator("#panel").is_hidden()
        toggle.click()
        assert toggle.get_attribute("aria-expanded") == "true" and page.locator("#panel").is_visible()
        assert page.evaluate(too_wide) is False
        page.locator("#max-tokens").fill("0")
        toggle.click()
        enter(page, "Again.")  # is not sent: the wrong setting is shown
        assert page.locator("#max-tokens").evaluate("each => each === document.activeElement")
        assert page.locator("#message").input_value() == "Again." and page.locator("article").count() == 1
        for control in page.locator("button, input, select, textarea").all():
            if box := control.bounding_box():
                assert box["x"] >= 0 and box["x"] + box["width"] <= PHONE["width"]


@pytest.mark.slow
def test_every_control_is_reached_by_tab_and_has_a_name(page: Page) -> None:
    choose(page)
    send(page, HELLO)
    page.locator("#message").focus()
    reached = list[str]()
    name = "each => each.id || each.textContent"
    focused = (
        "getComputedStyle(document.activeElement).outlineStyle, document.activeElement === document.body"
    )
    for _ in range(40):
        page.keyboard.press("Tab")
        found, outline, is_body = page.evaluate(f"[({name})(document.activeElement), {focused}]")
        if found in reached:
            break
        if not is_body:
            reached.append(found)
            assert outline == "solid", found
    controls = page.locator("button, input, select, textarea")
    usable = {each.evaluate(name) for each in controls.all() if each.is_visible() and each.is_enabled()}
    assert usable <= {*reached, "message"} and {"conversation", "tree", "Copy", "Regenerate"} <= set(reached)
    for each in controls.all():
        assert each.evaluate("each => each.labels.length || each.textContent"), each
    live = page.get_by_role("log")
    assert live.get_attribute("aria-busy") == "false"
    assert page.get_by_role("status").inner_text().startswith(f"{TOKENS} tokens in")


@pytest.mark.parametrize("scheme", [pytest.param("light", marks=pytest.mark.slow), "dark"])
def test_all_text_has_enough_contrast(browser: Browser, running: Any, scheme: Any) -> None:
    with opened(browser, running.url, color_scheme=scheme) as page:
        sources = ["speculative-sampling", "prediction", None]
        chunks = [chunk("ab", ["a", "b"], each, 1 if each else 0) for each in sources]
        page.route("**/chat/completions", stream(*chunks))
        choose(page)
        send(page, HELLO)
        page.locator(".answer .source").first.evaluate(
            """(run) => {  // the colours of methods that this server does not have
              for (let i = 1; i < 5; i++) run.after(run.cloneNode(true));
              document.querySelectorAll(".answer .method-0").forEach((each, i) => {
                each.className = `source method-${i}`;
              });
            }"""
        )
        found = page.evaluate(CONTRAST, "h1, h2, p, dt, dd, label, button:enabled, .text, .source, li span")
        assert len(found) > 40 and len({text for text, _ in found}) > 25
        assert [each for each in found if each[1] < 4.5] == []


@pytest.mark.parametrize("motion", ["reduce", pytest.param("no-preference", marks=pytest.mark.slow)])
def test_nothing_moves_where_motion_is_not_wanted(browser: Browser, running: Any, motion: Any) -> None:
    with opened(browser, running.url, reduced_motion=motion) as page:
        choose(page, tokens=2000)
        enter(page, HELLO)
        page.locator("#stop").wait_for()
        assert bool(page.evaluate("document.getAnimations().length")) == (motion == "no-preference")
        page.keyboard.press("Escape")
        page.locator("#send").wait_for()
