"""Checks expressions of PromQL, Prometheus' query language, against the metrics that a server has.

Not a grammar: it finds the metrics, their labels and the functions, and brackets that do not match.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

TOKEN = re.compile(
    r"""(?P<string>"(?:[^"\\]|\\.)*")|(?P<range>\[[^\[\](){}]+\])|(?P<number>\d+(?:\.\d+)?)"""
    r"""|(?P<name>[A-Za-z_:][\w:]*)|(?P<mark>=~|!~|!=|==|>=|<=|[-+*/=<>(){},])"""
)
FUNCTIONS = {"sum", "rate", "histogram_quantile"}  # those that the dashboard uses
LABEL_LISTS = {"by", "without", "on", "ignoring", "group_left", "group_right"}
ADDED = {"instance", "job"}  # labels that Prometheus adds to every metric that it scrapes


@dataclass
class Found:
    """What an expression names."""

    metrics: list[tuple[str, set[str]]] = field(default_factory=list)  # each with the labels in its braces
    functions: set[str] = field(default_factory=set)
    labels: set[str] = field(default_factory=set)  # by which results are grouped


def parse(expression: str) -> Found:
    """The names in an expression. ValueError for text that is no token and brackets that do not match."""
    tokens = _tokens(expression)
    _match_brackets(tokens, expression)
    found = Found()
    at = 0
    while at < len(tokens):
        kind, text = tokens[at]
        following = tokens[at + 1][1] if at + 1 < len(tokens) else ""
        at += 1
        if kind != "name":
            continue
        if text in LABEL_LISTS:
            end = at + [each for _, each in tokens[at:]].index(")")
            found.labels |= {each for kind, each in tokens[at:end] if kind == "name"}
            at = end
        elif following == "(" or following in LABEL_LISTS:
            found.functions.add(text)
        elif following == "{":
            end = at + [each for _, each in tokens[at:]].index("}")
            found.metrics.append((text, {each for kind, each in tokens[at:end] if kind == "name"}))
            at = end
        else:
            found.metrics.append((text, set()))
    return found


def problems(expression: str, exposed: Mapping[str, set[str]]) -> list[str]:
    """What is wrong with an expression, a sentence each. `exposed`: the labels of each of the server's
    metrics."""
    try:
        found = parse(expression)
    except ValueError as error:
        return [str(error)]
    wrong = [f"no function is called {name}" for name in sorted(found.functions - FUNCTIONS)]
    grouping = set(ADDED)
    for name, labels in found.metrics:
        if name not in exposed:
            wrong.append(f"the server has no metric {name}")
            continue
        grouping |= exposed[name]
        wrong += [f"{name} has no label {label}" for label in sorted(labels - exposed[name] - ADDED)]
    if not found.metrics:
        wrong.append(f"it names no metric: {expression}")
    return wrong + [f"no metric has the label {label}" for label in sorted(found.labels - grouping)]


def _tokens(expression: str) -> list[tuple[str, str]]:
    """Kinds and texts of the tokens."""
    found: list[tuple[str, str]] = []
    rest = expression.strip()
    while rest:
        match = TOKEN.match(rest)
        if match is None or match.lastgroup is None:
            raise ValueError(f"this is no PromQL: {rest}")
        found.append((match.lastgroup, match[0]))
        rest = rest[match.end() :].lstrip()
    return found


def _match_brackets(tokens: list[tuple[str, str]], expression: str) -> None:
    closing = {"(": ")", "{": "}"}
    expected: list[str] = []
    for kind, text in tokens:
        if kind == "mark" and text in closing:
            expected.append(closing[text])
        elif kind == "mark" and text in closing.values() and (not expected or expected.pop() != text):
            raise ValueError(f"a bracket closes that was not opened: {expression}")
    if expected:
        raise ValueError(f"a bracket is not closed: {expression}")
