"""`outpace chat`: a conversation in the terminal."""

from __future__ import annotations

import sys
from contextlib import suppress
from importlib import import_module
from io import TextIOWrapper
from pathlib import Path
from typing import Annotated, Any

import typer

from outpace.cli import options as o
from outpace.cli.failures import Debug, report_failures
from outpace.cli.output import json_text, print_status, summary
from outpace.cli.recipe_options import TARGET, RecipeCommand, chosen_method

COMMANDS = (
    "/help lists the commands, /continue goes on with a cut answer, /system TEXT sets the system message and "
    "starts a new conversation, /reset starts a new conversation, /save FILE writes this one as JSON, /quit "
    "(or Ctrl-D) ends it; a line that ends in \\ goes on in the next one, and three quotation marks begin "
    "and end a text of several lines"
)
QUOTES = '"""'  # around a message of several lines
ANSWER_TOKENS = 256  # tokens of the context reserved for an answer, unless --max-tokens is given


class ChatCommand(RecipeCommand):
    """A command whose method is `auto` if none is named."""

    def default_of(self, named: Any) -> str:
        return "auto"


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
    exact: o.Exact = False,
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
    request = generation.request() | {"exact": exact}
    o.leave_cpus(loading.threads)
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
    while (message := read_message()) is not None:
        if message == "/quit":
            return
        if any("\ud800" <= character <= "\udfff" for character in message):
            print_status(f"(this line is not {sys.stdin.encoding} text: it was not sent)")
        elif message.startswith("/"):
            follow(message, conversation, answers)
        elif message and conversation.add_question(message):
            conversation.add_answer(answers.answer(conversation))


def follow(line: str, conversation: Conversation, answers: Answers) -> None:
    """Carry out a line that begins with a slash."""
    command, _, rest = line.partition(" ")
    rest = rest.strip()
    if command == "/continue":
        if conversation.ends_with_answer and answers.was_cut:
            conversation.extend_answer(answers.go_on(conversation))
        else:
            print_status("(there is no cut answer to go on with)")
    elif command == "/reset":
        conversation.reset()
        print_status("(new conversation)")
    elif command == "/system":
        if conversation.set_system(rest):
            print_status("(new conversation)" if rest else "(new conversation without a system message)")
    elif command == "/save" and rest:
        try:
            text = json_text({"messages": conversation.messages}) + "\n"
            Path(rest).expanduser().write_text(text, encoding="utf-8")
            print_status(f"({len(conversation.messages)} messages are in {rest})")
        except OSError as error:
            print_status(f"({rest} cannot be written: {error.strerror})")
    elif command == "/save":
        print_status("(name a file: /save FILE)")
    else:
        print_status(COMMANDS if command == "/help" else f"there is no command {command}: {COMMANDS}")


class Conversation:
    """The messages of a chat; the oldest are dropped so that messages and answer fit into the context."""

    def __init__(self, model: Any, system: str | None, max_tokens: int | None) -> None:
        """`max_tokens`: maximum length of an answer. ValueError for a model without a chat template."""
        self.model, self._max_tokens = model, max_tokens
        self._system = [{"role": "system", "content": system}] if system else []
        self.messages = list(self._system)
        self._count([*self._system, {"role": "user", "content": "hello"}])

    def set_system(self, text: str) -> bool:
        """Begin again with this system message, or none. Returns False, and changes nothing, if the model's
        chat template takes no such message."""
        system = [{"role": "system", "content": text}] if text else []
        try:
            self._count([*system, {"role": "user", "content": "hello"}])
        except ValueError as error:
            print_status(f"({error})")
            return False
        self._system = system
        self.reset()
        return True

    @property
    def ends_with_answer(self) -> bool:
        """Whether the last message is an answer, which can be continued."""
        return bool(self.messages) and self.messages[-1]["role"] == "assistant"

    def extend_answer(self, text: str) -> None:
        """Append to the model's last answer."""
        self.messages[-1]["content"] += text

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


def read_message() -> str | None:
    """The next message of standard input: a line, the lines up to the first that does not end in a backslash,
    or the lines between triple quotes; with surrogates for bytes that are not text. None at its end."""
    line = read_line("> ")
    if line is None:
        return None
    lines = [line.strip()]
    if lines[0].startswith(QUOTES):
        lines[0] = lines[0].removeprefix(QUOTES)
        while not lines[-1].endswith(QUOTES) and (line := read_line(". ")) is not None:
            lines.append(line.rstrip())
        lines[-1] = lines[-1].removesuffix(QUOTES)
    while lines[-1].endswith("\\"):
        lines[-1] = lines[-1].removesuffix("\\")
        if (line := read_line(". ")) is None:
            break
        lines.append(line.rstrip())
    return "\n".join(lines).strip()


def read_line(prompt: str) -> str | None:
    """The next line of standard input, after `prompt` on a terminal; None at its end."""
    try:
        return input(prompt if sys.stdin.isatty() else "")
    except EOFError:
        return None


class Answers:
    """Generates the answers of a conversation. The parts of the method serve all of them, so that a method
    that learns what pays, as `auto` does, learns it once."""

    def __init__(self, used: Any, request: dict[str, Any], *, quiet: bool) -> None:
        """`used`: the recipe; `request`: settings and the method's options, as for `outpace.stream`."""
        self._used, self._request, self._quiet = used, request, quiet
        self._parts: Any = None  # of the method, from the first answer on
        self._cut: list[int] | None = None  # prompt and tokens of the last answer, if it was cut

    @property
    def was_cut(self) -> bool:
        """Whether the last answer can be continued: it ended at max_tokens or by Ctrl-C."""
        return self._cut is not None

    def answer(self, conversation: Conversation) -> str:
        """Print one answer as it is generated and return its text, incomplete after Ctrl-C."""
        return self._print(conversation.model, conversation.messages)

    def go_on(self, conversation: Conversation) -> str:
        """The same for the continuation of the last answer, which was cut."""
        assert self._cut is not None
        limit = conversation.model.max_length
        if limit is not None and len(self._cut) >= limit:
            print_status("(the context is full: /reset starts a new conversation)")
            return ""
        return self._print(conversation.model, self._cut)

    def _print(self, model: Any, prompt: Any) -> str:
        from outpace.api.call import prepare
        from outpace.api.stream import Stream

        call = prepare(model, prompt, self._used, **self._request)
        self._parts = self._parts or call.parts()
        with Stream(call.decode(self._parts)) as pieces:
            try:
                for piece in pieces:
                    typer.echo(piece, nl=False)
                    sys.stdout.flush()
            except KeyboardInterrupt:
                typer.echo("\n(interrupted)", err=True, nl=False)
            typer.echo()
            result = pieces.result
            if not self._quiet:
                print_status(summary(self._used.name, result))
            if result.finish_reason == "length":
                print_status(
                    f"(the answer was cut after {len(result.tokens)} tokens: /continue goes on, and "
                    "--max-tokens allows longer answers)"
                )
            ended = result.finish_reason == "stop"
            self._cut = None if ended else [*call.prompts[0], *result.tokens]
            return result.text
