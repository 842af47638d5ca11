"""`outpace demo`: speculative decoding with the models in the package, offline and in under a minute."""

from __future__ import annotations

import sys
from dataclasses import dataclass, field
from statistics import median
from time import perf_counter
from typing import Annotated, Any

import typer

from outpace.cli.failures import Debug, report_failures
from outpace.cli.options import leave_cpus, load_model
from outpace.cli.output import print_table
from outpace.cli.recipe_options import DRAFT, TARGET

PLAIN = "autoregressive"
METHODS = (PLAIN, "prompt-lookup", "speculative-sampling")
TEXT = (
    "Every morning Mia walks from the bridge to the lamp. We sold the lamp and kept the kettle. "
    "The garden was quiet, but nobody looked at the lamp."
)
QUESTION = f"Replace the word lamp with clock in this text:\n{TEXT}"
PROMPT = [{"role": "user", "content": QUESTION}]
DRAFTED, OWN = "green", "bold yellow"  # styles of accepted draft tokens and of tokens chosen by the target
TIME_LIMIT = 30.0  # approximate upper limit of the measurement, in seconds


@dataclass
class MethodRuns:
    """Speeds in tokens per second of one method's runs, and tokens and acceptance length of its last run."""

    speeds: list[float] = field(default_factory=list[float])
    tokens: list[int] = field(default_factory=list[int])
    acceptance: float = 1.0


@report_failures
def demo(
    target: Annotated[str, typer.Option(help="The target model.")] = TARGET,
    draft: Annotated[str, typer.Option(help="The draft model.")] = DRAFT,
    max_tokens: Annotated[int, typer.Option(min=1, help="Maximum number of new tokens of each run.")] = 96,
    debug: Debug = False,
) -> None:
    """Demonstrate speculative decoding with the models in the package, offline and in under a minute."""
    from rich.console import Console

    from outpace.api.prompts import encode

    leave_cpus(None)
    model, draft_model = load_model(target), load_model(draft)
    # without a chat template the question is given as plain text
    prompt = PROMPT if model.tokenizer.chat_template else QUESTION
    tokens = encode(model.tokenizer, prompt, model.target.vocab)
    console = Console(highlight=False, soft_wrap=True)
    console.print(f"[bold]{target}[/] answers, {draft} drafts (speculative sampling, greedy).\n")
    console.print(QUESTION, style="dim", markup=False)
    console.print()
    seconds = show_answer(console, model, draft_model, tokens, max_tokens)
    # fewer tokens on a slow machine, to respect TIME_LIMIT: plain decoding may be three times slower
    measured_tokens = max(8, min(max_tokens, int(max_tokens * TIME_LIMIT / 12 / seconds)))
    found = measure(model, draft_model, tokens, measured_tokens)
    rows = [table_row(name, model, tokens, found[name], found[PLAIN]) for name in METHODS]
    print_table(("method", "tokens/s", "speedup", "mean acceptance length", "same tokens as plain"), rows)
    console.print(
        "Is the distribution of the output unchanged? All texts of small models, enumerated in float64:"
    )
    for name in METHODS[1:]:
        console.print(f"  {proof(name)}", markup=False)
    console.print("\nNext: outpace list, outpace generate --help, outpace bench --target YOUR_MODEL")


def show_answer(console: Any, model: Any, draft: Any, prompt: list[int], max_tokens: int) -> float:
    """Stream the answer with accepted draft tokens in another color; returns the seconds it took."""
    from rich.text import Text

    from outpace.api import stream
    from outpace.api.detokenizer import Detokenizer

    pieces = stream(model, prompt, "speculative-sampling", draft=draft, temperature=0, max_tokens=max_tokens)
    detokenizer = Detokenizer(model.tokenizer, prompt)
    for piece in pieces.pieces():
        drafted = piece.num_drafted
        for tokens, style in ((piece.tokens[:drafted], DRAFTED), (piece.tokens[drafted:], OWN)):
            detokenizer.push(tokens)
            console.print(Text(detokenizer.piece(), style), end="")
        sys.stdout.flush()
    console.print(Text(detokenizer.finish(), OWN))
    statistics = pieces.result.statistics
    colours = ""
    if console.is_terminal:
        colours = f" ([{DRAFTED}]accepted draft tokens[/], [{OWN}]the target's own tokens[/])"
    console.print(
        f"\n{statistics.num_tokens} tokens in {statistics.num_steps} forward passes of the target: "
        f"{statistics.num_accepted_draft_tokens} of them were drafted{colours}.\n"
    )
    return statistics.seconds


def measure(model: Any, draft: Any, prompt: list[int], max_tokens: int) -> dict[str, MethodRuns]:
    """Measure all methods in up to 3 interleaved rounds: changes of clock speed then affect all equally."""
    from outpace.api import generate

    found = {name: MethodRuns() for name in METHODS}
    began = perf_counter()
    for _ in range(3):
        for name in METHODS:
            options = {"draft": draft} if name == "speculative-sampling" else {}
            (result,) = generate(model, prompt, name, temperature=0, max_tokens=max_tokens, **options)
            found[name].speeds.append(result.statistics.tokens_per_second)
            found[name].acceptance = result.statistics.mean_acceptance_length
            found[name].tokens = result.tokens
        if perf_counter() - began > TIME_LIMIT / 2:
            break
    return found


def table_row(
    name: str, model: Any, prompt: list[int], found: MethodRuns, plain: MethodRuns
) -> tuple[str, ...]:
    """The table row of one method: name, median speed, speedup, acceptance length, agreement with plain."""
    speed, plain_speed = median(found.speeds), median(plain.speeds)
    if name == PLAIN:
        return name, f"{speed:.1f}", "1.00x", "1.00", ""
    text = agreement(model, prompt, found.tokens, plain.tokens)
    return name, f"{speed:.1f}", f"{speed / plain_speed:.2f}x", f"{found.acceptance:.2f}", text


def agreement(model: Any, prompt: list[int], tokens: list[int], plain: list[int]) -> str:
    """Length of the common prefix with plain decoding, and the gap between the two logits where it ends."""
    if tokens == plain:
        return f"{len(plain)} of {len(plain)}"
    import torch

    pairs = enumerate(zip(tokens, plain, strict=False))
    agreed = next((index for index, (one, other) in pairs if one != other), min(len(tokens), len(plain)))
    if agreed >= min(len(tokens), len(plain)):
        return f"{agreed} of {len(plain)}"
    text = torch.tensor([prompt + plain[:agreed]], device=model.target.device)
    with torch.inference_mode():
        logits = model.target.model(text).logits[0, -1].float()
    gap = abs(float(logits[tokens[agreed]] - logits[plain[agreed]]))
    return f"{agreed} of {len(plain)}, then a tie of logits ({gap:.0e} apart)"


def proof(name: str) -> str:
    """One line: whether a method keeps the output distribution of small models, by enumeration."""
    from outpace.proof.models import peaked_tables, tables
    from outpace.proof.suite import QUICK, prove_default
    from outpace.recipes import get

    proofs = [prove_default(get(name), models, QUICK) for models in (tables(), peaked_tables())]
    error, outcomes = max(each.error or 0.0 for each in proofs), sum(each.outcomes for each in proofs)
    verdict = "unchanged" if all(each.holds for each in proofs) else "CHANGED"
    return f"{name}: {verdict} ({outcomes} texts, largest difference of a probability {error:.0e})"
