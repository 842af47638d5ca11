"""`outpace audit --endpoint`: the audit of a server, as a table or as JSON."""

from __future__ import annotations

from collections.abc import Sequence
from math import ceil
from typing import Any

import typer

from outpace.audit.check import FAULT, NOT_TESTED, PASSED, Check
from outpace.audit.endpoint import REQUEST_SECONDS, Endpoint, address
from outpace.audit.endpoint_reference import EndpointReference
from outpace.audit.local_reference import LocalReference
from outpace.audit.prompts import PROMPTS
from outpace.audit.reference import Reference
from outpace.audit.run import STREAMS, Audit, Budget
from outpace.audit.setting import ROUNDING
from outpace.cli.output import print_json, print_status, print_table


def audit_endpoint(
    endpoint: str,
    model: str,
    reference: str,
    *,
    prompts: Sequence[str] | None,
    max_tokens: int,
    max_requests: int,
    max_seconds: float,
    false_alarms: float,
    allow_remote: bool,
    api_key: str | None,
    json: bool,
    dtype: str,
    **loading: Any,  # further keyword arguments of outpace.load
) -> None:
    """Audit a server, print the verdicts and exit: 0 if something was tested and nothing failed, 1 for a
    fault, 2 if nothing could be tested. ValueError for a server that cannot be audited."""
    if not 0 < false_alarms < 1:
        raise ValueError(f"--false-alarms is a probability between 0 and 1, not {false_alarms}")
    if max_tokens < 1:
        raise ValueError(f"--max-tokens is {max_tokens}; ask for texts of at least one token")
    seconds = min(REQUEST_SECONDS, max_seconds)
    server = Endpoint(address(endpoint, allow_remote, "--endpoint"), model, api_key, seconds)
    server.check_model()
    compared = _reference(reference, model, allow_remote, api_key, seconds, dtype, loading)
    print_status(
        f"outpace: sends at most {max_requests} requests of at most {max_tokens} tokens to {server.url}, "
        f"up to {STREAMS} at the same time and for at most {max_seconds:g} s; reference: {compared.name}"
    )
    audit = Audit(
        server, compared, prompts or PROMPTS, Budget(max_requests, max_tokens, max_seconds), false_alarms
    )
    checks = audit.run()
    verdicts = {check.verdict for check in checks}
    report = _report(audit, checks, false_alarms)
    if json:
        print_json(report)
    else:
        _print(audit, checks, report)
    if FAULT in verdicts:
        raise typer.Exit(1)
    if PASSED not in verdicts:
        raise ValueError(f"nothing was tested: {audit.stopped or 'see the reasons above'}")


def _reference(
    given: str,
    model: str,
    allow_remote: bool,
    api_key: str | None,
    seconds: float,
    dtype: str,
    loading: dict[str, Any],
) -> Reference:
    """A server if `given` is an address, else a model."""
    if "://" in given:
        if dtype != "auto" and dtype not in ROUNDING:
            raise ValueError(f"rounding in {dtype} is not known: give {', '.join(ROUNDING)}")
        server = Endpoint(address(given, allow_remote, "--reference"), model, api_key, seconds)
        server.check_model(only=True)
        return EndpointReference(server, ROUNDING["bfloat16" if dtype == "auto" else dtype])
    from outpace.api import load

    loaded = load(given, dtype=dtype, **loading)
    return LocalReference(loaded, _coarsest(loaded) if dtype == "auto" else dtype)


def _coarsest(model: Any) -> str:
    """The dtype of the loaded model or of its checkpoint, in which a server probably computes: the one that
    rounds more."""
    names = {
        str(each).removeprefix("torch.")
        for each in (model.target.model.dtype, getattr(model.target.model.config, "dtype", None))
    }
    return max(names & ROUNDING.keys(), key=lambda name: ROUNDING[name].tie, default="bfloat16")


def _report(audit: Audit, checks: Sequence[Check], false_alarms: float) -> dict[str, Any]:
    rounding = audit.reference.rounding
    return {
        "endpoint": audit.server.url,
        "model": audit.server.model,
        "reference": audit.reference.name,
        "dtype": rounding.dtype,
        "tie": rounding.tie,
        "false_alarms": false_alarms,
        "checks": [check.as_dict() for check in checks],
        "passed": all(check.verdict != FAULT for check in checks)
        and any(check.verdict == PASSED for check in checks),
        "same_seed_same_text": audit.same_seed,
        "refused": audit.server.refused,
        "stopped": audit.stopped,
        "num_requests": audit.server.num_requests,
        "num_tokens": audit.server.num_tokens,
        "num_waits": audit.server.num_waits,
    }


def _print(audit: Audit, checks: Sequence[Check], report: dict[str, Any]) -> None:
    rows = [
        (
            check.name,
            check.verdict,
            str(check.num_texts or "-"),
            str(check.num_tokens or "-"),
            "-" if check.p_value is None else f"{check.p_value:.2g}",
            "-" if check.finds is None else f"{ceil(100 * check.finds) / 100:.2f}",
            check.detail,
        )
        for check in checks
    ]
    title = f"{report['model']} at {report['endpoint']}, against {report['reference']} ({report['dtype']})"
    print_table(("check", "verdict", "texts", "tokens", "p-value", "finds", ""), rows, title)
    typer.echo(f"{report['num_requests']} requests, {report['num_tokens']} tokens.")
    typer.echo(
        f"A correct server fails tests with a p-value with probability {report['false_alarms']:g} at most. "
        "finds: the total variation distance per token that a test of so many tokens finds."
    )
    if audit.same_seed is not None:
        typer.echo(f"One seed twice gave {'the same text' if audit.same_seed else 'two texts'}.")
    for name, said in audit.server.refused.items():
        typer.echo(f"Sent without {name}: {said}")
    if audit.server.num_waits:
        typer.echo(f"Waited {audit.server.num_waits} times, as the server limits requests.")
    if audit.stopped:
        typer.echo(f"Ended early: {audit.stopped}")
    verdicts = [check.verdict for check in checks]
    if FAULT in verdicts:
        typer.echo("FAULT")
    elif PASSED in verdicts:
        missing = verdicts.count(NOT_TESTED)
        typer.echo(
            "passed" + (f", but {missing} of {len(verdicts)} checks were not tested" if missing else "")
        )
