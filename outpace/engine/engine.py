"""Decodes the requests of one method together: requests are added and cancelled between steps."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Generic, TypeVar

from torch import Tensor

from outpace.core.batch import MakeNoise
from outpace.core.contracts import MakeTargetProbs, Parts, PrefixCache, Step, TargetProbs
from outpace.core.noise import KeyedNoise
from outpace.core.request_state import RequestState
from outpace.core.row_error import RowError
from outpace.core.sampling_params import SamplingParams
from outpace.decode import PROMPT_TOKENS, Session, speculative_steps
from outpace.drafters.lookup.prediction import PredictionDrafter
from outpace.sampling.target_probs import LazyTargetProbs

Owner = TypeVar("Owner")  # what the caller knows a request by


@dataclass(slots=True)
class NewTokens(Generic[Owner]):
    """What a step generated for one request."""

    owner: Owner
    step: Step
    row: int  # of the step
    text: Tensor  # (T,) tokens of prompt and output after the step
    finished: bool
    predicted: Sequence[int]  # its draft tokens from the predicted output

    def target_probs(self) -> TargetProbs:
        """The target's distributions in the step."""
        return LazyTargetProbs(self.step.scores, self.step.draft.tree, self.step.ctx)


class Engine(Generic[Owner]):
    """The requests of one method in one session, each with its owner, an object of the caller's."""

    def __init__(
        self,
        parts: Parts,
        *,
        target_probs: MakeTargetProbs = LazyTargetProbs,
        noise: MakeNoise = KeyedNoise,
        # (owner, text of prompt and output) -> whether the output ends there; None: at stop tokens alone
        done: Callable[[Owner, Tensor], bool] | None = None,
        # called with an error that ends one request, after its end; None: the error is raised
        on_row_error: Callable[[Owner, RowError], None] | None = None,
        predicts: bool = False,  # requests may have predictions
        prompt_tokens: int = PROMPT_TOKENS,  # most prompt tokens that one step reads
        size: tuple[int, int] = (0, 0),  # smallest KV cache at the beginning: (slots, tokens of a text)
    ) -> None:
        self._predicted = PredictionDrafter(parts.drafter) if predicts else None
        if self._predicted is not None:
            parts = replace(parts, drafter=self._predicted)
        self.running: dict[int, Owner] = {}  # by slot, in the order in which they joined
        self.session = Session(
            parts,
            (),
            (),
            target_probs,
            noise=noise,
            done=None if done is None else partial(_is_done, self.running, done),
            prompt_tokens=prompt_tokens,
            size=size,
        )
        self._on_row_error = on_row_error
        self._steps: Iterator[Step] | None = None
        self._finished: list[int] = []  # slots of the requests that ended in the last step

    @staticmethod
    def of(
        parts: Parts,
        prompts: Sequence[Tensor],  # B × (T_b,) int64, at least one token each
        sampling: Sequence[SamplingParams],  # one per prompt
        *,
        target_probs: MakeTargetProbs = LazyTargetProbs,
        noise: MakeNoise = KeyedNoise,
        done: Callable[[int, Tensor], bool] | None = None,
        prompt_tokens: int = PROMPT_TOKENS,
    ) -> Engine[int]:
        """An engine with these requests, whose owners are their numbers and, with that, their slots."""
        rows = list(zip(prompts, sampling, strict=True))
        size = len(rows), max((len(prompt) + params.max_tokens for prompt, params in rows), default=0)
        engine = Engine[int](
            parts, target_probs=target_probs, noise=noise, done=done, prompt_tokens=prompt_tokens, size=size
        )
        for number, (prompt, params) in enumerate(rows):
            engine.add(number, prompt, params)
        return engine

    @property
    def prefix_cache(self) -> PrefixCache | None:
        """Where new requests find KV entries for their beginnings; None: their prompts are read whole."""
        return self.session.batch.prefix_cache

    def share_prefixes(self, shared: bool = True) -> bool:
        """Let requests that join from now on begin with KV entries of others, or no longer. False if the
        method needs the target's outputs at prompts, or if the KV cache cannot do that."""
        cache = self.session.cache
        used = cache if shared and not self.session.prefills and isinstance(cache, PrefixCache) else None
        self.session.batch.prefix_cache = used
        return used is not None

    def add(
        self, owner: Owner, prompt: Tensor, sampling: SamplingParams, prediction: Sequence[int] = ()
    ) -> int:
        """Add a request with a prompt of T >= 1 tokens, (T,) int64, and the predicted output, which may be
        empty; returns its slot. ValueError for token ids beyond the vocabulary."""
        return self._joined(self.session.add(prompt, sampling), owner, prediction)

    def rejoin(self, owner: Owner, request: RequestState, prediction: Sequence[int] = ()) -> int:
        """Add a request with the text that it has; returns its slot."""
        return self._joined(self.session.rejoin(request), owner, prediction)

    def _joined(self, slot: int, owner: Owner, prediction: Sequence[int]) -> int:
        self.running[slot] = owner
        if prediction:
            if self._predicted is None:
                raise ValueError("the engine drafts no predicted outputs: make it with predicts=True")
            self._predicted.predict(slot, prediction)
        return slot

    def cancel(self, slot: int) -> Owner:
        """End the running request in this slot and free its memory; returns its owner."""
        owner = self.running.pop(slot)
        if slot in self.session.rows:
            self.session.cancel(slot)
        return owner

    def target_changed(self) -> None:
        """The target's weights have been exchanged since the last step, as those of a policy that is trained:
        drop the KV entries of all texts. Those that run go on, perhaps in other slots and without predicted
        outputs, after the target has read them again."""
        rows = [(self.session.request(slot), owner) for slot, owner in self.running.items()]
        for slot in list(self.running):
            self.cancel(slot)
        self.close()
        if self.prefix_cache is not None:
            for limit in (0, 1 << 62):
                self.prefix_cache.limit(limit, by="changed")
        for request, owner in rows:
            self.rejoin(owner, request)

    def output(self, slot: int) -> list[int]:
        """The generated tokens of the last request in this slot, also after its end."""
        return self.session.request(slot).output()

    def step(self) -> Step | None:
        """Decode one step; None if no request is left. After an exception, the session has no requests."""
        for slot in self._finished:
            if slot not in self.session.rows:
                self.running.pop(slot, None)  # nobody asked for its tokens
        self._finished = []
        if self._steps is None:
            if not self.session.rows:
                return None
            self._steps = self.session.steps(self._surviving if self._on_row_error else None)
        try:
            step = next(self._steps, None)
        except BaseException:
            self._steps = None
            raise
        if step is None:
            self._steps = None
        elif step.finished:
            self._finished = [step.ctx.slots[row] for row in step.finished]
        return step

    def steps(self) -> Iterator[Step]:
        """Decode steps until no request is left."""
        try:
            while (step := self.step()) is not None:
                yield step
        finally:
            self.close()

    def new_tokens(self, step: Step) -> Iterator[NewTokens[Owner]]:
        """What the step generated for each request, before the next one. Those that ended run no more."""
        session, running, predicted = self.session, self.running, self._predicted
        for row, slot in enumerate(step.ctx.slots):
            if not step.generated[row]:
                continue  # the row read a part of its prompt
            finished = slot not in session.rows
            owner = running.pop(slot) if finished else running[slot]
            drafted = () if predicted is None else predicted.drafted.get(slot, ())
            yield NewTokens(owner, step, row, session.request(slot).text(), finished, drafted)

    def close(self) -> None:
        """Stop decoding and free the slots; the time until a later step is not the step's."""
        self._steps = None  # nothing else refers to the generator, so this closes it

    def _surviving(self, session: Session) -> Iterator[Step]:
        """The method's steps, in which an exception that concerns one request ends that request alone."""
        while session.rows:
            try:
                yield from session.parts.steps(session, speculative_steps)
            except RowError as error:
                session.cache.discard()
                owner = self.cancel(error.slot)
                assert self._on_row_error is not None
                self._on_row_error(owner, error)


# A function and not a method: engine and session would refer to each other, and the KV cache would stay in
# memory until the next garbage collection.
def _is_done(
    running: Mapping[int, Owner], done: Callable[[Owner, Tensor], bool], slot: int, text: Tensor
) -> bool:
    return done(running[slot], text)
