"""POST /tokenize and /detokenize, as at vLLM's server."""

from __future__ import annotations

import asyncio
from typing import Any

from fastapi import APIRouter

from outpace.serving.http.errors import ApiError
from outpace.serving.http.schemas.tokenization import DetokenizeBody, TokenizeBody
from outpace.serving.http.service import Service


def tokenization(service: Service) -> APIRouter:
    """The routes between text and token ids."""
    router = APIRouter()

    @router.post("/tokenize")
    async def tokenize(body: TokenizeBody) -> dict[str, Any]:
        service.check(body)
        if body.messages:
            messages = [message.for_template() for message in body.messages]
            tokens = await asyncio.to_thread(service.encode, messages, "messages")
        else:
            encoded = await asyncio.to_thread(
                service.tokenizer, body.prompt, add_special_tokens=body.add_special_tokens, verbose=False
            )
            tokens = encoded["input_ids"]
        return {"count": len(tokens), "max_model_len": service.max_length, "tokens": tokens}

    @router.post("/detokenize")
    async def detokenize(body: DetokenizeBody) -> dict[str, Any]:
        service.check(body)
        wrong = next((token for token in body.tokens if not 0 <= token < service.vocab), None)
        if wrong is not None:
            sentence = f"tokens has {wrong}, but the model's tokens are 0 to {service.vocab - 1}"
            raise ApiError(400, sentence, param="tokens")
        return {"prompt": await asyncio.to_thread(service.tokenizer.decode, body.tokens)}

    return router
