"""Renders pages whose templates extend `page.html`: the conclusion first, one chart, a table, then everything
else, folded. They load no other files, and are readable on a phone, in the dark and on paper."""

from __future__ import annotations

from functools import cache
from typing import Any

from jinja2 import ChoiceLoader, Environment, PackageLoader


@cache
def _environment(package: str) -> Environment:
    loader = ChoiceLoader([PackageLoader(package), PackageLoader("outpace.page")])
    return Environment(loader=loader, autoescape=True, trim_blocks=True, lstrip_blocks=True)


def render(package: str, template: str, **values: Any) -> str:
    """The page of a template in the folder `templates` of this package."""
    return _environment(package).get_template(template).render(**values)
