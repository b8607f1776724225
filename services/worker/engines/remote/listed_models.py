"""The lists of models that vLLM and SGLang serve, and other answers that their servers share."""

from urllib.parse import urlsplit

from msgspec import Struct

from services.worker.engines.remote.http import ServerHttp


class TokenizedText(Struct):
    """The ids of a text."""

    tokens: list[int]


class ListedModel(Struct):
    """A model in the list of a server."""

    id: str
    root: str | None = None
    parent: str | None = None
    """The model of a LoRA adapter; None: it is none."""
    max_model_len: int | None = None


class _Models(Struct):
    data: list[ListedModel]


async def list_models(http: ServerHttp) -> list[ListedModel]:
    """The model under each of its names, and its LoRA adapters, also those loaded since the start:
    `/v1/models` of vLLM 0.32.0 (`entrypoints/openai/models/serving.py`) and SGLang 0.5.23
    (`srt/entrypoints/http_server.py`). Raises Unreachable, HttpRefusal."""
    models: _Models = await http.json("/v1/models", kind=_Models)
    return models.data


async def list_adapters(http: ServerHttp) -> list[str]:
    """The names of the LoRA adapters among them. Raises as `list_models`."""
    return [model.id for model in await list_models(http) if model.parent is not None]


def event_host(url: str) -> str:
    """The host of a server in the ZMQ address of its KV events."""
    host = urlsplit(url).hostname or ""
    return f"[{host}]" if ":" in host else host
