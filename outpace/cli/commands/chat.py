"""`outpace chat`: a conversation in the terminal."""

from __future__ import annotations

import sys
from contextlib import suppress
from importlib import import_module
from io import TextIOWrapper
from typing import Annotated, Any

import typer

from outpace.cli import options as o
from outpace.cli.failures import Debug, report_failures
from outpace.cli.output import print_status, summary
from outpace.cli.recipe_options import TARGET, RecipeCommand, chosen_method

COMMANDS = "/help lists the commands, /reset starts a new conversation, /quit (or Ctrl-D) ends it"
ANSWER_TOKENS = 256  # tokens of the context reserved for an answer, unless --max-tokens is given


class ChatCommand(RecipeCommand):
    """A command whose method is `auto` if none is named."""

    def default_of(self, named: Any) -> Any:
        from outpace.recipes import get

        return get("auto")


@report_failures
@o.with_groups
def chat(
    ctx: typer.Context,
    target: o.Target = TARGET,
    method: Annotated[
        str | None,
        typer.Option(
            "--method",
            "-m",
            help="A method of `outpace list`, or @FILE with what bench recommends; default: auto, which "
            "learns over the answers of a conversation.",
        ),
    ] = None,
    recipe: o.RecipeFile = None,
    speculative_config: o.SpeculativeConfig = None,
    system: Annotated[str | None, typer.Option(help="The system message.")] = None,
    *,
    generation: o.GenerationOptions,
    loading: o.LoadingOptions,
    quiet: o.Quiet = False,
    debug: Debug = False,
) -> None:
    """Talk to a chat model. Ctrl-C interrupts an answer, Ctrl-D or /quit ends the conversation. The method's
    options, such as --draft MODEL, are listed by `chat --method METHOD --help`."""
    used, given = chosen_method(ctx)
    request = generation.request()
    conversation = Conversation(loading.load(target), system, request["max_tokens"])
    answers = Answers(used, request | given, quiet=quiet)
    if sys.stdin.isatty():
        with suppress(ModuleNotFoundError):  # Windows: the console edits lines itself
            import_module("readline")  # gives input() line editing and a history
        print_status(f"{target}, {used.name}. {COMMANDS}; Ctrl-C interrupts an answer.")
    if isinstance(sys.stdin, TextIOWrapper):
        # a byte that is not text is an error in some locales and a surrogate in others: always the latter, so
        # that the lines after it are read
        sys.stdin.reconfigure(errors="surrogateescape")
    while (line := read_line()) is not None:
        if line == "/quit":
            return
        if any("\ud800" <= character <= "\udfff" for character in line):
            print_status(f"(this line is not {sys.stdin.encoding} text: it was not sent)")
            continue
        if line == "/reset":
            conversation.reset()
            print_status("(new conversation)")
        elif line.startswith("/"):
            print_status(COMMANDS if line == "/help" else f"there is no command {line}: {COMMANDS}")
        elif line and conversation.add_question(line):
            conversation.add_answer(answers.answer(conversation))


class Conversation:
    """The messages of a chat; the oldest are dropped so that messages and answer fit into the context."""

    def __init__(self, model: Any, system: str | None, max_tokens: int | None) -> None:
        """`max_tokens`: maximum length of an answer. ValueError for a model without a chat template."""
        self.model, self._max_tokens = model, max_tokens
        self._system = [{"role": "system", "content": system}] if system else []
        self.messages = list(self._system)
        self._count([*self._system, {"role": "user", "content": "hello"}])

    def reset(self) -> None:
        """Remove all messages except the system message."""
        self.messages = list(self._system)

    def add_question(self, text: str) -> bool:
        """Add a user message and drop the oldest turns until an answer fits into the context.

        Returns False, without adding it, if the message is too long even without earlier turns.
        """
        messages = [*self.messages, {"role": "user", "content": text}]
        start, dropped = len(self._system), 0
        while not self._fits(messages):
            if len(messages) <= start + 1:
                print_status("(this message is too long for the model's context: it was not sent)")
                return False
            del messages[start : start + 2]  # one turn: the user's message and the answer
            dropped += 2
        if dropped:
            print_status(f"(the context is full: the oldest {dropped} messages were dropped)")
        self.messages = messages
        return True

    def add_answer(self, text: str) -> None:
        """Append the model's answer as an assistant message."""
        self.messages.append({"role": "assistant", "content": text})

    def _fits(self, messages: list[dict[str, str]]) -> bool:
        limit = self.model.max_length
        if limit is None:
            return True
        return self._count(messages) + min(self._max_tokens or ANSWER_TOKENS, limit // 2) <= limit

    def _count(self, messages: list[dict[str, str]]) -> int:
        from outpace.api.prompts import encode

        return len(encode(self.model.tokenizer, messages, self.model.target.vocab))


def read_line() -> str | None:
    """The next line of standard input, with surrogates for bytes that are not text; None at its end."""
    try:
        return input("> " if sys.stdin.isatty() else "").strip()
    except EOFError:
        return None


class Answers:
    """Generates the answers of a conversation. The parts of the method serve all of them, so that a method
    that learns what pays, as `auto` does, learns it once."""

    def __init__(self, used: Any, request: dict[str, Any], *, quiet: bool) -> None:
        """`used`: the recipe; `request`: settings and the method's options, as for `outpace.stream`."""
        self._used, self._request, self._quiet = used, request, quiet
        self._parts: Any = None  # of the method, from the first answer on

    def answer(self, conversation: Conversation) -> str:
        """Print one answer as it is generated and return its text, incomplete after Ctrl-C."""
        from outpace.api.request import prepare
        from outpace.api.stream import Stream

        request = prepare(conversation.model, conversation.messages, self._used, **self._request)
        self._parts = self._parts or request.parts()
        with Stream(request.run(self._parts)) as pieces:
            try:
                for piece in pieces:
                    typer.echo(piece, nl=False)
                    sys.stdout.flush()
            except KeyboardInterrupt:
                typer.echo("\n(interrupted)", err=True, nl=False)
            typer.echo()
            if not self._quiet:
                print_status(summary(self._used.name, pieces.result))
            return pieces.result.text
