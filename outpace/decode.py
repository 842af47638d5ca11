"""The file to read first: the decoding loop (draft, verify, commit) and its state, the session."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

import torch
from torch import Tensor

from outpace.core.context import Context
from outpace.core.contracts import Draft, Parts, Prompt, Scores, Step, TargetProbs, Verdict, check_token_ids
from outpace.core.noise import KeyedNoise, Noise
from outpace.core.sampling_params import SamplingParams
from outpace.core.step_timer import StepTimer
from outpace.core.threads import with_torch_threads
from outpace.core.tree import TokenTree

DRAFT_NODES = 256  # draft nodes per row for which the KV cache is allocated initially


def speculative_steps(session: Session) -> Iterator[Step]:
    """Draft, verify and commit until every row is finished; yields the record of each step."""
    parts = session.parts
    while session.rows:
        ctx = session.context()
        plan = parts.controller.plan(ctx).within(ctx.max_draft_depth)
        draft = parts.drafter.propose(ctx, plan)  # draft
        if parts.target.chains_only:
            draft = replace(draft, tree=draft.tree.first_chain())
        session.timer.record("draft")
        scores = parts.target.score(draft.tree, ctx.slots, session.cache, parts.want)  # target forward
        session.timer.record("score")
        target_probs = session.target_probs(scores, draft.tree, ctx)
        verdict = parts.verifier.verify(draft.tree, target_probs, scores, ctx.noise)  # verify
        session.timer.record("verify", warping=target_probs.seconds)
        yield session.commit(ctx, draft, scores, verdict)  # commit


class Session:
    """State of requests decoded as one batch: one slot per request; unfinished slots are a step's rows."""

    def __init__(
        self,
        parts: Parts,
        prompts: Sequence[Tensor],  # B × (T_b,) int64, at least one token each
        sampling: Sequence[SamplingParams],  # one per prompt
        target_probs: Callable[[Scores, TokenTree, Context], TargetProbs],
        *,
        noise: Callable[[Sequence[int], Sequence[int], Sequence[int]], Noise] = KeyedNoise,
        done: Callable[[int, Tensor], bool] | None = None,  # (slot, its tokens so far) -> whether to stop
    ) -> None:
        self.parts, self.sampling, self.target_probs = parts, sampling, target_probs
        self._noise, self._done = noise, done
        check_token_ids(prompts, parts.target.vocab)
        self.lengths = [len(prompt) for prompt in prompts]  # committed tokens per slot, prompt included
        self.prompt_lengths = tuple(self.lengths)
        self._max_lengths = [length + s.max_tokens for length, s in zip(self.lengths, sampling, strict=True)]
        self.history = torch.zeros(len(prompts), max(self._max_lengths), dtype=torch.int64)
        for slot, prompt in enumerate(prompts):
            self.history[slot, : len(prompt)] = prompt
        self._history_array = self.history.numpy()  # numpy view of `history`, faster to write to
        self.cache = parts.target.open(len(prompts), max(self._max_lengths) + DRAFT_NODES)
        self.rows = list(range(len(prompts)))  # slots of the unfinished requests
        self._num_steps, self.timer = [0] * len(prompts), StepTimer()

    def steps(self, loop: Callable[[Session], Iterator[Step]] = speculative_steps) -> Iterator[Step]:
        """Prefill, then run `loop` until all requests are finished; yields the record of each step."""
        return with_torch_threads(self.parts.target.torch_threads, self._steps(loop))

    @torch.inference_mode()  # off while the caller handles a step; a `with` block would stay on between steps
    def _steps(self, loop: Callable[[Session], Iterator[Step]]) -> Iterator[Step]:
        self._release(self.rows)  # discard the state of an earlier session
        try:
            yield from self._prefill()
            yield from loop(self)
        finally:
            self._release(self.rows)  # no rows are left unless decoding was interrupted

    def output(self, slot: int) -> list[int]:
        """The token ids generated in this slot so far, without the prompt."""
        return self.history[slot, self.prompt_lengths[slot] : self.lengths[slot]].tolist()

    def context(self) -> Context:
        """The state of the unfinished rows before the next step. Each call starts a step with new noise."""
        for slot in self.rows:
            self._num_steps[slot] += 1
        return self._context(self.rows, [self.lengths[slot] for slot in self.rows])

    def _context(self, rows: Sequence[int], lengths: Sequence[int]) -> Context:
        self.timer.restart()
        sampling = tuple(self.sampling[slot] for slot in rows)
        return Context(
            tokens=tuple(self.history[slot, :length] for slot, length in zip(rows, lengths, strict=True)),
            committed=tuple(lengths),
            max_draft_depth=tuple(
                self._max_lengths[s] - length - 1 for s, length in zip(rows, lengths, strict=True)
            ),
            slots=tuple(rows),
            cache=self.cache,
            sampling=sampling,
            noise=self._noise([s.seed for s in sampling], [self._num_steps[slot] for slot in rows], lengths),
            prompt_lengths=tuple(self.prompt_lengths[slot] for slot in rows),
        )

    def commit(self, ctx: Context, draft: Draft, scores: Scores, verdict: Verdict) -> Step:
        """Commit each row's accepted path and bonus token, up to a stop token or limit; return the step."""
        forest, tokens = draft.tree.forest, draft.tree.tokens.tolist()
        kept, generated, finished = list[int](), list[list[int]](), list[int]()
        for row, slot in enumerate(ctx.slots):
            path = forest.path(verdict.leaf[row])
            new = [*(tokens[node] for node in path[1:]), verdict.bonus[row]]
            length, stop = self.lengths[slot], self.sampling[slot].stop
            del new[self._max_lengths[slot] - length :]
            del new[next((end for end, token in enumerate(new, 1) if token in stop), len(new)) :]
            kept.append(path[len(new) - 1])
            generated.append(new)
            end = self.lengths[slot] = length + len(new)
            self._history_array[slot, length:end] = new
            at_end = end == self._max_lengths[slot] or new[-1] in stop
            if at_end or (self._done and self._done(slot, self.history[slot, :end])):
                finished.append(slot)
        self.cache.commit(draft.tree, kept, ctx.slots)
        self.timer.record("commit")
        record = Step(ctx, draft, scores, verdict, tuple(kept), tuple(generated), self.timer.seconds)
        return self._observe(record, finished)

    def _observe(self, step: Step, finished: Sequence[int]) -> Step:
        self.parts.drafter.observe(step)
        self.parts.controller.observe(step)
        if finished:
            self.rows = [slot for slot in self.rows if slot not in finished]
            self._release(finished)
        self.timer.record("observe")
        return step

    def _release(self, slots: Sequence[int]) -> None:
        for part in (self.cache, self.parts.drafter, self.parts.controller):
            part.release(slots)

    def _prefill(self) -> Iterator[Step]:
        if not (rows := [slot for slot in self.rows if self.lengths[slot] > 1]):
            return
        ctx = self._context(rows, [1] * len(rows))
        prompts = [self.history[slot, : self.lengths[slot]] for slot in rows]
        inputs, want = list(map(Prompt, prompts)), self.parts.want
        tree, scores = self.parts.target.prefill(inputs, rows, self.cache, want)
        self.timer.record("score")
        leaf = tuple(nodes[-1] for nodes in tree.forest.nodes)
        verdict = Verdict(leaf, [int(prompt[-1]) for prompt in prompts])
        generated = tuple(prompt[1:].tolist() for prompt in prompts)
        yield self._observe(Step(ctx, Draft(tree), scores, verdict, leaf, generated, self.timer.seconds), ())
