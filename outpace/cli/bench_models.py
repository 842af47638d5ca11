"""The models and contenders of `outpace bench`, loaded as the command asks."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import replace
from functools import cache
from time import perf_counter
from typing import TYPE_CHECKING, Any

from outpace.cli.output import say

if TYPE_CHECKING:
    from outpace.api.model import Model
    from outpace.bench.measure.contender import Contender
    from outpace.bench.measure.measurement import Measurement
    from outpace.bench.peers.environments import PeerEnvironment


class Side:
    """The models in one mode: compiled where that was asked for, or as they are."""

    def __init__(self, model: Model, whole: Callable[[str], Model], stack: ExitStack) -> None:
        from outpace.api.model import ModelOpener

        self.model = model
        self._whole, self._opener = whole, ModelOpener(model, stack)
        self._opened: dict[str, Any] = {}

    @property
    def tokenizer(self) -> Any:
        """The target's."""
        return self.model.tokenizer

    def draft(self, value: Any) -> Any:
        """The draft of this name, with the target's tokens; each is loaded once."""
        if value not in self._opened:
            self._opened[value] = self._opener.draft(self._whole(value))
        return self._opened[value]

    def cross_vocabulary(self, value: Any) -> Any:
        """The draft of this name, whose tokens may differ from the target's."""
        return self._opener.cross_vocabulary(self._whole(value))

    def targets(self, draft: str | None) -> dict[tuple[str, str], Any]:
        """Its target and, where a method opened it, the draft of the whole measurement."""
        from outpace.bench.measure.contender import mode_of
        from outpace.bench.measure.ideal import DRAFT, TARGET

        mode = mode_of(self.model.target)
        drafts = {(DRAFT, mode): self._opened[draft]} if draft in self._opened else {}
        return {(TARGET, mode): self.model.target, **drafts}


def as_it_is(model: Model, stack: ExitStack) -> Model:
    """The same model without compiled forwards; its weights are those that are loaded already."""
    from outpace.models.hf.target import HFTarget

    return replace(model, target=HFTarget(model.target.model))


class Loaded:
    """The models of a measurement, and how long they took to load."""

    def __init__(
        self,
        stack: ExitStack,
        target: str,
        draft: str | None,
        beside: bool,  # transformers' own generation, with models of its own
        homes: Sequence[PeerEnvironment],  # engines in other environments
        dtype: str,
        device: str | None,
        compile: bool,
        eager: bool,  # beside what is compiled
    ) -> None:
        from outpace.api.model import load
        from outpace.models.names import usual_draft

        self.names = {"target": target, "draft": usual_draft(target) if draft is None else draft}
        self.cross_vocabulary = usual_draft(target, cross_vocabulary=True) if draft is None else None
        self.stack, self.homes = stack, homes
        self.seconds: dict[str, float] = {}
        self.compiling: dict[str, float] = {}
        loaded: dict[str, Any] = {}

        def timed(kind: str, name: str, make: Any) -> Any:
            say(f"loading {kind} {name}")
            began = perf_counter()
            made = make()
            self.seconds[kind] = perf_counter() - began
            if compile and getattr(made, "target", None) and made.target.compiled:
                self.compiling[kind] = made.target.compiled.seconds
                self.seconds[kind] -= self.compiling[kind]
            return made

        def whole(value: str) -> Any:
            if value not in loaded:
                kind = "draft" if value == self.names["draft"] else f"draft {value}"
                loaded[value] = timed(
                    kind, value, lambda: load(value, dtype=dtype, device=device, compile=compile)
                )
            return loaded[value]

        self.model = timed(
            "target", target, lambda: load(target, dtype=dtype, device=device, compile=compile)
        )
        self.sides = [Side(self.model, whole, stack)]
        if eager and self.model.target.compiled:
            other = cache(lambda name: as_it_is(whole(name), stack))
            self.sides.append(Side(as_it_is(self.model, stack), other, stack))
        self.dtype = next(self.model.target.model.parameters()).dtype
        self.device = str(self.model.target.device)
        self.peer_models: dict[str, Any] | None = None
        if beside:
            from outpace.models.checkpoint import load_checkpoint
            from outpace.models.names import resolve

            def separate(name: str) -> Any:
                return load_checkpoint(resolve(name), dtype=self.dtype, device=self.device)[0].eval()

            wanted = {kind: name for kind, name in self.names.items() if name}
            self.peer_models = {
                k: timed(f"peer's {k}", n, lambda n=n: separate(n)) for k, n in wanted.items()
            }

    @property
    def targets(self) -> dict[tuple[str, str], Any]:
        """Whose forwards are put on a cost curve."""
        return {name: each for side in self.sides for name, each in side.targets(self.names["draft"]).items()}

    def prepare(
        self,
        methods: Any,
        items: Any,
        heats: list[float],
        *,
        max_tokens: int,
        rounds: int,
        passes: int,
        batch: int,
        seed: int,
        ignore_eos: bool,
        settings: dict[str, Any],
    ) -> Measurement:
        """Line up who takes part, and the prompts as tokens."""
        from outpace.api.settings import end_tokens
        from outpace.bench.measure.line_up import contenders, engines
        from outpace.bench.measure.measurement import Measurement
        from outpace.bench.measure.provenance import provenance
        from outpace.bench.measure.run import unfold
        from outpace.core.sampling_params import SamplingParams

        (found, choices), *eager = [
            engines(
                methods,
                side.model.target,
                self.names["draft"],
                side,
                self.cross_vocabulary,
            )
            for side in self.sides
        ]
        ends = () if ignore_eos else end_tokens(self.model.defaults, self.model.tokenizer)
        sampling = SamplingParams(max_tokens=max_tokens, stop=ends, **settings)
        cases, left_out = unfold(items, self.model.tokenizer, found[0], sampling, room=self.model.max_length)
        if not cases:
            raise ValueError(
                f"no prompt leaves room for {max_tokens} new tokens: ask for fewer with --max-tokens"
            )
        others, versions, failed = self._others(found, room=longest(cases) + max_tokens, batch=batch)
        known = provenance(self.device)
        return Measurement(
            contenders=[*contenders(found, self.peer_models, batch, eager[0][0] if eager else ()), *others],
            cases=cases,
            sampling=sampling,
            temperatures=heats,
            rounds=rounds,
            passes=passes,
            batch=batch,
            seed=seed,
            choices=choices,
            provenance={
                **known,
                "versions": {**known["versions"], **versions},
                "dtype": in_words(self.dtype),
            },
            settings={**self.names, "methods": [engine.name for engine in found], "ignore_eos": ignore_eos}
            | ({"compile": True} if self.model.target.compiled else {})
            | settings,
            load_seconds=self.seconds,
            compile_seconds=self.compiling,
            left_out=left_out,
            failed=failed,
        )

    def _others(
        self, found: Any, *, room: int, batch: int
    ) -> tuple[list[Contender], dict[str, str], dict[str, str]]:
        """Rows of engines in other environments, the versions of those, and why rows are left out."""
        if not self.homes:
            return [], {}, {}
        import torch

        from outpace.bench.peers.rows import Invitation
        from outpace.bench.peers.worker import Worker, close_all

        if self.device != "cpu":
            raise ValueError(f"--peer {self.homes[0].kind.name} is measured on a CPU: use --device cpu")
        workers: list[Worker] = []
        self.stack.callback(close_all, workers)
        invitation = Invitation(
            names=self.names,
            dtype=in_words(self.dtype),
            threads=torch.get_num_threads(),
            room=room,
            most=self.model.max_length,
            batch=batch,
            environment=os.environ,
            say=say,
            keep=workers.append,
            seconds=self.seconds,
        )
        rows: list[Contender] = [row for home in self.homes for row in invitation.rows(home, found)]
        versions = {name: version for home in self.homes for name, version in home.versions.items()}
        return rows, versions, invitation.failed


def in_words(dtype: Any) -> str:
    """`torch.bfloat16` without torch."""
    return str(dtype).removeprefix("torch.")


def longest(cases: Any) -> int:
    """Tokens of the longest prompt."""
    return max(len(case.tokens) for case in cases)
