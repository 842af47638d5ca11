"""`outpace demo`: see it work on the models in the package, offline and in under a minute."""

from __future__ import annotations

import sys
from dataclasses import dataclass, field
from statistics import median
from time import perf_counter
from typing import Annotated, Any

import typer

from outpace.cli.failures import Debug, plainly
from outpace.cli.options import load
from outpace.cli.output import print_table
from outpace.cli.recipe_options import DRAFT, TARGET

PLAIN = "autoregressive"
METHODS = (PLAIN, "prompt-lookup", "speculative-sampling")
PROMPT = '''class Stack:
    """A list with the operations of a stack."""

    def __init__(self):
        self.items = []

    def push(self, item):
        """Put an item on top."""
        self.items.append(item)

'''
DRAFTED, OWN = "green", "bold yellow"
PATIENCE = 30.0  # seconds for measuring, on a slow machine


@dataclass
class Measured:
    """What the runs of one method gave."""

    speeds: list[float] = field(default_factory=list[float])
    tokens: list[int] = field(default_factory=list[int])
    acceptance: float = 1.0


@plainly
def demo(
    target: Annotated[str, typer.Option(help="Another model to show it on.")] = TARGET,
    draft: Annotated[str, typer.Option(help="Another draft model.")] = DRAFT,
    max_tokens: Annotated[int, typer.Option(min=1, help="Tokens of each run.")] = 96,
    debug: Debug = False,
) -> None:
    """See it work on the models in the package, offline and in under a minute."""
    models: dict[str, Any] = {"draft": draft}
    model = load(target, models)
    small = models["draft"]
    typer.echo(f"{target} writes, {draft} drafts (speculative sampling, greedy).")
    seconds = show(model, small, max_tokens)
    # plain decoding may take three times as long: on a slow machine fewer tokens are measured
    found = measure(model, small, max(8, min(max_tokens, int(max_tokens * PATIENCE / 12 / seconds))))
    rows = [row(name, model, found[name], found[PLAIN]) for name in METHODS]
    print_table(("method", "tokens/s", "speedup", "mean acceptance length", "tokens as plain"), rows)
    typer.echo(
        "\nIs the distribution of the output unchanged? Enumerating every text of a small model, in float64:"
    )
    for name in METHODS[1:]:
        typer.echo(f"  {proof(name)}")
    typer.echo("\nNext: outpace list, outpace generate --help, outpace bench --target YOUR_MODEL")


def show(model: Any, draft: Any, max_tokens: int) -> float:
    """Write a text, with what was drafted in one colour and the target's own tokens in another; how long it took."""
    from rich.console import Console
    from rich.text import Text

    from outpace.api import stream
    from outpace.api.text import Writer

    console = Console(highlight=False, soft_wrap=True)
    if console.is_terminal:
        console.print(Text("accepted drafts", DRAFTED), Text("the target's own tokens", OWN), sep=", ")
    typer.echo(f"\n{PROMPT}", nl=False)
    pieces = stream(model, PROMPT, draft=draft, temperature=0, max_tokens=max_tokens, ignore_eos=True)
    writer = Writer(model.tokenizer, model.tokenizer(PROMPT)["input_ids"])
    for piece in pieces.pieces():
        parts = ((piece.tokens[: piece.num_drafted], DRAFTED), (piece.tokens[piece.num_drafted :], OWN))
        for tokens, style in parts:
            writer.push(tokens)
            console.print(Text(writer.piece(), style), end="")
        sys.stdout.flush()
    console.print(Text(writer.finish(), OWN))
    typer.echo()
    return pieces.result.statistics.seconds


def measure(model: Any, draft: Any, max_tokens: int) -> dict[str, Measured]:
    """Every method in turn, again and again, so that a change of the machine's mood hits all alike."""
    from outpace.api import generate

    found = {name: Measured() for name in METHODS}
    began = perf_counter()
    for _ in range(3):
        for name in METHODS:
            options = {"draft": draft} if name == "speculative-sampling" else {}
            result = generate(
                model, PROMPT, name, temperature=0, max_tokens=max_tokens, ignore_eos=True, **options
            )[0]
            found[name].speeds.append(result.statistics.tokens_per_second)
            found[name].tokens, found[name].acceptance = (
                result.tokens,
                result.statistics.mean_acceptance_length,
            )
        if perf_counter() - began > PATIENCE / 2:
            break
    return found


def row(name: str, model: Any, found: Measured, plain: Measured) -> tuple[str, ...]:
    """One line of the table."""
    speed, usual = median(found.speeds), median(plain.speeds)
    if name == PLAIN:
        return name, f"{speed:.1f}", "1.00x", "1.00", ""
    text = same(model, found.tokens, plain.tokens)
    return name, f"{speed:.1f}", f"{speed / usual:.2f}x", f"{found.acceptance:.2f}", text


def same(model: Any, tokens: list[int], plain: list[int]) -> str:
    """How far the greedy text is that of plain decoding; where it parts, how close the two tokens were."""
    if tokens == plain:
        return f"{len(plain)} of {len(plain)}"
    import torch

    agreed = next(index for index, pair in enumerate(zip(tokens, plain, strict=True)) if pair[0] != pair[1])
    read = torch.tensor([model.tokenizer(PROMPT)["input_ids"] + plain[:agreed]], device=model.target.device)
    with torch.inference_mode():
        logits = model.target.model(read).logits[0, -1].float()
    gap = abs(float(logits[tokens[agreed]] - logits[plain[agreed]]))
    return f"{agreed} of {len(plain)}, then logits {gap:.0e} apart"


def proof(name: str) -> str:
    """What the enumeration of a method's output found."""
    from outpace.proof.models import peaked_tables, tables
    from outpace.proof.suite import QUICK, prove_default
    from outpace.recipes import get

    proofs = [prove_default(get(name), models, QUICK) for models in (tables(), peaked_tables())]
    error, outcomes = max(each.error or 0.0 for each in proofs), sum(each.outcomes for each in proofs)
    verdict = "unchanged" if all(each.holds for each in proofs) else "CHANGED"
    return f"{name}: {verdict} ({outcomes} texts, largest difference of a probability {error:.0e})"
