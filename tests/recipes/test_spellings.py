"""Option names of other tools are explained by names of options that exist."""

from __future__ import annotations

import inspect
import re

from outpace import recipes
from outpace.api.call import prepare
from outpace.api.speculative_config import OPTIONS
from outpace.core.sampling_params import PARAMETERS

OF_METHODS = {option for recipe in recipes.find().values() for option in recipe.options}
OF_REQUESTS = {*inspect.signature(prepare).parameters, *(each.name for each in PARAMETERS)}


def test_an_explanation_begins_with_an_option_that_exists() -> None:
    for given, ours in recipes.SPELLINGS.items():
        name = re.split(r"[ ,:]", ours)[0]
        assert name in OF_METHODS | OF_REQUESTS or name == "outpace.stream", f"{given}: {ours}"


def test_an_explanation_for_vllms_configuration_names_options_of_methods() -> None:
    assert {name for names in OPTIONS.values() for name in names} <= OF_METHODS
