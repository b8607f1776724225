"""What a running frontend says of the models that it serves: asked by the commands that set clients up."""

import urllib.error
import urllib.parse
import urllib.request
from typing import Any

import msgspec
from msgspec import Struct

TIMEOUT_S = 10.0
DEFAULT_URL = "http://127.0.0.1:8000"


class CannotAsk(Exception):
    """The server did not answer, or not with models. The text says what to do about it."""


class ServedModel(Struct, frozen=True):
    """One name of a model, and the limits that a client should keep to. Tokens; 0: not told."""

    id: str
    max_model_len: int | None = None
    max_output_tokens: int | None = None
    root: str = ""
    """The name that the model itself has."""
    capabilities: dict[str, Any] = {}

    @property
    def window(self) -> int:
        """Context window in tokens, prompt and output together; 0: not told."""
        return self.max_model_len or 0

    @property
    def longest(self) -> int:
        """Longest answer in tokens; 0: not told."""
        return self.max_output_tokens or self.window

    @property
    def thinks(self) -> bool:
        """Whether it reasons before it answers."""
        return self.can("thinking")

    def can(self, what: str) -> bool:
        """Whether the server says that the model can do this."""
        said = self.capabilities.get(what)
        return isinstance(said, dict) and said.get("supported") is True


class Served(Struct, frozen=True):
    """A server and its models."""

    url: str
    """Without a trailing slash or `/v1`."""
    models: list[ServedModel]
    catalogue: list[dict[str, Any]]
    """Codex' entries of the same models."""

    def choose(self, name: str | None) -> ServedModel:
        """The model of that name, or the first one. Raises CannotAsk."""
        for model in self.models:
            if name is None or model.id == name:
                return model
        known = ", ".join(model.id for model in self.models)
        raise CannotAsk(f"{self.url} serves no {name}; it serves: {known}" if known else f"{self.url} serves no model")


class _Document(Struct):
    data: list[ServedModel]
    models: list[dict[str, Any]] = []


def base_url(given: str) -> str:
    """A server's address as a person may write it, without what belongs to one API. Raises CannotAsk."""
    url = given if "//" in given else f"http://{given}"
    parts = urllib.parse.urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.netloc:
        raise CannotAsk(f"{given} is no http address")
    return url.rstrip("/").removesuffix("/v1").rstrip("/")


def ask(given: str, key: str | None) -> Served:
    """Asks a server for its models. Raises CannotAsk."""
    url = base_url(given)
    request = urllib.request.Request(f"{url}/v1/models", headers={"authorization": f"Bearer {key}"} if key else {})
    # A proxy of the environment is not asked for an address of this machine.
    local = urllib.parse.urlsplit(url).hostname in ("127.0.0.1", "localhost", "::1")
    opener = urllib.request.build_opener(*([urllib.request.ProxyHandler({})] if local else []))
    try:
        with opener.open(request, timeout=TIMEOUT_S) as answer:
            document = msgspec.json.decode(answer.read(), type=_Document)
    except urllib.error.HTTPError as error:
        if error.code in (401, 403):
            raise CannotAsk(f"{url} wants a key: give one of its own with --key") from None
        raise CannotAsk(f"{url}/v1/models answers {error.code}") from None
    except (OSError, ValueError) as error:
        why = getattr(error, "reason", error)
        raise CannotAsk(f"no Turnwire answers at {url} ({why}); start one with `turnwire up`, or give --url") from None
    return Served(url, document.data, document.models)
