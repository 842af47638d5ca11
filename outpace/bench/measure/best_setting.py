"""A peer engine at the best of its settings, selected by a short search before the timed runs."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

from torch import Tensor

from outpace.bench.measure.acceptance_bound import AcceptanceBound
from outpace.bench.measure.contender import (
    Contender,
    MethodContender,
    PeerFailed,
    PeerRefused,
    RunOutcome,
    shortened,
)
from outpace.bench.measure.halves import rate
from outpace.bench.measure.run import Trial, run_trial, warm_up
from outpace.core.sampling_params import SamplingParams

NUM_TRIALS = (
    3  # prompts (or batches) decoded per setting and temperature, spread evenly over the measurement's
)
MAX_TOKENS = 48  # new tokens per prompt during the search
DRAFT_DEPTHS = (3, 5)  # draft lengths to try, besides those of speculative-sampling in this benchmark
LOOKUPS = ((5, 3), (10, 3))  # (draft length, longest n-gram) to try, besides those of our prompt-lookup


def draft_depths(methods: Sequence[MethodContender]) -> list[int]:
    """The draft lengths to try with a draft model; empty if speculative-sampling is not measured."""
    ours = [int(m.options.get("depth") or 5) for m in methods if m.method == "speculative-sampling"]
    return list(dict.fromkeys([*ours, *DRAFT_DEPTHS])) if ours else []


def lookups(methods: Sequence[MethodContender]) -> list[tuple[int, int]]:
    """(Draft length, longest n-gram) to try with prompt lookup; empty if prompt-lookup is not measured."""
    ours = [
        (int(m.options.get("depth") or 10), int(m.options.get("max_ngram") or 3))
        for m in methods
        if m.method == "prompt-lookup"
    ]
    return list(dict.fromkeys([*ours, *LOOKUPS])) if ours else []


def setting_name(options: Mapping[str, Any]) -> str:
    """The name of a setting in tables, such as `depth=5,eager` or `compiled`."""
    words = [f"{key}={value}" for key, value in options.items() if key != "eager"]
    if "eager" in options:
        words.append("eager" if options["eager"] else "compiled")
    return ",".join(words)


class PeerContender(Contender, Protocol):
    """A contender that runs another engine and holds resources until it is closed."""

    def close(self) -> None:
        """Release its models or its worker process; it is not run afterwards."""
        ...


@dataclass
class BestSetting:
    """A contender that runs a peer at the setting with the most tokens per second, for each temperature.

    `settings` maps the name of each setting to a function that starts the peer with it. Only the best
    settings so far and the one being tried are running at a time. Settings that fail to start or to run are
    excluded.
    """

    name: str
    settings: Mapping[str, Callable[[], PeerContender]]
    kind: str = "peer"
    mode: str = ""
    single: bool = False
    chosen: dict[float, str] = field(default_factory=dict[float, str])  # temperature -> setting's name
    speeds: dict[float, dict[str, float]] = field(default_factory=dict[float, dict[str, float]])  # tokens/s
    failures: dict[str, str] = field(default_factory=dict[str, str])  # setting -> reason
    _alive: dict[str, PeerContender] = field(default_factory=dict[str, PeerContender])

    @property
    def options(self) -> Mapping[str, Any]:
        """The name of the chosen setting for each temperature."""
        return {f"setting at temperature {heat:g}": setting for heat, setting in self.chosen.items()}

    @property
    def precision(self) -> str:
        return next((each.precision for each in self._alive.values()), "")

    def search(
        self, trials: Sequence[Trial], sampling: SamplingParams, temperatures: Sequence[float], seed: int = 0
    ) -> dict[float, str]:
        """Try every setting at every temperature; returns {temperature: reason} for temperatures that no
        setting supports.

        PeerFailed if no setting could be started or run at all.
        """
        refused: dict[float, str] = {}
        for setting, start in self.settings.items():
            try:
                contender = self._alive[setting] = start()
                for temperature in temperatures:
                    try:
                        speed = self._speed(contender, trials, sampling, temperature, seed)
                    except PeerRefused as error:
                        refused[temperature] = str(error)
                        continue
                    self.speeds.setdefault(temperature, {})[setting] = speed
            except (PeerFailed, OSError, ValueError, RuntimeError) as error:
                self.failures[setting] = str(error)
                for speeds in self.speeds.values():
                    speeds.pop(setting, None)
            self._keep_the_best()
        if not self.chosen and self.failures:
            raise PeerFailed(next(iter(self.failures.values())))
        return {heat: reason for heat, reason in refused.items() if heat not in self.chosen}

    def _speed(
        self,
        contender: Contender,
        trials: Sequence[Trial],
        sampling: SamplingParams,
        temperature: float,
        seed: int,
    ) -> float:
        """Tokens per second over at most NUM_TRIALS of these trials, after a warm-up."""
        warm_up(contender, trials[0], sampling, [temperature])
        num = min(NUM_TRIALS, len(trials))
        sample = [trials[index * len(trials) // num] for index in range(num)]
        short = shortened(sampling, MAX_TOKENS)
        return rate(
            [run_trial(contender, replace(each, temperature=temperature), short, seed) for each in sample]
        )

    def _keep_the_best(self) -> None:
        """Choose the fastest setting so far for each temperature and close the peers of all others."""
        self.chosen = {
            heat: max(speeds, key=lambda setting: speeds[setting])
            for heat, speeds in self.speeds.items()
            if speeds
        }
        for setting in set(self._alive) - set(self.chosen.values()):
            self._alive.pop(setting).close()

    def run(self, prompts: Sequence[Tensor], sampling: Sequence[SamplingParams]) -> RunOutcome:
        return self._alive[self.chosen[float(sampling[0].temperature)]].run(prompts, sampling)

    def acceptance_bound(
        self, prompts: Sequence[Tensor], sampling: Sequence[SamplingParams]
    ) -> AcceptanceBound:
        return AcceptanceBound()  # draft tokens of another engine cannot be observed

    def lossless(self, temperature: float) -> bool:
        return True

    def reset(self) -> None:
        pass  # peers keep no state between requests: prefix caching is off

    def close(self) -> None:
        for contender in self._alive.values():
            contender.close()
        self._alive.clear()

    def to_json(self) -> dict[str, Any]:
        """The settings that were tried, the chosen ones, their tokens per second, and the reasons of
        failures."""
        return {
            "settings": list(self.settings),
            "chosen": {f"{heat:g}": setting for heat, setting in self.chosen.items()},
            "tokens_per_second": {f"{heat:g}": speeds for heat, speeds in self.speeds.items()},
            "failures": self.failures,
        }
