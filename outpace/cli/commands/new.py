"""`outpace new`: writes a template of a recipe file and a test of it that passes unchanged."""

from __future__ import annotations

import keyword
from pathlib import Path
from typing import Annotated

import typer

from outpace.cli.failures import Debug, report_failures
from outpace.recipes import identifier, names

RECIPE = '''"""{title} (Name Year): draft the tokens that followed the previous occurrence of the last token.

New here: LastOccurrence. Reuses: Match, Fixed. Exact at any temperature: its tokens carry no claim.
"""

from collections.abc import Sequence

import torch
from outpace.controllers.fixed import Fixed
from outpace.core.contracts import Context, Draft, Parts, Plan, Step, Target, Want, recipe
from outpace.core.tree import Forest, TokenTree
from outpace.verifiers.match import Match


class LastOccurrence:
    """A drafter: in every row, a chain of the tokens after the last token's previous occurrence."""

    want = Want()  # outputs of the target that it needs besides logits: none
    claims = ()  # its tokens are chosen, not sampled from a distribution
    learns_across_rows = drafts_across_rows = False  # a row's draft depends on that row alone

    def propose(self, ctx: Context, plan: Plan) -> Draft:
        pairs = zip(ctx.tokens, plan.depth, strict=True)
        chains = [continuation(row.tolist(), depth) for row, depth in pairs]
        tokens = [token for chain in chains for token in chain]
        forest = Forest.chain(tuple(map(len, chains)))
        return Draft(TokenTree(torch.cat([ctx.roots, torch.tensor(tokens, dtype=torch.int64)]), forest))

    def observe(self, step: Step) -> None:
        """Called after every step with the accepted tokens; does nothing: there is no state."""

    def release(self, slots: Sequence[int]) -> None:
        """Called when requests end; does nothing: there is no state."""


def continuation(tokens: list[int], depth: int) -> list[int]:
    """At most `depth` tokens after the previous occurrence of the last token."""
    for start in range(len(tokens) - 1, 0, -1):
        if tokens[start - 1] == tokens[-1]:
            return tokens[start : start + depth]
    return []


@recipe(paper="arXiv number or URL", family="training-free")
def {function}(target: Target, *, depth: int = 4) -> Parts:
    """Tokens after the previous occurrence of the last token, verified by matching.

    Args:
        depth: maximum number of draft tokens per step
    """
    return Parts(target, LastOccurrence(), Match(), Fixed(depth))
'''

TEST = '''"""{function}.py keeps the distribution of plain decoding and needs fewer forward passes."""

from pathlib import Path

import outpace
import torch
from outpace.proof.models import peaked_tables
from outpace.proof.suite import prove_default
from outpace.recipes import from_file
from transformers import LlamaConfig, LlamaForCausalLM

RECIPE = Path(__file__).parent / "{function}.py"
PROMPTS = [[1, 2, 3, 1, 2], [4, 4, 4]]


def model() -> LlamaForCausalLM:
    torch.manual_seed(0)
    size = {{"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2}}
    return LlamaForCausalLM(LlamaConfig(vocab_size=8, **size)).double().eval()


def test_the_output_has_the_targets_distribution():
    assert prove_default(from_file(RECIPE), peaked_tables()).verdict == "exact"


def test_the_tokens_are_those_of_plain_decoding_at_any_temperature():
    target = model()
    for temperature in (0, 1):
        options = {{"max_tokens": 40, "temperature": temperature, "seed": 1, "ignore_eos": True}}
        plain = outpace.generate(target, PROMPTS, "autoregressive", **options)
        drafted = outpace.generate(target, PROMPTS, RECIPE, **options)
        assert [result.tokens for result in drafted] == [result.tokens for result in plain]


def test_drafts_are_accepted():
    result = outpace.generate(model(), PROMPTS[0], RECIPE, max_tokens=40, temperature=0, ignore_eos=True)[0]
    assert result.statistics.num_accepted_draft_tokens > 0
'''


@report_failures
def new(
    name: Annotated[str, typer.Argument(help="The method's name, such as my-method.")],
    force: Annotated[bool, typer.Option("--force", help="Overwrite existing files.")] = False,
    debug: Debug = False,
) -> None:
    """Write a template of a recipe and its test into this folder."""
    function = identifier(name).replace("-", "_")
    if not function.isidentifier() or keyword.iskeyword(function) or not function.isascii():
        raise ValueError(
            f"{name!r} cannot be a method's name: use letters, digits and dashes, as in my-method"
        )
    if identifier(name) in names():
        raise ValueError(
            f"{identifier(name)} is a method of the package (outpace show {identifier(name)}): choose another"
        )
    files = {
        Path(f"{function}.py"): RECIPE,
        Path(f"test_{function}.py"): TEST,
    }
    if there := [str(path) for path in files if path.exists() and not force]:
        raise ValueError(f"{' and '.join(there)} already exist: choose another name, or pass --force")
    for path, text in files.items():
        path.write_text(
            text.format(function=function, title=function.replace("_", " ").capitalize()), encoding="utf-8"
        )
    typer.echo(f"wrote {function}.py and test_{function}.py; try them:")
    typer.echo(f"  pytest test_{function}.py")
    typer.echo(f'  outpace generate --recipe {function}.py "def add(a, b):"')
