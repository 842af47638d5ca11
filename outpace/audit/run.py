"""The audit of a server: what is sent, in which order, and the verdicts.

Requests that are sent one at a time and requests under load take turns, so that every check has its share if
the time runs out.
"""

from __future__ import annotations

import random
import re
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from math import log
from typing import Any

from outpace.audit.bet import Repeats, Strays
from outpace.audit.check import FAULT, NOT_TESTED, PASSED, Check
from outpace.audit.endpoint import Answer, Endpoint, EndpointError, Refused
from outpace.audit.gaps import Gaps
from outpace.audit.log_probs import LogProbs
from outpace.audit.mixture_test import MixtureTest, log_mean
from outpace.audit.pair_test import PairTest
from outpace.audit.probe import LOG_PROBS, SEED, probe
from outpace.audit.prompts import ALIKE
from outpace.audit.reference import Reference, Scored
from outpace.audit.setting import GREEDY, PLAIN, SAMPLED, Setting
from outpace.audit.tokens import LOST
from outpace.console import progress

STREAMS = 8  # requests at the same time, under load
GREEDY_OF_LOAD = 2  # of them at temperature 0
REPEATED = 4  # rounds over the prompts that are alike
TESTS = len(SAMPLED) + 4  # statistical ones: samples, under load, strays, repeats, alike
SUSPICIOUS = 3.0  # standard deviations from which an answer is compared with other prompts
GREEDY_TEXTS, ALIKE_PROMPTS, LOAD = "greedy texts", "prefixes of prompts", "samples under load"
STRAYS, REPEATS, REPORTED = "answers to their prompts", "independence of samples", "log probabilities"
UNITS = re.compile(r"\w+|\s+|[^\w\s]")


@dataclass
class Budget:
    """The most that is sent to the server."""

    max_requests: int
    max_tokens: int  # of each text
    max_seconds: float
    began: float = field(default_factory=time.monotonic)

    @property
    def is_over(self) -> bool:
        """Whether the time is up."""
        return time.monotonic() - self.began > self.max_seconds


class OutOfTime(Exception):
    """The time of the audit is up."""


class Audit:
    """Audits one server against one reference."""

    def __init__(
        self,
        server: Endpoint,
        reference: Reference,
        prompts: Sequence[str],
        budget: Budget,
        false_alarms: float,  # probability that any test fails for a correct server
    ) -> None:
        self.server, self.reference = server, reference
        self._prompts, self._budget = list(prompts), budget
        self._threshold = log(TESTS / false_alarms)
        self._random = random.Random(time.time_ns())
        self._encoded: dict[str, list[int] | None] = {}
        self._as_ids = True  # whether the server takes prompts as token ids
        self._advance: Callable[[str, int], None] = lambda label, done: None
        self.stopped = ""  # why the audit ended early
        self._label = GREEDY_TEXTS  # what is being done
        self.same_seed: bool | None = None  # whether one seed gave one text
        names = [*(f"samples, {each.name}" for each in SAMPLED), LOAD, STRAYS, REPEATS, REPORTED]
        self.checks = {name: Check(name) for name in (GREEDY_TEXTS, ALIKE_PROMPTS, *names)}
        self._log_probs = LogProbs()
        self._repeats = Repeats()

    def run(self) -> list[Check]:
        """All checks. EndpointError if the server or the reference cannot be audited at all."""
        prompt = self._prompts[0]
        answer, self._as_ids = probe(self.server, prompt, self._ids(prompt))
        self._check_length(prompt, answer)
        most = self._budget.max_requests
        with progress(most, GREEDY_TEXTS) as self._advance:
            try:
                self._run(most)
            except OutOfTime:
                self.stopped = f"the {self._budget.max_seconds:g} s are over"
            except EndpointError as error:
                self.stopped = str(error)
        self._finish()
        return list(self.checks.values())

    def _run(self, most: int) -> None:
        self._greedy(min(len(self._prompts), max(1, most // 10)))
        self._seeds()
        self._alike(min(REPEATED, most // 60))
        rest = max(0, most - self.server.num_requests)
        rounds = rest // (len(SAMPLED) + STREAMS // 2)
        sampled = [Sampled(setting) for setting in SAMPLED]
        loaded = Loaded()
        for number in range(rounds):
            for each in sampled:
                self._sample(each, number)
            if number % 2:
                self._load(loaded, number)

    # what is sent

    def _complete(self, prompt: str, setting: Setting, **given: Any) -> Answer:
        if self._budget.is_over:
            raise OutOfTime
        ids = self._ids(prompt)
        sent = ids if ids is not None and self._as_ids else prompt
        answer = self.server.complete(sent, self._budget.max_tokens, **setting.fields, **given)
        self._check_length(prompt, answer)
        self._advance(self._label, 1)
        return answer

    def _check_length(self, prompt: str, answer: Answer) -> None:
        """EndpointError if server and reference read different numbers of tokens."""
        ids = self._ids(prompt)
        if ids is not None and answer.num_prompt_tokens not in (None, len(ids)):
            raise EndpointError(
                f"{self.server.url} reads {answer.num_prompt_tokens} tokens where the reference reads "
                f"{len(ids)}: the reference has another tokenizer, give the model that the server serves"
            )

    def _ids(self, prompt: str) -> list[int] | None:
        if prompt not in self._encoded:
            self._encoded[prompt] = self.reference.encode(prompt)
        return self._encoded[prompt]

    def _seed(self) -> dict[str, int]:
        """A seed of its own for half of the requests, and none for the others."""
        if SEED in self.server.refused or self._random.random() < 0.5:
            return {}
        return {"seed": self._random.getrandbits(31)}

    # checks

    def _greedy(self, count: int) -> None:
        check = self.checks[GREEDY_TEXTS]
        gaps = Gaps(self.reference.rounding.tie)
        for prompt in self._prompts[:count]:
            self._judge_greedy(check, gaps, prompt, self._complete(prompt, GREEDY))
            if gaps.is_fault:
                break
        gaps.judge(check)

    def _judge_greedy(self, check: Check, gaps: Gaps, prompt: str, answer: Answer) -> None:
        tokens, ids = self.reference.read(answer), self._ids(prompt)
        if tokens and ids is not None and self.reference.states(PLAIN):
            gaps.add(self.reference.gaps(ids, tokens), prompt)
        else:
            gaps.add_text(self.reference.text_gap(prompt, answer, self._budget.max_tokens), prompt)
        check.num_texts += 1
        check.num_tokens += len(tokens or answer.words or ())

    def _seeds(self) -> None:
        """Whether one seed gives one text: for information, as no API promises it."""
        self._label = "seeds"
        if SEED in self.server.refused:
            return
        first, second = (self._complete(self._prompts[0], PLAIN, seed=7) for _ in range(2))
        self.same_seed = first.text == second.text

    def _alike(self, rounds: int) -> None:
        """Prompts that a prefix cache may mix up, in turns: first at temperature 0, then sampled."""
        if not rounds:
            return
        self._label = ALIKE_PROMPTS
        check, gaps = self.checks[ALIKE_PROMPTS], Gaps(self.reference.rounding.tie)
        pairs = [each for one, other in ALIKE for each in ((one, other), (other, one))]
        for own, _ in pairs:
            self._judge_greedy(check, gaps, own, self._complete(own, GREEDY))
        gaps.judge(check)
        test, strays, evidence = self._mixture(), Strays(0.3), 0.0
        for own, other in pairs * (rounds - 1):
            if check.verdict == FAULT:
                return
            answer = self._complete(own, PLAIN, **self._seed())
            scored = self._scored(own, self.reference.read(answer), PLAIN)
            if scored is not None:
                test.observe(scored.text)
                strays.observe(sum(scored.log_probs), [self._log_prob(other, scored)])
                check.num_texts += 1
                check.num_tokens += len(scored.text.columns)
                evidence = max(evidence, log_mean([test.log_wealth, strays.bet.log_wealth]))
                told = check.detail
                check.judge(evidence, self._threshold, strays.finding or test.finding())
                check.detail = check.detail or told
        if check.verdict == PASSED and not strays.num_texts:
            check.verdict, check.detail = NOT_TESTED, "the distributions of tokens are not known"
        elif check.verdict == PASSED and strays.nats < self._threshold:
            check.verdict, check.detail = NOT_TESTED, "the model answers these prompts too much alike"

    def _sample(self, sampled: Sampled, number: int) -> None:
        """One request of a setting, and one to the reference where that states no distributions."""
        setting = sampled.setting
        self._label = f"samples, {setting.name}"
        check = self.checks[self._label]
        if check.verdict == FAULT or sampled.refused:
            return
        prompt = self._prompts[number % len(self._prompts)]
        try:
            answer = self._complete(prompt, setting, **self._seed())
        except Refused as error:
            if number:
                raise
            sampled.refused, check.detail = True, str(error)
            return
        self._judge_sample(check, sampled, prompt, answer)

    def _judge_sample(self, check: Check, sampled: Sampled, prompt: str, answer: Answer) -> Scored | None:
        """Test an answer. Returns its distributions, if they are known."""
        setting, tokens = sampled.setting, self.reference.read(answer)
        scored = self._scored(prompt, tokens, setting)
        if setting == PLAIN and answer.log_probs is not None:
            self._log_probs.add(answer.log_probs, scored and scored.log_probs)
        if scored is None:
            if tokens is None or not self.reference.states(setting):
                self._judge_pair(check, sampled, prompt, answer)
            return None
        if sampled.test is None:
            sampled.test = self._mixture()
        test = sampled.test
        test.observe(scored.text)
        check.num_texts, check.num_tokens = check.num_texts + 1, test.num_tokens
        check.judge_samples(test.log_evidence, self._threshold, test.finding())
        check.shows_power()
        if scored.outside:
            check.verdict = FAULT
            check.detail = f"token {scored.outside[0]} of a text is one that top_p excludes"
        if setting.top_p == 1:
            self._repeats.observe((setting.name, prompt), scored.tokens, scored.log_probs)
        return scored

    def _judge_pair(self, check: Check, sampled: Sampled, prompt: str, answer: Answer) -> None:
        """Compare the text of an answer with one of the reference."""
        setting, seed = sampled.setting, self._random.getrandbits(31)
        other = self.reference.sample(prompt, setting, self._budget.max_tokens, seed)
        test = sampled.pairs = sampled.pairs or PairTest()
        if answer.words is not None and other.words is not None:
            one, second = answer.words, other.words
        else:
            one, second = (UNITS.findall(each.text.replace(LOST, "")) for each in (answer, other))
        known = (
            self.reference.describe(prompt, answer, setting),
            self.reference.describe(prompt, other, setting),
        )
        test.observe(self._prompts.index(prompt), one, second, known)
        check.num_texts, check.num_tokens = test.num_pairs, test.num_tokens
        check.judge_samples(test.log_evidence, self._threshold, test.finding())

    def _load(self, loaded: Loaded, number: int) -> None:
        """Requests at the same time, with a prompt each."""
        self._label = LOAD
        check = self.checks[LOAD]
        strays = self.checks[STRAYS]
        if check.verdict == FAULT and strays.verdict == FAULT:
            return
        count = len(self._prompts)
        prompts = [self._prompts[(number + at) % count] for at in range(STREAMS)]
        settings = [GREEDY] * GREEDY_OF_LOAD + [PLAIN] * (STREAMS - GREEDY_OF_LOAD)
        seeds = [{} if setting == GREEDY else self._seed() for setting in settings]
        with ThreadPoolExecutor(STREAMS) as pool:
            calls = [
                pool.submit(self._complete, prompt, setting, **seed)
                for prompt, setting, seed in zip(prompts, settings, seeds, strict=True)
            ]
            answers = [call.result() for call in calls]
        gaps = loaded.gaps = loaded.gaps or Gaps(self.reference.rounding.tie)
        for prompt, setting, answer in zip(prompts, settings, answers, strict=True):
            if setting == GREEDY:
                self._judge_greedy(Check(""), gaps, prompt, answer)
                continue
            scored = self._judge_sample(check, loaded.sampled, prompt, answer)
            if scored is None:
                if loaded.sampled.pairs is not None:
                    strays.detail = "the distributions of tokens are not known"
                continue
            others: list[float] = []
            if scored.text.surprise > SUSPICIOUS:
                others = [
                    self._log_prob(other, scored) for other in dict.fromkeys(prompts) if other != prompt
                ]
            loaded.strays.observe(sum(scored.log_probs), others)
        if gaps.is_fault:
            gaps.judge(check)
        if len(set(prompts)) < 2:
            strays.detail = "there is only one prompt"
        elif loaded.strays.num_texts:
            strays.num_texts = loaded.strays.num_texts
            strays.judge(loaded.strays.bet.log_evidence, self._threshold, loaded.strays.finding)

    def _mixture(self) -> MixtureTest:
        return MixtureTest(
            self.reference.vocab, tolerance=self.reference.rounding.ratio, seed=self._random.getrandbits(31)
        )

    def _scored(self, prompt: str, tokens: list[int] | None, setting: Setting) -> Scored | None:
        """The distributions along an answer; None if it is empty, or if its tokens or their distributions are
        not known."""
        ids = self._ids(prompt)
        if ids is None or not tokens or not self.reference.states(setting):
            return None
        return self.reference.score(ids, tokens, setting)

    def _log_prob(self, prompt: str, scored: Scored) -> float:
        """Log probability of an answer after another prompt."""
        ids = self._ids(prompt)
        assert ids is not None
        return sum(self.reference.score(ids, scored.tokens, PLAIN).log_probs)

    def _finish(self) -> None:
        """The checks that use the requests of others."""
        repeats = self.checks[REPEATS]
        repeats.num_texts = self._repeats.num_texts
        if self._repeats.num_texts > len(self._prompts):
            repeats.judge(self._repeats.bet.log_evidence, self._threshold, self._repeats.finding)
        else:
            repeats.detail = "too few answers whose distributions of tokens are known"
        for check in self.checks.values():
            if check.verdict == NOT_TESTED and not check.detail:
                check.detail = self.stopped or "too few requests: raise --max-requests"
        refused = self.server.refused.get(LOG_PROBS, "")
        self._log_probs.judge(self.checks[REPORTED], self.reference.rounding, refused)


@dataclass
class Sampled:
    """The test of one setting: against known distributions, or of pairs."""

    setting: Setting
    test: MixtureTest | None = None
    pairs: PairTest | None = None
    refused: bool = False


@dataclass
class Loaded:
    """The tests under load."""

    sampled: Sampled = field(default_factory=lambda: Sampled(PLAIN))
    strays: Strays = field(default_factory=lambda: Strays(0.05))
    gaps: Gaps | None = None
