"""`outpace serve`: an HTTP server with OpenAI's API."""

from __future__ import annotations

import json
import logging
import socket
from argparse import Namespace
from collections.abc import Sequence
from contextlib import closing, nullcontext
from ipaddress import ip_address
from pathlib import Path
from typing import Annotated, Any

import typer

from outpace.cli import options as o
from outpace.cli.failures import Debug, report_failures
from outpace.cli.output import print_status
from outpace.cli.recipe_options import TARGET, RecipeCommand, chosen_method

DEFAULT_METHOD = "auto"  # drafts what pays by measured times, at every load
HELP_WIDTH = 100  # columns of `outpace serve --help`, which has many options


class ServeCommand(RecipeCommand):
    """A command that takes the target as an argument, and whose default method adapts to load."""

    def default_of(self, named: Namespace) -> str:
        return DEFAULT_METHOD

    def target_of(self, ctx: Any, args: Sequence[str]) -> str | None:
        """The first argument that is neither an option nor an option's value. Options of methods are taken to
        have a value."""
        flags = {name for param in self.params if getattr(param, "is_flag", False) for name in param.opts}
        flags |= {name for param in self.params for name in param.secondary_opts}
        rest = iter(args)
        for word in rest:
            if not word.startswith("-"):
                return word
            if "=" not in word and word not in flags and not word.startswith("--no-"):
                next(rest, None)
        return None


@report_failures
@o.with_groups
def serve(
    ctx: typer.Context,
    target: Annotated[str, typer.Argument(metavar="TARGET", help="The model, as a name or folder.")] = TARGET,
    method: Annotated[
        str | None,
        typer.Option("--method", "-m", help="A method of `outpace list`, or @FILE; default: auto."),
    ] = None,
    recipe: o.RecipeFile = None,
    speculative_config: o.SpeculativeConfig = None,
    methods: Annotated[
        str,
        typer.Option(metavar="NAMES", help="Methods that requests may name too, as in mcsd,stand:depth=8."),
    ] = "",
    exact: o.Exact = False,
    *,
    loading: o.LoadingOptions,
    defaults: Annotated[
        bool,
        typer.Option(help="Apply the model's generation_config.json; default: on.", show_default=False),
    ] = True,
    override_generation_config: Annotated[
        str | None,
        typer.Option(metavar="JSON", help="Sampling defaults of requests, as in '{\"temperature\": 0.5}'."),
    ] = None,
    max_model_len: Annotated[
        int | None,
        typer.Option(min=2, metavar="N", help="Most tokens of prompt and answer; default: the model's."),
    ] = None,
    chat_template: Annotated[
        Path | None, typer.Option(metavar="FILE", help="A Jinja template, in place of the model's own.")
    ] = None,
    tool_call_parser: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="Format of tool calls, as in hermes; default: the template's."),
    ] = None,
    reasoning_parser: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="Format of the reasoning, as in qwen3; default: the template's."),
    ] = None,
    served_model_name: Annotated[
        str | None, typer.Option(metavar="NAME", help="Name of the model in requests; default: TARGET.")
    ] = None,
    host: Annotated[str, typer.Option(help="Address to listen on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port to listen on; 0: a free one.")] = 8000,
    api_key: Annotated[
        list[str] | None,
        typer.Option(
            envvar="OUTPACE_API_KEY",
            show_envvar=False,
            help="A key that requests must send; also OUTPACE_API_KEY.",
        ),
    ] = None,
    allowed_origins: Annotated[
        str | None,
        typer.Option(metavar="JSON", help="Sites whose pages may send requests, as in '[\"*\"]'."),
    ] = None,
    access_log: Annotated[
        bool, typer.Option("--access-log", help="Log every request; that slows small ones.")
    ] = False,
    rate_limit: Annotated[
        int | None, typer.Option(min=1, metavar="N", help="Most requests per minute and client.")
    ] = None,
    max_request_bytes: Annotated[int, typer.Option(min=1, metavar="N", help="Largest request.")] = 4 << 20,
    max_rows: Annotated[
        int, typer.Option(min=1, metavar="N", help="Most texts decoded at the same time.")
    ] = 16,
    max_waiting: Annotated[
        int, typer.Option(min=1, metavar="N", help="Most texts that wait for a row.")
    ] = 1024,
    kv_memory: Annotated[
        str | None,
        typer.Option(metavar="SIZE", help="Memory for the KV caches, as in 2GiB; default: no limit."),
    ] = None,
    prefix_cache: Annotated[
        bool, typer.Option(help="Share KV entries of equal beginnings; default: on.", show_default=False)
    ] = True,
    learn: Annotated[
        Path | None,
        typer.Option(
            metavar="FOLDER",
            help="Let the drafter learn from requests, and save what it learned.",
        ),
    ] = None,
    learn_cpus: Annotated[
        str | None,
        typer.Option(metavar="LIST", help="CPUs that only the learning has, as in 6,7; default: all."),
    ] = None,
    shutdown_timeout: Annotated[
        float,
        typer.Option(min=0, metavar="SECONDS", help="Time for requests to end at a stop."),
    ] = 30.0,
    debug: Debug = False,
) -> None:
    """Serve a model by OpenAI's API. `serve --method METHOD --help` lists the method's options."""
    from outpace.recipes import parse_methods, read_options

    cpus = _learn_cpus(learn, learn_cpus)
    others = [(each.name, each.options) for each in parse_methods(methods)] if methods else []
    for name, _ in others:
        read_options(name)  # an unknown name is refused before anything is imported
    used, given = chosen_method(ctx)

    from outpace.serving.http.app import SECONDS_TO_CLOSE, create_app
    from outpace.serving.http.middleware.admission import Admission
    from outpace.serving.http.middleware.api_keys import accepted_keys
    from outpace.serving.http.server import Server
    from outpace.serving.http.service import Service
    from outpace.serving.http.starting import refusing
    from outpace.serving.learning.apart import learn_apart, learner_of
    from outpace.serving.methods import open_methods

    template, kv_bytes = o.read_text(chat_template), _size(kv_memory)
    overrides, origins = _object(override_generation_config), _origins(allowed_origins)
    keys = accepted_keys(api_key or ())
    listener = _listen(host, port)
    with refusing(listener):
        model = loading.load(target)
        max_length = _max_length(max_model_len, model.max_length)
        parts = open_methods(model, used, given, others, max_length, exact=exact)
        service = Service(
            model,
            parts,
            name=served_model_name or target,
            chat_template=template,
            tool_call_parser=tool_call_parser,
            reasoning_parser=reasoning_parser,
            use_defaults=defaults,
            overrides=overrides,
            max_length=max_length,
            max_rows=max_rows,
            max_waiting=max_waiting,
            kv_bytes=kv_bytes,
            prefix_cache=prefix_cache,
        )
        trainer = None
        if learn is not None:
            belongs_to = {"method": used.name, "target": target}
            belongs_to |= {name: str(given[name]) for name in ("draft", "head") if given.get(name)}
            trainer = learn_apart(learner_of(parts), learn, belongs_to, cpus)
            service.metrics.watch_learning(trainer)
    admission = Admission()
    app = create_app(
        service,
        admission=admission,
        api_keys=keys,
        rate_limit=rate_limit,
        max_request_bytes=max_request_bytes,
        allowed_origins=origins,
    )
    server = Server(
        app,
        admission,
        lambda: service.engine.close(drain=False, timeout=SECONDS_TO_CLOSE),
        shutdown_timeout=shutdown_timeout,
        access_log=access_log,
    )
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    logging.getLogger("uvicorn.error").setLevel(logging.WARNING)
    if not api_key and not _is_local(host):
        print_status(f"outpace: everybody who reaches {host} can use this server: add --api-key")
    address = _address(host, listener)
    print_status(
        f"{service.name} with {', '.join(parts)} at {address}/v1, page at {address}; Ctrl-C stops it"
    )
    for name, each in parts.items():
        if each.reference is not None:
            print_status(f"outpace: {name} is LOSSY: the texts are those of {each.reference.description}")
    if trainer is not None:
        print_status(
            f"outpace: {used.name} learns from all requests, from version {trainer.versions.current.number}: "
            f"learned weights, but no texts, are saved in {learn}; delete that folder to forget them"
        )
    with nullcontext() if trainer is None else closing(trainer):
        server.run([listener])


def _learn_cpus(learn: Path | None, text: str | None) -> frozenset[int]:
    """The CPUs of --learn-cpus, which this process leaves."""
    from outpace.serving.learning.cpus import reserved

    if learn is None and text is not None:
        raise ValueError("--learn-cpus is for --learn: give that too")
    return reserved(text)


def _size(text: str | None) -> int | None:
    """Bytes of a size such as 2GiB; ValueError for other text."""
    from pydantic import ByteSize, TypeAdapter, ValidationError

    if text is None:
        return None
    try:
        size = int(TypeAdapter(ByteSize).validate_python(text))
    except ValidationError:
        size = 0
    if size < 1:
        raise ValueError(f"--kv-memory is {text}; use a size such as 2GiB or 500MB")
    return size


def _object(text: str | None) -> dict[str, Any]:
    """The JSON object of --override-generation-config; ValueError for other text."""
    try:
        found = json.loads(text or "{}")
    except ValueError:
        found = None
    if not isinstance(found, dict):
        raise ValueError(f'--override-generation-config is {text}; use JSON such as {{"temperature": 0.5}}')
    return found


def _origins(text: str | None) -> list[str]:
    """The origins of --allowed-origins; ValueError for other text than a JSON list of strings."""
    try:
        found = json.loads(text or "[]")
    except ValueError:
        found = None
    if not isinstance(found, list) or not all(isinstance(each, str) for each in found):
        raise ValueError(f'--allowed-origins is {text}; use JSON such as ["https://example.org"] or ["*"]')
    return found


def _max_length(asked: int | None, longest: int | None) -> int | None:
    """Most tokens of prompt and answer. ValueError for more than the model reads."""
    if asked is not None and longest is not None and asked > longest:
        raise ValueError(f"--max-model-len is {asked}, but the model reads at most {longest}: lower it")
    return longest if asked is None else asked


def _listen(host: str, port: int) -> socket.socket:
    """A socket that listens on this address; ValueError if that is impossible."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        listener = socket.create_server((host, port), family=family, backlog=2048)
    except OSError as error:
        reason = error.strerror or str(error)
        raise ValueError(
            f"{host}, port {port}, cannot be listened on: {reason}; choose another --port or --host"
        ) from error
    # Connections inherit this. asyncio sets it only for sockets that name their protocol, which these do not:
    # without it the first token of an answer waits for the client to acknowledge the headers, up to 40 ms.
    listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return listener


def _address(host: str, listener: socket.socket) -> str:
    shown = f"[{host}]" if ":" in host else host
    return f"http://{shown}:{listener.getsockname()[1]}"


def _is_local(host: str) -> bool:
    """Whether only this machine reaches the address."""
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
