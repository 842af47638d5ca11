"""Which options of `outpace audit` go together."""

from __future__ import annotations

from collections.abc import Sequence

ALLOWED = {
    *("endpoint", "model", "reference", "max_requests", "max_seconds", "allow_remote", "api_key"),
    *("prompts", "max_tokens", "false_alarms", "dtype", "revision", "trust_remote_code", "allow_pickle"),
    *("threads", "json", "debug"),
}  # options of `outpace audit` that concern servers


def check_options(
    given: Sequence[str],  # names of the options on the command line
    endpoint: str | None,
    model: str | None,
    reference: str | None,
) -> None:
    """Raise ValueError for options that do not go together."""
    names = {"all_": "--all", "prompts": "--prompt", "methods": "methods"}
    flags = [names.get(each, "--" + each.replace("_", "-")) for each in given]
    if endpoint is None:
        alone = ("model", "reference", "max_requests", "max_seconds", "allow_remote", "api_key")
        if wrong := next((flag for each, flag in zip(given, flags, strict=True) if each in alone), None):
            raise ValueError(f"{wrong} is for the audit of a server: add --endpoint, or leave it out")
        return
    if wrong := next((flag for each, flag in zip(given, flags, strict=True) if each not in ALLOWED), None):
        raise ValueError(
            f"{wrong} is for audits of our own methods, which --endpoint does not do: leave out one"
        )
    if model is None:
        raise ValueError("--endpoint needs --model: the name by which the server knows its model")
    if reference is None:
        raise ValueError(
            "--endpoint needs --reference: the same model as a folder, a name, or the address of a server "
            "without speculation"
        )
    loading = ("revision", "trust_remote_code", "allow_pickle", "threads")
    wrong = next((flag for each, flag in zip(given, flags, strict=True) if each in loading), None)
    if wrong and "://" in reference:
        raise ValueError(f"{wrong} is for a reference that is loaded, not for a server: leave it out")
