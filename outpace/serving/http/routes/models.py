"""GET /v1/models: the model that is served."""

from __future__ import annotations

import time
from typing import Any

from fastapi import APIRouter

from outpace.serving.http.service import Service


def models(service: Service) -> APIRouter:
    """The routes of the model list."""
    router = APIRouter()
    model = {
        "id": service.name,
        "object": "model",
        "created": int(time.time()),
        "owned_by": "outpace",
        "max_model_len": service.max_length,  # tokens of prompt and output; vLLM's name
        "methods": service.methods,  # names that `speculation.method` takes
        "chat": service.has_chat_template,  # whether it answers messages, or only continues texts
    }

    @router.get("/v1/models")
    async def list_models() -> dict[str, Any]:
        return {"object": "list", "data": [model]}

    @router.get("/v1/models/{name:path}")
    async def show_model(name: str) -> dict[str, Any]:
        service.check_model(name)
        return model

    return router
