"""`python -m benchmarks.audit_power`: writes docs/results/audit.md.

Servers are simulated without HTTP, on distributions recorded along texts of zoo:target. Correct servers are
tested without an allowance for rounding, biased ones with that of bfloat16, which costs power.
"""

from __future__ import annotations

from math import log
from pathlib import Path
from typing import Annotated, Protocol

import torch
import typer
from scipy.stats import beta

from benchmarks.audit_power.servers import BIASES, Bias, Recorded, answer, record
from outpace.audit.mixture_test import MixtureTest
from outpace.audit.pair_test import PairTest
from outpace.audit.prompts import PROMPTS
from outpace.audit.run import TESTS
from outpace.audit.setting import ROUNDING
from outpace.bench.measure.provenance import commit
from outpace.console import progress
from outpace.tables import Table, markdown

TARGET, NUM_TOKENS, SAMPLES = "zoo:target", 64, 6
BUDGET, CORRECT_BUDGET = 20_000, 5_000  # tokens of a biased server, and of a correct one
SHIFT, PAIR_SHIFT = 0.05, 0.2  # total variation distance of the biased distributions
ALPHA = 0.05  # of the correct servers
SHARE = 0.01 / TESTS  # of one test in an audit


class Test(Protocol):
    """A sequential test."""

    num_tokens: int
    log_evidence: float


def simulate(
    recorded: Recorded, bias: Bias | None, level: float, seed: int, *, pairs: bool, tolerance: float
) -> int | None:
    """The number of tokens after which a simulated server fails; None if it passes within the budget."""
    generator = torch.Generator().manual_seed(seed)
    directions = torch.randint(2, (recorded.vocab + 1,), generator=generator).double() * 2 - 1
    directions[-1] = 0
    test = PairTest() if pairs else MixtureTest(recorded.vocab, tolerance=tolerance, seed=seed)
    shift = PAIR_SHIFT if pairs else SHIFT
    while test.num_tokens < (BUDGET if bias else CORRECT_BUDGET) and test.log_evidence < log(1 / level):
        text = answer(recorded, bias, directions, shift, generator)
        if isinstance(test, MixtureTest):
            test.observe(text)
        else:
            other = answer(recorded, None, directions, shift, generator)
            test.observe(0, list(map(str, text.text)), list(map(str, other.text)))
    return test.num_tokens if test.log_evidence >= log(1 / level) else None


def bounds(found: int, of: int) -> tuple[float, float]:
    """The 95 % interval of a share (Clopper and Pearson)."""
    low = 0.0 if not found else float(beta.ppf(0.025, found, of - found + 1))
    return low, 1.0 if found == of else float(beta.ppf(0.975, found + 1, of - found))


def row(name: str, found: list[int | None]) -> tuple[str, ...]:
    """A line of a table."""
    failed = sorted(each for each in found if each is not None)
    low, high = bounds(len(failed), len(found))
    return (
        name,
        str(len(found)),
        f"{len(failed) / len(found):.3f}",
        f"{low:.3f} to {high:.3f}",
        str(failed[len(failed) // 2]) if failed else "-",
        str(failed[int(0.95 * len(found)) - 1]) if len(failed) >= 0.95 * len(found) else "-",
    )


def main(
    servers: Annotated[int, typer.Option(help="Correct servers.")] = 1000,
    biased: Annotated[int, typer.Option(help="Servers of each bias.")] = 100,
    output: Annotated[Path, typer.Option(help="The page.")] = Path("docs/results/audit.md"),
) -> None:
    """False alarms and power of the tests of `outpace audit --endpoint`, on simulated servers."""
    revision = commit()
    recorded = record(TARGET, list(PROMPTS), NUM_TOKENS, SAMPLES)
    rounding = ROUNDING["bfloat16"].ratio
    columns = ("server", "servers", "failed", "95 %", "tokens (median)", "tokens (95 % of them)")
    tables: dict[bool, list[tuple[str, ...]]] = {False: [], True: []}
    jobs = [(pairs, name) for pairs in tables for name in (None, *BIASES)]
    with progress(sum(biased if name else servers for _, name in jobs), "servers") as advance:
        for pairs, name in jobs:
            found = list[int | None]()
            for seed in range(biased if name else servers):
                level, tolerance = (SHARE, rounding) if name else (ALPHA, 0.0)
                bias = BIASES[name] if name else None
                found.append(simulate(recorded, bias, level, seed, pairs=pairs, tolerance=tolerance))
                advance(f"{'pairs' if pairs else 'distributions'}, {name or 'correct'}", 1)
            said = (BIASES[name].__doc__ or "").split(".")[0] if name else "correct"
            tables[pairs].append(row(said, found))
    command = f"python -m benchmarks.audit_power --servers {servers} --biased {biased}"
    page = [
        "# The audit of servers: false alarms and power",
        "",
        f"Simulated servers that draw texts of {NUM_TOKENS} tokens from distributions recorded along "
        f"{len(recorded.probs)} texts of `{TARGET}` at temperature 1. Correct ones are tested at a "
        f"false-alarm rate of {ALPHA:g}, without an allowance for rounding, on {CORRECT_BUDGET:,} tokens. Of "
        f"the others every distribution is at a total variation distance of {SHIFT:g} ({PAIR_SHIFT:g} where "
        f"only texts are known), or less where the bias cannot reach it. They draw up to {BUDGET:,} tokens, "
        f"and the test is that of an audit with default options: a false-alarm rate of {SHARE:g}, and the "
        "allowance for bfloat16. The last columns say after how many tokens they failed. What the tests are: "
        "[Audit a server](../audit.md).",
        "",
        f"Commit {revision}: `{command}`.",
        "",
        markdown(Table("Distributions of tokens known", columns, tuple(tables[False])), 2),
        "",
        markdown(Table("Only texts of both servers known", columns, tuple(tables[True])), 2),
    ]
    output.write_text("\n".join(page) + "\n", encoding="utf-8")


if __name__ == "__main__":
    typer.run(main)
