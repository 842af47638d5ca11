"""Which variants of a parametrized test `make test` runs; `make test-slow` runs the others."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Any

import pytest
from _pytest.mark import ParameterSet


def slow(*values: Any, id: str | None = None) -> ParameterSet:
    """One variant that `make test` leaves out."""
    return pytest.param(*values, id=id, marks=pytest.mark.slow)


def only(quick: Collection[Any], variants: Iterable[Any]) -> list[Any]:
    """The variants, each either in `quick` or marked slow. A tuple is one variant of several arguments.

    Raises ValueError if one of `quick` is not among the variants: it would be run by nothing.
    """
    given = list(variants)
    if missing := [each for each in quick if each not in given]:
        raise ValueError(f"no such variants: {missing}")
    return [
        each if each in quick else slow(*each) if isinstance(each, tuple) else slow(each) for each in given
    ]


# one method of each family, whose variants `make test` runs of tests that are the same for every method
OF_FAMILIES = (
    "auto",
    "eagle2",
    "layerskip",
    "medusa-typical",
    "online-sd",
    "pearl",
    "polybasic",
    "smartspec",
    "specdiff",
    "speculative-sampling",
    "suffix-decoding",
    "tli",
    "traversal",
)


def of_families(names: Iterable[str]) -> list[Any]:
    """The methods, of which those that stand for a family are not marked slow."""
    given = list(names)
    return only([name for name in OF_FAMILIES if name in given], given)


# methods with the parts of another one, which differ from it in the network, its training or a search
# in tokens alone: tests of parts on whole models and proofs with every option run for the other one, proofs
# with the default options and tests of the heads for all
PARTS_OF = {
    "aurora": "eagle3",
    "coral": "eagle2",
    "dart": "ddtree",
    "deer": "specdiff",
    "diffuspec": "specdiff",
    "dovetail": "eagle2",
    "dspark": "dflash",
    "dultra": "specdiff",
    "fspad": "eagle2",
    "gto": "eagle3",
    "gumiho": "jakiro",
    "hass": "eagle",
    "mtp": "eagle2",
    "online-sd": "speculative-sampling",
    "p-eagle": "parallelspec",
    "redrafter": "mlp-speculator",
    "s4c": "hydra",
    "stree": "specinfer",
}


# what is new in these methods is a verification rule, a controller or a search in tokens, which meet no
# model: their proofs on tables say all; on models the same drafters and targets are proven with other methods
WITHOUT_MODELS = {
    *("block-verification", "mcsd", "optimal-mdsd", "rsd-c", "rsd-s", "specdiff2", "spectr-kseq"),
    *("disco", "exp3-spec", "latency-aware-tts", "specdec-pp", "ucb-spec"),
    *("aded", "multi-sample", "prompt-lookup", "rest", "sam-decoding", "syntax-aligned-medusa"),
}


def with_parts_of_their_own(names: Iterable[str]) -> list[str]:
    """The methods that are not in `PARTS_OF`."""
    return [name for name in names if name not in PARTS_OF]
