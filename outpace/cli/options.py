"""Options that several subcommands share.

A subcommand takes a whole group of options with one parameter annotated `GenerationOptions` or
`LoadingOptions`; see `with_groups`.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, fields
from functools import wraps
from inspect import Parameter, signature
from pathlib import Path
from typing import Annotated, Any

import typer

from outpace.cli.output import print_status
from outpace.console import progress
from outpace.core.sampling_params import PARAMETERS, SamplingParams
from outpace.models.threads import fitting_threads, load, num_cpus

Target = Annotated[
    str,
    typer.Option("--target", "-t", help="Model: zoo:target, a folder, or a name on the Hugging Face Hub."),
]
Method = Annotated[
    str | None,
    typer.Option(
        "--method",
        "-m",
        help="A method of `outpace list`, or @FILE with what bench recommends; default: speculative-sampling "
        "with a draft, else prompt-lookup.",
    ),
]
RecipeFile = Annotated[Path | None, typer.Option("--recipe", help="A recipe file of your own.")]
SpeculativeConfig = Annotated[
    str | None, typer.Option("--speculative-config", help="vLLM's JSON configuration, in place of --method.")
]
Dtype = Annotated[str, typer.Option(help="auto, float32, bfloat16, float16 or float64.")]
Device = Annotated[
    str | None,
    typer.Option(help="Device, as cpu or cuda:0; default: a CUDA GPU, else the CPU."),
]
Revision = Annotated[str | None, typer.Option(help="Branch, tag or commit of the target on the hub.")]
Trust = Annotated[
    bool, typer.Option("--trust-remote-code", help="Run Python code that comes with the model.")
]
AllowPickle = Annotated[
    bool, typer.Option("--allow-pickle", help="Accept pickled weights; loading them can run code.")
]
Threads = Annotated[int | None, typer.Option(help="CPU threads.")]
Compile = Annotated[
    bool, typer.Option("--compile", help="Compile the models: seconds at the start, then faster steps.")
]
Weights = Annotated[
    str | None, typer.Option(help="int8 or int4: smaller and less exact weights, of compiled models.")
]
DraftWeights = Annotated[str | None, typer.Option(help="The same for draft models and draft heads.")]
KvCache = Annotated[
    str | None,
    typer.Option(help="int8: a smaller, less exact KV cache of a compiled target."),
]
Exact = Annotated[
    bool, typer.Option("--exact", help="Refuse a LOSSY method, which changes the output's distribution.")
]
Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="Print no statistics and no progress.")]

# numeric sampling parameters but the seed, whose option is declared by hand: each becomes an option
NUMBERS = tuple(
    each for each in PARAMETERS if isinstance(each.default, int | float) and each.argument is not None
)


def _help_of(parameter: Any, default: str) -> str:
    return f"{parameter.help.rstrip('.')}; default: {default}."


HELP = {each.name: _help_of(each, f"{each.default:g}") for each in NUMBERS}
TopK = Annotated[int | None, typer.Option(help=HELP["top_k"])]
TopP = Annotated[float | None, typer.Option(help=HELP["top_p"])]
MinP = Annotated[float | None, typer.Option(help=HELP["min_p"])]
RepetitionPenalty = Annotated[float | None, typer.Option(help=HELP["repetition_penalty"])]


@dataclass
class GenerationOptions:
    """Option group for sampling, stopping and grammars; `numbers`: the options made from NUMBERS, by name."""

    numbers: dict[str, Any]
    logit_bias: Annotated[
        list[str] | None,
        typer.Option(help="TOKEN=BIAS: added to the logit of this token id; may be repeated."),
    ] = None
    bad_word: Annotated[
        list[str] | None, typer.Option(help="A word that must not be generated; may be repeated.")
    ] = None
    grammar: Annotated[
        Path | None, typer.Option(help="A file with an EBNF grammar that the text follows.")
    ] = None
    json_schema: Annotated[
        Path | None, typer.Option(help="A file with a JSON schema that the text follows.")
    ] = None
    prediction: Annotated[
        Path | None,
        typer.Option(help="A file with the probable answer, such as a text to be edited: drafted first."),
    ] = None
    stop: Annotated[
        list[str] | None, typer.Option(help="End the text before this string; may be repeated.")
    ] = None
    seed: Annotated[
        int | None,
        typer.Option(help="Makes sampling repeatable if the method measures no times; default: random."),
    ] = None
    defaults: Annotated[
        bool, typer.Option(help="Apply the sampling settings of the model's generation_config.json.")
    ] = True

    @staticmethod
    def parameters() -> list[Parameter]:
        """The options of the group as parameters of a subcommand's function."""
        numbers = [
            Parameter(
                each.name,
                Parameter.KEYWORD_ONLY,
                default=None,
                annotation=Annotated[
                    type(each.default) | None,
                    typer.Option(help=_help_of(each, f"the model's, or {each.default:g}")),
                ],
            )
            for each in NUMBERS
        ]
        return numbers + list(signature(GenerationOptions, eval_str=True).parameters.values())[1:]

    @staticmethod
    def take(given: dict[str, Any]) -> GenerationOptions:
        """Remove the group's options from a subcommand's arguments `given` and return them as a group.
        ValueError for a number outside of its range: before the imports that take seconds."""
        numbers = {each.name: given.pop(each.name) for each in NUMBERS}
        SamplingParams(**{name: value for name, value in numbers.items() if value is not None})
        return GenerationOptions(numbers, **_taken(GenerationOptions, given))

    def request(self) -> dict[str, Any]:
        """Keyword arguments for `outpace.generate`; ValueError for invalid values or unreadable files."""
        from outpace.api.settings import resolve_settings

        found = {
            **self.numbers,
            "logit_bias": logit_biases(self.logit_bias),
            "bad_words": self.bad_word,
            "grammar": read_text(self.grammar),
            "json_schema": read_text(self.json_schema),
            "prediction": read_text(self.prediction),
            "stop": self.stop,
            "seed": self.seed,
            "defaults": self.defaults,
        }
        resolve_settings(self.numbers | {"logit_bias": found["logit_bias"]}, stop=self.stop)
        return found


@dataclass
class LoadingOptions:
    """Option group for loading models: keyword arguments of `outpace.load`."""

    dtype: Dtype = "auto"
    device: Device = None
    revision: Revision = None
    trust_remote_code: Trust = False
    allow_pickle: AllowPickle = False
    threads: Threads = None
    compile: Compile = False
    weights: Weights = None
    draft_weights: DraftWeights = None
    kv_cache: KvCache = None

    @staticmethod
    def parameters() -> list[Parameter]:
        """The options of the group as parameters of a subcommand's function."""
        return list(signature(LoadingOptions, eval_str=True).parameters.values())

    @staticmethod
    def take(given: dict[str, Any]) -> LoadingOptions:
        """Remove the group's options from a subcommand's arguments `given` and return them as a group."""
        return LoadingOptions(**_taken(LoadingOptions, given))

    def load(self, target: str) -> Any:
        """Load the target as an `outpace.Model`, whose drafts given by name use the same options. It is
        compiled where one of them needs that."""
        needed = any((self.weights, self.draft_weights, self.kv_cache))
        return load_model(target, **(vars(self) | {"compile": self.compile or needed}))


GROUPS = (GenerationOptions, LoadingOptions)


def with_groups(verb: Callable[..., None]) -> Callable[..., None]:
    """Decorator of a subcommand: replaces each parameter annotated with an option group by its options."""
    own = signature(verb, eval_str=True)
    groups = {name: each.annotation for name, each in own.parameters.items() if each.annotation in GROUPS}
    listed: list[Parameter] = []
    for name, each in own.parameters.items():
        listed += groups[name].parameters() if name in groups else [each]

    @wraps(verb)
    def called(**given: Any) -> None:
        for name, group in groups.items():
            given[name] = group.take(given)
        verb(**given)

    shown = own.replace(parameters=[each.replace(kind=Parameter.KEYWORD_ONLY) for each in listed])
    vars(called)["__signature__"] = shown  # typer reads the signature
    called.__annotations__ = {each.name: each.annotation for each in listed}
    return called


def logit_biases(given: list[str] | None) -> dict[str, float] | None:
    """Token id (as text) -> bias, from arguments such as 42=-5, or None; ValueError for malformed ones."""
    if not given:
        return None
    try:
        return {str(int(token)): float(bias) for token, _, bias in (each.partition("=") for each in given)}
    except ValueError as error:
        raise ValueError(f"--logit-bias takes TOKEN=BIAS, as in 42=-5, not {' '.join(given)}") from error


def read_text(path: Path | None) -> str | None:
    """The text of a file, None for None; ValueError if the file cannot be read or is not UTF-8."""
    try:
        return None if path is None else path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise ValueError(f"{path} is not UTF-8 text (at byte {error.start}): convert it to UTF-8") from error
    except OSError as error:
        raise ValueError(f"{path} cannot be read: {error.strerror}") from error


@contextmanager
def importing() -> Iterator[None]:
    """Context manager for imports of torch and transformers, which take seconds: it shows that."""
    with progress(None, "importing PyTorch and transformers"):
        yield


def leave_cpus(threads: int | None) -> None:
    """Use fewer torch threads on a busy machine, unless the user chose their number, and say so."""
    import torch

    before, processes = torch.get_num_threads(), load()
    fitting = fitting_threads(before, processes)
    if threads is None and "OMP_NUM_THREADS" not in os.environ and fitting < before:
        torch.set_num_threads(fitting)
        print_status(
            f"outpace: other programs use this machine ({processes:.1f} processes for {num_cpus()} CPUs): "
            f"{fitting} of {before} threads are used; --threads or OMP_NUM_THREADS choose"
        )


def load_model(target: str, **how: Any) -> Any:
    """`outpace.load` without the progress bars and warnings of transformers; `how`: its keyword arguments."""
    with importing():
        from transformers.utils import logging

        from outpace.api.model import load as load_target

    logging.disable_progress_bar()
    logging.set_verbosity_error()
    return load_target(target, **how)


def _taken(group: type, given: dict[str, Any]) -> dict[str, Any]:
    return {each.name: given.pop(each.name) for each in fields(group) if each.name in given}
