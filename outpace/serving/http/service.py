"""What the routes share: the engine, the tokenizer and the limits of a request."""

from __future__ import annotations

import copy
import random
from collections.abc import Collection, Mapping, Sequence
from types import MappingProxyType
from typing import Any

from outpace.api.model import Model
from outpace.api.prompts import Prompt, encode, encode_predictions
from outpace.api.settings import generation_overrides, only_ends, resolve_settings
from outpace.api.stop_strings import all_special_tokens
from outpace.core.contracts import Parts
from outpace.core.noise import derived
from outpace.drafters.lookup.prediction import check_predictable
from outpace.sampling.thinking import ThinkingTags
from outpace.serving.engine_thread import STUCK_SECONDS, EngineThread
from outpace.serving.http.errors import ApiError, bad_request
from outpace.serving.http.infill import infill
from outpace.serving.http.logprob_formats import TokenBytes
from outpace.serving.http.metrics import Metrics
from outpace.serving.http.preparation import Preparation, check_schema
from outpace.serving.http.prompt_length import LeastTokens
from outpace.serving.http.reasoning.formats import reasoning_of
from outpace.serving.http.reasoning.thinking import Thinking
from outpace.serving.http.schemas.fields import MAX_SAMPLES, SamplingBody, Speculation
from outpace.serving.http.schemas.structured import Constraint
from outpace.serving.http.tool_calls.formats import format_of
from outpace.serving.methods import MAX_LENGTH
from outpace.serving.request import GenerationRequest
from outpace.serving.scheduler import Scheduler


class Service:
    """One model and the methods by which its requests are drafted."""

    def __init__(
        self,
        model: Model,
        methods: Mapping[str, Parts],  # by name; the first drafts requests that name none
        *,
        name: str,  # under which the model is served
        chat_template: str | None = None,  # in place of the model's own
        use_defaults: bool = True,  # apply the sampling settings of the checkpoint's generation_config.json
        overrides: Mapping[str, Any] | None = None,  # sampling defaults by their names in that file
        max_length: int | None = None,  # tokens of prompt and output; None: as many as the model reads
        max_rows: int = 16,  # most requests that are decoded at the same time
        max_waiting: int = 1024,  # most requests in the queue
        kv_bytes: int | None = None,  # memory for the KV caches of target and drafts; None: no limit
        prefix_cache: bool = True,  # reuse the KV entries of texts with the same beginning
        tool_call_parser: str | None = None,  # name of the format of calls; None: the chat template's
        reasoning_parser: str | None = None,  # name of the format of reasoning; None: the chat template's
        stuck_seconds: float = STUCK_SECONDS,  # time of a step from which the engine counts as stuck
    ) -> None:
        """ValueError for a model without a tokenizer or with defaults that are not supported, for an unknown
        parser, and for too little memory."""
        if model.tokenizer is None:
            raise ValueError("a server needs a tokenizer: choose a model that comes with one")
        self.name, self.vocab = name, model.target.vocab
        self.methods = tuple(methods)
        self._parts = next(iter(methods.values()))  # those that state a reference are served alone
        self.max_length = max_length or model.max_length or MAX_LENGTH
        self.tokenizer = copy.deepcopy(model.tokenizer)  # the model's own is used in the engine's thread
        if chat_template is not None:
            self.tokenizer.chat_template = chat_template
        self.has_chat_template = bool(getattr(self.tokenizer, "chat_template", None))
        self.call_format = format_of(self.tokenizer, tool_call_parser)
        self.reasoning = reasoning_of(self.tokenizer, reasoning_parser)
        self.preparation = Preparation()
        self._defaults = model.defaults if use_defaults else only_ends(model.defaults)
        self._overrides = generation_overrides(overrides or {})
        self._most_tokens = self._overrides.pop("max_tokens", None)  # of an answer
        self.bytes_of = TokenBytes(self.tokenizer, self.vocab)
        self._least_tokens = LeastTokens(self.bytes_of, self.vocab)
        self.thinking_tags = self._thinking_tags()
        self.metrics = Metrics(name)
        given = {"temperature": 1.0, "max_tokens": self._most_tokens} | self._overrides
        try:  # refuses settings that are not supported
            resolve_settings(given, self._defaults, self.tokenizer, most_tokens=self.max_length)
        except TypeError as error:
            raise ValueError(str(error)) from error
        scheduler = Scheduler(
            methods,
            max_rows=max_rows,
            drafts=[each.target for each in model.drafts.values()]
            + [each.model for each in model.heads.values() if each.model is not None],
            kv_bytes=kv_bytes,
            prefix_cache=prefix_cache,
            on_step=self.metrics.step,  # before clients see a step: its counts are there when they ask
        )
        self.engine = EngineThread(
            scheduler, model.tokenizer, max_waiting=max_waiting, stuck_seconds=stuck_seconds
        )
        self.metrics.watch(self.engine, scheduler)

    def check_model(self, name: str | None) -> None:
        """ApiError unless the name is None or that of the served model."""
        if name not in (None, self.name):
            raise ApiError(
                404,
                f"there is no model {name!r} here: use {self.name}",
                param="model",
                code="model_not_found",
            )

    def encode(
        self,
        prompt: Prompt,
        param: str,
        tools: Sequence[Mapping[str, Any]] | None = None,
        template: Mapping[str, Any] = MappingProxyType({}),  # arguments of apply_chat_template
        *,
        suffix: str = "",  # the answer is to stand between the prompt and it
    ) -> list[int]:
        """Token ids of a text, of messages or of token ids. ApiError, which names `param`, for an invalid
        prompt or one that leaves no place for an answer."""

        def check(text: str) -> None:
            self._check_length(text, param)

        try:
            tokens = encode(
                self.tokenizer, prompt, self.vocab, param, tools=tools, template=template, check=check
            )
        except ValueError as error:
            raise bad_request(error, {}, param) from error
        if suffix:
            self._check_length(suffix, "suffix")
            try:
                tokens = infill(self.tokenizer, tokens, suffix)
            except ValueError as error:
                raise bad_request(error, {}, "suffix") from error
        if len(tokens) >= self.max_length:
            raise self._too_long(str(len(tokens)), param)
        return tokens

    def _thinking_tags(self) -> ThinkingTags | None:
        """The tags around reasoning in the model's tokens; None if it has none."""
        tags = self.reasoning
        if tags is None:
            return None
        names = {text: token for token, text in all_special_tokens(self.tokenizer).items()}
        shown = {names[tag]: tag.encode() for tag in (tags.start, tags.end) if tag in names}

        def bytes_of(token: int) -> bytes:
            return shown[token] if token in shown else self.bytes_of.in_text(token)

        return ThinkingTags(tags.start, tags.end, self.tokenizer, bytes_of, self.vocab)

    def tokens(self, text: str, *, add_special_tokens: bool) -> list[int]:
        """Token ids of a text of any length."""
        return self.tokenizer(text, add_special_tokens=add_special_tokens, verbose=False)["input_ids"]

    def _check_length(self, text: str, param: str) -> None:
        """ApiError for a text that is too long in any case, before it is tokenized."""
        if least := self._least_tokens.exceeds(text, self.max_length):
            raise self._too_long(f"at least {least}", param)

    def _too_long(self, num_tokens: str, param: str) -> ApiError:
        sentence = f"{param} has {num_tokens} tokens, but the model reads at most {self.max_length}"
        return ApiError(400, f"{sentence}: shorten it", param=param, code="context_length_exceeded")

    def requests(
        self,
        body: SamplingBody,
        prompts: Sequence[Sequence[int]],  # token ids, shorter than `max_length`
        *,
        n: int = 1,  # samples per prompt
        num_top: int | None = None,  # number of most probable tokens per Logprob; None: no log probabilities
        prediction: str | None = None,  # the predicted output
        json_schema: Mapping[str, Any] | None = None,  # which the output follows, in `body.schema_field`
        include_steps: bool = False,  # pieces have the records of their steps
        shown: Collection[str] = (),  # special tokens that the text has
        thinking: Thinking | None = None,  # reasoning before the output
        num_prompt_top: int | None = None,  # as num_top, for the tokens of the prompts
        generates: bool = True,  # False: only the prompts are read
    ) -> list[GenerationRequest]:
        """The samples of a request, those of a prompt one after another. ApiError for invalid values. It may
        take long: it encodes the prediction and compiles the schema."""
        if num_prompt_top is not None and body.stream:
            raise ApiError(
                400, "log probabilities of a prompt are not streamed: leave out stream", param="stream"
            )
        limit_name, limit = body.token_limit
        if self._most_tokens is not None:
            limit = self._most_tokens if limit is None else min(limit, self._most_tokens)
        given = {"max_tokens": limit} | self._overrides
        if limit is not None and "min_tokens" in given:
            given["min_tokens"] = min(given["min_tokens"], limit)
        given |= body.sampling()
        if "temperature" not in given and not getattr(self._defaults, "do_sample", None):
            given["temperature"] = 1.0  # the default of OpenAI's API
        if len(prompts) * n > MAX_SAMPLES:
            raise ApiError(
                400, f"prompts times n is {len(prompts) * n}; use at most {MAX_SAMPLES}", param="n"
            )
        constraints = body.constraints
        if json_schema is not None:
            constraints = [Constraint(body.schema_field or "", "json", json_schema), *constraints]
        if len(constraints) > 1:
            both = " and ".join(each.field for each in constraints[:2])
            sentence = f"{both} cannot be followed by one text: give one of them"
            raise ApiError(400, sentence, param=constraints[1].field)
        try:
            followed = dict[str, Any]()
            for constraint in constraints:
                check_schema(constraint.value, constraint.field)
                followed = constraint.for_settings()
                for value in followed.values():
                    check_schema(value, constraint.field)
            settings = resolve_settings(
                given,
                self._defaults,
                self.tokenizer,
                vocab=self.vocab,
                most_tokens=self.max_length,
                stop=body.stop,
                ignore_eos=bool(body.ignore_eos),
                shown=shown,
                stop_token_ids=body.stop_token_ids or (),
                # arguments of a call are JSON
                include_stop_str_in_output=bool(body.include_stop_str_in_output)
                and body.schema_field != "tools",
                skip_special_tokens=body.skip_special_tokens is not False,
                **followed,
            )
            if thinking is not None:
                settings = thinking.restrict(settings, self.vocab)
            settings.check_samples(n)
            free = [settings.free_length(len(prompt), self.max_length) for prompt in prompts]
        except (ValueError, TypeError) as error:
            field = constraints[0].field if constraints else ""
            names = {"max_tokens": limit_name, "json_schema": field, "grammar": field}
            raise bad_request(error, type(body).model_fields, names=names) from error
        method, depth = self._speculation(body.speculation)
        self._check_length(prediction or "", "prediction")
        try:
            [predicted] = encode_predictions(self.tokenizer, prediction, 1, self.vocab)
            if predicted:
                check_predictable(self._parts)
        except ValueError as error:
            raise bad_request(error, {}, "prediction") from error
        seed = random.getrandbits(32) if body.seed is None else body.seed
        return [
            GenerationRequest(
                prompt,
                settings,
                max_new_tokens,
                derived(seed, sample),
                num_top,
                predicted,
                method,
                depth,
                include_steps,
                num_prompt_top,
                generates,
            )
            for prompt, max_new_tokens in zip(prompts, free, strict=True)
            for sample in range(n)
        ]

    def _speculation(self, given: bool | Speculation | None) -> tuple[str | None, int | None]:
        """The method of a request and its largest draft depth."""
        if not isinstance(given, Speculation):
            return None, 0 if given is False else None
        if given.method is not None and given.method not in self.methods:
            known = ", ".join(self.methods)
            sentence = f"speculation.method is {given.method!r}; this server has {known}"
            raise ApiError(400, sentence, param="speculation.method")
        return given.method, given.num_speculative_tokens
