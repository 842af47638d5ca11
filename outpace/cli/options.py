"""Options that several verbs share."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import wraps
from inspect import Parameter, signature
from pathlib import Path
from typing import Annotated, Any

import typer

Target = Annotated[
    str,
    typer.Option(
        "--target", "-t", help="The model: zoo:target, a folder, or a name on the Hugging Face Hub."
    ),
]
Method = Annotated[
    str | None,
    typer.Option("--method", "-m", help="A method of `outpace list`, or @file with what bench recommends."),
]
RecipeFile = Annotated[str | None, typer.Option("--recipe", help="A recipe file of your own.")]
Config = Annotated[
    str | None, typer.Option("--speculative-config", help="vLLM's JSON, in place of --method.")
]
Dtype = Annotated[str, typer.Option(help="auto, float32, bfloat16, float16 or float64.")]
Device = Annotated[str | None, typer.Option(help="Where the target runs, such as cpu or cuda:0.")]
Revision = Annotated[str | None, typer.Option(help="Branch, tag or commit of the model on the hub.")]
Trust = Annotated[bool, typer.Option("--trust-remote-code", help="Run code that comes with the model.")]
Threads = Annotated[int | None, typer.Option(help="CPU threads.")]
Compile = Annotated[
    bool,
    typer.Option(
        "--compile", help="Run the models through OpenVINO: seconds at the start, then faster on a CPU."
    ),
]
MaxTokens = Annotated[int | None, typer.Option(help="Most new tokens; default: what the model says, or 256.")]
Temperature = Annotated[
    float | None, typer.Option(help="0 is greedy; default: what the model says, or greedy.")
]
TopK = Annotated[int | None, typer.Option(help="Sample from so many likeliest tokens; 0: all.")]
TopP = Annotated[
    float | None, typer.Option(help="Sample from the likeliest tokens that hold this much of the mass.")
]
MinP = Annotated[
    float | None, typer.Option(help="Drop tokens below this share of the likeliest one's probability.")
]
TypicalP = Annotated[
    float | None, typer.Option(help="Sample from tokens of typical information with this mass.")
]
RepetitionPenalty = Annotated[
    float | None, typer.Option(help="Over 1: tokens of prompt and text become less likely; 1: off.")
]
PresencePenalty = Annotated[
    float, typer.Option(help="Taken from the logit of every token of the new text, -2 to 2.")
]
FrequencyPenalty = Annotated[float, typer.Option(help="The same, once for each time it stands there.")]
LogitBias = Annotated[
    list[str] | None, typer.Option(help="TOKEN=BIAS: added to the logit of this token id; may be repeated.")
]
BadWords = Annotated[
    list[str] | None, typer.Option("--bad-word", help="A word not to be written; may be repeated.")
]
Grammar = Annotated[Path | None, typer.Option(help="A file with the EBNF grammar of the text.")]
JsonSchema = Annotated[
    Path | None, typer.Option(help="A file with a JSON schema: the text is JSON of this kind.")
]
MinTokens = Annotated[int | None, typer.Option(help="No end of text before so many tokens.")]
Prediction = Annotated[
    Path | None, typer.Option(help="A file with what the answer probably is, such as the text to be edited.")
]
Stop = Annotated[list[str] | None, typer.Option(help="End the text before this string; may be repeated.")]
Seed = Annotated[int | None, typer.Option(help="Makes sampling repeatable; default: drawn, and printed.")]
Defaults = Annotated[bool, typer.Option(help="Apply the model's own generation_config.json.")]
Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]
WITHOUT_A_MODEL = (  # can be checked; the rest needs its vocabulary
    "max_tokens",
    "temperature",
    "top_k",
    "top_p",
    "min_p",
    "typical_p",
    "repetition_penalty",
    "presence_penalty",
    "frequency_penalty",
    "logit_bias",
    "min_tokens",
    "stop",
)


@dataclass
class Writing:
    """The options that say what is written: a verb takes them all with one parameter, see `grouped`."""

    max_tokens: MaxTokens = None
    temperature: Temperature = None
    top_k: TopK = None
    top_p: TopP = None
    min_p: MinP = None
    typical_p: TypicalP = None
    repetition_penalty: RepetitionPenalty = None
    presence_penalty: PresencePenalty = 0.0
    frequency_penalty: FrequencyPenalty = 0.0
    logit_bias: LogitBias = None
    bad_word: BadWords = None
    min_tokens: MinTokens = None
    grammar: Grammar = None
    json_schema: JsonSchema = None
    prediction: Prediction = None
    stop: Stop = None
    seed: Seed = None
    defaults: Defaults = True

    def request(self) -> dict[str, Any]:
        """The same as `outpace.generate` takes it; raises for impossible numbers, before a model is loaded."""
        from outpace.api.settings import settle

        found = dict(vars(self), logit_bias=biases(self.logit_bias), bad_words=self.bad_word)
        del found["bad_word"]
        found |= {name: contents(found[name]) for name in ("grammar", "json_schema", "prediction")}
        settle(None, None, **{name: found[name] for name in WITHOUT_A_MODEL})
        return found


@dataclass
class Loading:
    """The options that say how a model is loaded."""

    dtype: Dtype = "auto"
    device: Device = None
    revision: Revision = None
    trust_remote_code: Trust = False
    threads: Threads = None
    compile: Compile = False

    def load(self, target: str, options: dict[str, Any]) -> Any:
        """The target, and in `options` the recipe's other models."""
        return load(target, options, **vars(self))


def grouped(verb: Callable[..., None]) -> Callable[..., None]:
    """Give a verb the options of its parameter annotated `Writing` or `Loading`, in the parameter's place."""
    own = signature(verb, eval_str=True)
    groups = {
        name: each.annotation
        for name, each in own.parameters.items()
        if each.annotation in (Writing, Loading)
    }
    listed: list[Parameter] = []
    for name, each in own.parameters.items():
        listed += signature(groups[name], eval_str=True).parameters.values() if name in groups else [each]

    @wraps(verb)
    def called(**given: Any) -> None:
        for name, group in groups.items():
            given[name] = group(**{option: given.pop(option) for option in signature(group).parameters})
        verb(**given)

    shown = own.replace(parameters=[each.replace(kind=Parameter.KEYWORD_ONLY) for each in listed])
    vars(called)["__signature__"] = shown  # what typer reads
    called.__annotations__ = {each.name: each.annotation for each in listed}
    return called


def biases(given: list[str] | None) -> dict[str, float]:
    """Token -> bias, from arguments such as 42=-5."""
    pairs = [each.partition("=") for each in given or ()]
    try:
        return {str(int(token)): float(bias) for token, _, bias in pairs}
    except ValueError as error:
        raise ValueError(
            f"--logit-bias takes TOKEN=BIAS, as in 42=-5, not {' '.join(given or ())}"
        ) from error


def contents(path: Path | None) -> str | None:
    """The text of a file, or one sentence about why it cannot be had."""
    try:
        return None if path is None else path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ValueError(f"{path} cannot be read: {getattr(error, 'strerror', None) or error}") from error


def load(target: str, options: dict[str, Any], **how: Any) -> Any:
    """The target, loaded quietly, and the recipe's other models loaded in the same way."""
    from transformers.utils import logging

    from outpace.api import load as load_model

    logging.disable_progress_bar()
    model = load_model(target, **how)
    shared = {
        name: value
        for name, value in how.items()
        if name in ("dtype", "device", "trust_remote_code", "compile")
    }
    if isinstance(draft := options.get("draft"), str):
        options["draft"] = load_model(draft, **shared)
    if isinstance(drafts := options.get("drafts"), str):
        options["drafts"] = tuple(load_model(draft, **shared) for draft in drafts.split(","))
    return model
