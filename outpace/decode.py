"""The file to read first: the decoding loop (draft, verify, commit) and its state, the session."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import torch
from torch import Tensor

from outpace.core.batch import Batch, MakeNoise
from outpace.core.context import Context
from outpace.core.contracts import Draft, MakeTargetProbs, Parts, Scores, Step, Verdict, check_token_ids
from outpace.core.noise import KeyedNoise
from outpace.core.one_step import draft_and_verify, new_tokens
from outpace.core.request_state import RequestState
from outpace.core.sampling_params import SamplingParams
from outpace.core.step_timer import StepTimer
from outpace.core.threads import with_torch_threads

DRAFT_NODES = 256  # draft nodes per row for which the KV cache is allocated initially
PROMPT_TOKENS = 512  # most prompt tokens that one step reads


def speculative_steps(session: Session) -> Iterator[Step]:
    """Draft, verify and commit until every row is finished; yields the record of each step."""
    parts, cache, want = session.parts, session.cache, session.want
    while session.rows:
        if session.prefills and (step := session.prefill()):
            yield step
        ctx = session.context()
        if not ctx.slots:
            continue  # prompts are not read yet
        step = draft_and_verify(parts, ctx, cache, want, session.target_probs, session.timer)
        yield session.commit(ctx, *step)


class Session:
    """Requests that are decoded together, one slot per request; unfinished requests are a step's rows.

    Requests join and leave between steps. A forward reads draft trees and parts of new prompts; where a
    method needs the target's outputs at prompts, these have forwards of their own."""

    def __init__(
        self,
        parts: Parts,
        prompts: Sequence[Tensor],  # B × (T_b,) int64, at least one token each; may be none
        sampling: Sequence[SamplingParams],  # one per prompt
        target_probs: MakeTargetProbs,
        *,
        noise: MakeNoise = KeyedNoise,
        done: Callable[[int, Tensor], bool] | None = None,  # (slot, its tokens so far) -> whether to stop
        prompt_tokens: int = PROMPT_TOKENS,  # most prompt tokens that one step reads
        size: tuple[int, int] = (0, 0),  # smallest KV cache at the beginning: (slots, tokens of a text)
    ) -> None:
        self.parts, self.want, self.target_probs, self._done = parts, parts.want, target_probs, done
        self.prefills = self.want.outputs_at_prompt  # whether prompts have forwards of their own
        lengths = [len(prompt) + s.max_tokens for prompt, s in zip(prompts, sampling, strict=True)]
        self.cache = parts.target.open(max(size[0], len(prompts)), max([size[1], *lengths]) + DRAFT_NODES)
        self.batch = Batch(self.cache, noise, min(prompt_tokens, parts.prompt_part))
        self.timer = StepTimer(self.cache.device)
        for prompt, params in zip(prompts, sampling, strict=True):
            self.add(prompt, params)

    @property
    def rows(self) -> Sequence[int]:
        """Slots of the unfinished requests."""
        return self.batch.rows

    def add(self, prompt: Tensor, sampling: SamplingParams) -> int:  # (T,) int64, T >= 1
        """Add a request; returns its slot. ValueError for token ids beyond the vocabulary."""
        check_token_ids(prompt, self.parts.target.vocab)
        return self.rejoin(RequestState(prompt, sampling))

    def rejoin(self, request: RequestState) -> int:
        """Add a request that was cancelled before its end, with its text; returns its slot."""
        slot = self.batch.next_slot()
        self._end([slot])  # discard the state of an earlier session
        self.batch.add(slot, request)
        return slot

    def cancel(self, slot: int) -> None:
        """End the unfinished request in this slot and free its memory."""
        self._end([slot])

    def request(self, slot: int) -> RequestState:
        """The last request in this slot, also after its end."""
        return self.batch.requests[slot]

    def steps(self, loop: Callable[[Session], Iterator[Step]] | None = None) -> Iterator[Step]:
        """Run `loop`, by default the method's, until all requests are finished; yields each step's record."""
        return with_torch_threads(self.parts.target.torch_threads, self._steps(loop))

    @torch.inference_mode()  # off while the caller handles a step; a `with` block would stay on between steps
    def _steps(self, loop: Callable[[Session], Iterator[Step]] | None) -> Iterator[Step]:
        self.timer.reset()
        try:
            yield from loop(self) if loop else self.parts.steps(self, speculative_steps)
        finally:
            self._end(list(self.rows))  # no rows are left unless decoding was interrupted

    def context(self) -> Context:
        """The state before the next step. Each call starts a step with new noise."""
        self.timer.restart()
        return self.batch.next_step(reads=not self.prefills)

    def commit(self, ctx: Context, draft: Draft, scores: Scores, verdict: Verdict) -> Step:
        """Commit each row's accepted path and bonus token, up to a stop token or limit; return the step."""
        kept, generated, finished = list[int](), list[list[int]](), list[int]()
        for row, slot in enumerate(ctx.slots):
            request, length = self.request(slot), ctx.committed[row]
            if length < request.length:  # the token after the root is known: the row only reads
                kept.append(row)
                generated.append([])
                continue
            room, stop = request.max_length - length, request.sampling.stop
            node, new = new_tokens(draft.tree, verdict, row, room, stop)
            kept.append(node)
            generated.append(new)
            request.append(new)
            at_end = request.length == request.max_length or new[-1] in stop
            if at_end or (self._done and self._done(slot, request.text())):
                finished.append(row)
        self.cache.commit(draft.tree, kept, ctx.slots)
        self.timer.record("commit")
        seconds, ends = self.timer.seconds, tuple(finished)
        return self._observe(Step(ctx, draft, scores, verdict, tuple(kept), tuple(generated), seconds, ends))

    def _observe(self, step: Step) -> Step:
        self.parts.drafter.observe(step)
        self.parts.controller.observe(step)
        if step.finished:
            self._end([step.ctx.slots[row] for row in step.finished])
        self.timer.record("observe")
        return step

    def _end(self, slots: Sequence[int]) -> None:
        for part in (self.batch, self.cache, self.parts.drafter, self.parts.controller):
            part.release(slots)

    def prefill(self) -> Step | None:
        """Read the next part of the prompts in a forward of its own; None if all are read."""
        self.timer.restart()
        ctx, prompts = self.batch.next_prefill()
        if not prompts:
            return None
        tree, scores = self.parts.target.prefill(prompts, ctx.slots, self.cache, self.want)
        self.timer.settle("score")
        return self._observe(Step.of_prefill(ctx, prompts, tree, scores, self.timer.seconds))
