"""A target made of two models, one of which writes each token.

Letters: T tokens of one forward, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from weakref import ref

import torch
from torch import Tensor

from outpace.core.contracts import NOTHING, Cache, Carry, Prompt, Scores, Target, Want
from outpace.core.row_error import text_beyond_draft
from outpace.core.tree import TokenTree
from outpace.drafters.model.draft_reader import check_logits
from outpace.recipes.relaxed.ead.routed_cache import RoutedCache, Work
from outpace.recipes.relaxed.ead.routing import Route, Routing, entropy_in_bits

AT_ONCE = 128  # committed tokens whose logits over the vocabulary are in memory at the same time


@dataclass
class Reading:
    """A text, of whose last tokens the logits are computed one stretch after the other."""

    text: list[int]  # with the draft
    certain: int  # number of its first tokens that are committed; the next one is the root
    prompt_length: int
    place: int  # index of the first token whose logits are not known yet
    route: Route  # where the text stands before that token
    logits: list[Tensor] = field(default_factory=list[Tensor])  # (1, V) each, of the tokens before `place`
    # where the text stood before and after each of these tokens; the same object where the distribution
    # after a token decides nothing, as within a prompt
    scored: list[tuple[Route, Route]] = field(default_factory=list[tuple[Route, Route]])

    @property
    def is_read(self) -> bool:
        return self.place == len(self.text)

    @property
    def next_end(self) -> int:
        """End of the tokens that the next forward reads. A draft is not divided."""
        end = self.place + AT_ONCE
        return end if end <= self.certain else len(self.text)

    @property
    def before_root(self) -> Route:
        """Where the text stands before the root."""
        return self.scored[self.certain - len(self.text)][0]

    def read(self, routing: Routing, logits: Tensor, entropies: Sequence[float]) -> None:  # (T, V), (T,)
        """Take a model's outputs from `place` on, up to the token after which the other model goes on."""
        model = self.route.large
        for row, entropy in zip(logits.split(1), entropies, strict=True):
            if self.route.large != model:
                return
            after = self.route
            if self.place >= self.prompt_length - 1:
                after = routing.after(after, entropy)
            self.scored.append((self.route, after))
            self.logits.append(row)
            self.route, self.place = after, self.place + 1


class RoutedTarget:
    """Implementation of core.contracts.Target: the logits after a text are those of the small or the large
    model, as the entropies of the distributions after the prompt and after each new token decide.

    A model reads what the other has written in the forward in which it goes on. The decisions follow from
    prompt and text: where a text is read again, as after a preemption, the entropies at its new tokens are
    computed again, by the same models. A draft is a chain, which both models read where a switch is in it.
    """

    chains_only = True
    sizes: Sequence[int] = ()
    chain_sizes: Sequence[int] = ()

    def __init__(self, small: Target, large: Target, routing: Routing) -> None:
        """ValueError for models with different vocabularies."""
        if small.vocab != large.vocab:
            raise ValueError(
                f"the small model has {small.vocab} tokens and the large one {large.vocab}: both write one "
                "text, so use two models with one tokenizer"
            )
        self._small, self._large, self._routing = small, large, routing
        self.vocab = large.vocab
        limits = [model.max_length for model in (small, large) if model.max_length is not None]
        self.max_length = min(limits, default=None)
        self.token_bytes, self.state_bytes = large.token_bytes, large.state_bytes
        self.work = Work(), Work()  # of the small and of the large model
        self._caches: list[ref[RoutedCache]] = []

    @property
    def torch_threads(self) -> int | None:
        """Number of torch threads during a session's steps: the lower of both models'."""
        counts = [model.torch_threads for model in (self._small, self._large)]
        return min((count for count in counts if count is not None), default=None)

    @property
    def caches(self) -> list[RoutedCache]:
        return [cache for each in self._caches if (cache := each()) is not None]

    def open(self, slots: int, capacity: int) -> RoutedCache:
        cache = RoutedCache((self._small, self._large), self.work, slots, capacity)
        self._caches = [ref(opened) for opened in (*self.caches, cache)]
        return cache

    def prefill(
        self, prompts: Sequence[Prompt], slots: Sequence[int], cache: Cache, want: Want
    ) -> tuple[TokenTree, Scores]:
        """The small model's outputs at these tokens, as it is the one that reads prompts."""
        assert isinstance(cache, RoutedCache)
        found = self._small.prefill(prompts, slots, cache.models[False].cache, want)
        for prompt, slot in zip(prompts, slots, strict=True):
            cache.add(slot, prompt.tokens[:-1].tolist(), cache.routes[slot])
        return found

    def score(
        self,
        tree: TokenTree,
        slots: Sequence[int],
        cache: Cache,
        want: Want = NOTHING,
        *,
        gap: Sequence[Tensor] | None = None,
        carry: Carry | None = None,
    ) -> Scores:
        """ValueError for a tree that is no chain, and for outputs other than logits, which two models do not
        share; TextTooLong for a committed text that the small model cannot read."""
        assert isinstance(cache, RoutedCache)
        if not tree.forest.is_chain:
            raise ValueError("ead scores chains only: draft one token a level, as prompt-lookup does")
        if want.hidden or want.attention:
            raise ValueError(
                "ead writes with two models, whose layers differ: use a method that reads no hidden states "
                "or attention of its target"
            )
        cache.discard()
        tokens, nodes = tree.token_list(), tree.forest.nodes
        readings = dict[int, Reading]()
        for row, slot in enumerate(slots):
            before = [*cache.texts[slot], *([] if gap is None else gap[row].tolist())]
            if self._small.max_length is not None and len(before) >= self._small.max_length:
                raise text_beyond_draft(slot, self._small.max_length)
            begin = min(max(cache.lengths[slot], cache.prompt_lengths[slot] - 1), len(before))
            text = [*before, *(tokens[node] for node in nodes[row])]
            readings[slot] = Reading(text, len(before), cache.prompt_lengths[slot], begin, cache.routes[slot])
        while not all(reading.is_read for reading in readings.values()):
            for large in (False, True):
                self._read(large, readings, cache)
        logits = list[Tensor]()
        for row, slot in enumerate(slots):
            reading = readings[slot]
            cache.add(slot, reading.text[cache.lengths[slot] : reading.certain], reading.before_root)
            cache.scored |= zip(nodes[row], reading.scored[-len(nodes[row]) :], strict=True)
            logits += reading.logits[-len(nodes[row]) :]
        order = sorted(range(len(tree)), key=[node for row in nodes for node in row].__getitem__)
        return Scores(0, torch.cat([logits[place].to(cache.device) for place in order]))

    def _read(self, large: bool, readings: Mapping[int, Reading], cache: RoutedCache) -> None:
        """One forward of a model over the texts that it goes on with."""
        own = {
            slot: each for slot, each in readings.items() if not each.is_read and each.route.large == large
        }
        if not own:
            return
        texts = {slot: each.text[: each.next_end] for slot, each in own.items()}
        # a model keeps what it reads before these, so no draft tokens; and nothing behind them, as it may
        # have read on where the other model has written since
        begins = {slot: min(each.place, each.certain) for slot, each in readings.items()}
        logits = cache.models[large].read(texts, begins)
        if not large:  # those of the target are checked where it is sampled from
            check_logits(torch.cat(list(logits.values())))
        logits = {slot: rows[own[slot].place - begins[slot] :] for slot, rows in logits.items()}
        entropies = iter(entropy_in_bits(torch.cat(list(logits.values()))).tolist())
        for slot, each in own.items():
            each.read(self._routing, logits[slot], list(islice(entropies, len(logits[slot]))))
