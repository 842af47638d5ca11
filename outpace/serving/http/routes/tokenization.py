"""POST /tokenize and /detokenize, as at vLLM's server."""

from __future__ import annotations

from functools import partial
from typing import Any

from fastapi import APIRouter, Request

from outpace.serving.http.errors import ApiError
from outpace.serving.http.schemas.tokenization import DetokenizeBody, TokenizeBody
from outpace.serving.http.service import Service


def tokenization(service: Service) -> APIRouter:
    """The routes between text and token ids."""
    router = APIRouter()

    @router.post("/tokenize")
    async def tokenize(body: TokenizeBody, request: Request) -> dict[str, Any]:
        service.check_model(body.model)
        if body.messages:
            messages = [message.for_template() for message in body.messages]
            work = partial(service.encode, messages, "messages")
        else:
            special = body.add_special_tokens
            work = partial(service.tokens, body.prompt or "", add_special_tokens=special)
        tokens = await service.preparation.run(work, len(await request.body()))
        return {"count": len(tokens), "max_model_len": service.max_length, "tokens": tokens}

    @router.post("/detokenize")
    async def detokenize(body: DetokenizeBody, request: Request) -> dict[str, Any]:
        service.check_model(body.model)
        wrong = next((token for token in body.tokens if not 0 <= token < service.vocab), None)
        if wrong is not None:
            sentence = f"tokens has {wrong}, but the model's tokens are 0 to {service.vocab - 1}"
            raise ApiError(400, sentence, param="tokens")
        work = partial(service.tokenizer.decode, body.tokens)
        return {"prompt": await service.preparation.run(work, len(await request.body()))}

    return router
