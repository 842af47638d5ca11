"""The file to read first: a session holds sequences being decoded, and the loop drafts, verifies and commits.

Everything else in the package is a part that this loop calls; it knows nothing but `core`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from time import perf_counter

import torch
from torch import Tensor

from outpace.core.context import Context
from outpace.core.contracts import Draft, Parts, Prompt, Scores, Step, TargetProbs, Verdict
from outpace.core.noise import KeyedNoise, Noise
from outpace.core.sampling_params import SamplingParams
from outpace.core.tree import TokenTree

NODES = 256  # of one row's tree, for which the cache has room from the start


def sequential(session: Session) -> Iterator[Step]:
    """Draft, verify, commit, until every row is done."""
    parts = session.parts
    while session.rows:
        ctx = session.context()
        plan = parts.controller.plan(ctx).within(ctx.room)
        draft = parts.drafter.propose(ctx, plan)  # draft
        session.lap("draft")
        scores = parts.target.score(
            draft.tree, ctx.slots, session.cache, parts.want
        )  # verify: one forward ...
        session.lap("score")
        target_probs = session.target_probs(scores, draft.tree, ctx)
        verdict = parts.verifier.verify(draft.tree, target_probs, scores, ctx.noise)  # ... one rule
        session.lap("verify", target_probs.seconds)
        yield session.commit(ctx, draft, scores, verdict)  # commit


class Session:
    """Sequences being decoded together: row b of a step is the b-th unfinished one, kept in a slot of its own."""

    def __init__(
        self,
        parts: Parts,
        prompts: Sequence[Tensor],  # B × (T_b,) int64, at least one token each
        sampling: Sequence[SamplingParams],
        target_probs: Callable[[Scores, TokenTree, Context], TargetProbs],
        *,
        noise: Callable[[Sequence[int], Sequence[int], Sequence[int]], Noise] = KeyedNoise,
        done: Callable[[int, Tensor], bool]
        | None = None,  # (slot, its tokens) -> stop here; asked after every commit
    ) -> None:
        self.parts, self.sampling, self.target_probs, self._noise, self._done = (
            parts,
            sampling,
            target_probs,
            noise,
            done,
        )
        self.lengths = [len(prompt) for prompt in prompts]
        self.prompt_lengths = tuple(self.lengths)
        self._ends = [length + s.max_tokens for length, s in zip(self.lengths, sampling, strict=True)]
        self.history = torch.zeros(len(prompts), max(self._ends), dtype=torch.int64)
        for slot, prompt in enumerate(prompts):
            self.history[slot, : len(prompt)] = prompt
        self._numbers = self.history.numpy()  # the same memory, written to several times faster
        self.cache = parts.target.open(len(prompts), max(self._ends) + NODES)
        self.rows = list(range(len(prompts)))
        self._turns = [0] * len(prompts)
        self._seconds: dict[str, float] = {}
        self._clock = perf_counter()

    def steps(self) -> Iterator[Step]:
        """Read the prompts, then run the recipe's schedule to the end."""
        steps = self._steps()
        around = getattr(self.parts.target, "around", None)  # a target may say what steps are made in
        return around(steps) if around else steps

    @torch.inference_mode()  # on while a step is made, off between two of them: a `with` would stay on there
    def _steps(self) -> Iterator[Step]:
        self._release(self.rows)  # whatever an earlier session left in these slots
        try:
            yield from self._prefill()
            yield from (self.parts.schedule or sequential)(self)
        finally:
            self._release(self.rows)  # rows left when decoding was interrupted; none otherwise

    def output(self, slot: int) -> list[int]:
        """The tokens generated in this slot so far."""
        return self.history[slot, self.prompt_lengths[slot] : self.lengths[slot]].tolist()

    def context(self) -> Context:
        """What is known now; every context handed out starts a new turn, so its noise is fresh."""
        rows = self.rows
        for slot in rows:
            self._turns[slot] += 1
        return self._context(rows, [self.lengths[slot] for slot in rows])

    def _context(self, rows: Sequence[int], lengths: Sequence[int]) -> Context:
        self._clock, self._seconds = perf_counter(), {}
        sampling = tuple(self.sampling[slot] for slot in rows)
        return Context(
            tokens=tuple(self.history[slot, :length] for slot, length in zip(rows, lengths, strict=True)),
            committed=tuple(lengths),
            room=tuple(self._ends[slot] - length - 1 for slot, length in zip(rows, lengths, strict=True)),
            slots=tuple(rows),
            cache=self.cache,
            sampling=sampling,
            noise=self._noise([s.seed for s in sampling], [self._turns[slot] for slot in rows], lengths),
            prompt_lengths=tuple(self.prompt_lengths[slot] for slot in rows),
        )

    def lap(self, name: str, warping: float = 0.0) -> None:
        """Book the time since the last lap under this name, less what was spent on warping the distribution."""
        now = perf_counter()
        self._seconds[name] = now - self._clock - warping
        if warping:
            self._seconds["warp"] = warping
        self._clock = now

    def commit(self, ctx: Context, draft: Draft, scores: Scores, verdict: Verdict) -> Step:
        """Append path and bonus to each row, cut at stop tokens and limits, keep the path, tell the parts."""
        forest, tokens = draft.tree.forest, draft.tree.tokens.tolist()
        kept: list[int] = []
        generated: list[list[int]] = []
        finished: list[int] = []
        for row, slot in enumerate(ctx.slots):
            path = forest.path(verdict.leaf[row])
            new = [*(tokens[node] for node in path[1:]), verdict.bonus[row]]
            length, stop = self.lengths[slot], self.sampling[slot].stop
            del new[self._ends[slot] - length :]
            for index, token in enumerate(new):
                if token in stop:
                    del new[index + 1 :]
                    break
            kept.append(path[len(new) - 1])
            generated.append(new)
            end = self.lengths[slot] = length + len(new)
            self._numbers[slot, length:end] = new
            ended = end == self._ends[slot] or new[-1] in stop
            if ended or (self._done and self._done(slot, self.history[slot, :end])):
                finished.append(slot)
        self.cache.commit(draft.tree, kept, ctx.slots)
        self.lap("commit")
        return self._tell(
            Step(ctx, draft, scores, verdict, tuple(kept), tuple(generated), self._seconds), finished
        )

    def _tell(self, step: Step, finished: Sequence[int]) -> Step:
        self.parts.drafter.observe(step)
        self.parts.controller.observe(step)
        if finished:
            self.rows = [slot for slot in self.rows if slot not in finished]
            self._release(finished)
        self.lap("observe")
        return step

    def _release(self, slots: Sequence[int]) -> None:
        for part in (self.cache, self.parts.drafter, self.parts.controller):
            part.release(slots)

    def _prefill(self) -> Iterator[Step]:
        rows = [slot for slot in self.rows if self.lengths[slot] > 1]
        if not rows:
            return
        ctx = self._context(rows, [1] * len(rows))
        prompts = [self.history[slot, : self.lengths[slot]] for slot in rows]
        tree, scores = self.parts.target.prefill(
            [Prompt(p) for p in prompts], rows, self.cache, self.parts.want
        )
        self.lap("score")
        leaf = tuple(nodes[-1] for nodes in tree.forest.nodes)
        verdict = Verdict(leaf, [int(prompt[-1]) for prompt in prompts])
        generated = tuple(prompt[1:].tolist() for prompt in prompts)
        yield self._tell(Step(ctx, Draft(tree), scores, verdict, leaf, generated, self._seconds), ())
