"""Reads the list of models from a running server, for the commands that set clients up."""

import http.client
import ssl
import urllib.error
import urllib.parse
import urllib.request
from typing import Any

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from services.cli.common import CommandError

TIMEOUT_S = 10.0
LONGEST_ANSWER = 32_000
"""Most output tokens that are set for a client. opencode compacts at the window minus its limit."""


class ServerError(CommandError):
    """The server does not answer, or does not serve the model. The text has a remedy."""


class ServedModel(Struct, frozen=True):
    """A model name, with its limits in tokens. None or 0: unknown."""

    id: str
    max_model_len: int | None = None
    max_output_tokens: int | None = None
    capabilities: dict[str, Any] = {}

    @property
    def window(self) -> int:
        """The context window: prompt and output together."""
        return self.max_model_len or 0

    @property
    def longest(self) -> int:
        """The longest answer."""
        return self.max_output_tokens or self.window

    def output_in(self, window: int) -> int:
        """The longest answer for a client that reserves room for it in a window: a quarter at
        most."""
        return min(LONGEST_ANSWER, self.longest or window, max(1, window // 4))

    def supports(self, *path: str) -> bool:
        """Whether the server lists a capability as supported. A path names one within another."""
        entry: Any = self.capabilities
        for name in path:
            entry = entry.get(name) if isinstance(entry, dict) else None
        return isinstance(entry, dict) and entry.get("supported") is True


class Server(Struct, frozen=True, rename={"models": "data", "catalogue": "models"}):
    """A server and its models, as its `/v1/models` lists them."""

    models: list[ServedModel]
    catalogue: list[dict[str, Any]] = []
    """The entries of Codex' catalogue for the same models."""
    url: str = ""
    """Without a trailing slash or `/v1`."""
    has_key: bool = False
    """The models are those that a key may use."""

    def choose(self, name: str | None) -> ServedModel:
        """The model with this name; for None, the first one. Raises ServerError."""
        for model in self.models:
            if name is None or model.id == name:
                return model
        self.require_models()
        names = ", ".join(model.id for model in self.models)
        if self.has_key:
            text = f"{self.url} serves no {name} that this key may use; it may use: {names}"
            raise ServerError(text)
        raise ServerError(f"{self.url} serves no {name}; it serves: {names}")

    def require_models(self) -> None:
        """Raises ServerError if there is no model."""
        if self.models:
            return
        if self.has_key:
            remedy = "its models= are in the server's key file (turnwire key list)"
            raise ServerError(f"{self.url} serves no model that this key may use; {remedy}")
        raise ServerError(f"{self.url} serves no model")


def base_url(address: str) -> str:
    """The base URL for an address that a user wrote. Raises ServerError."""
    url = address if "//" in address else f"http://{address}"
    try:
        parts = urllib.parse.urlsplit(url)
    except ValueError as error:
        raise ServerError(f"{address} is not an http address: {error}") from None
    if parts.scheme not in ("http", "https") or not parts.netloc:
        raise ServerError(f"{address} is not an http address")
    return url.rstrip("/").removesuffix("/v1").rstrip("/")


def read_models(address: str, key: str | None) -> Server:
    """Requests the models of a server. Raises ServerError."""
    url = base_url(address)
    if key and not (key.isprintable() and max(key) <= "\xff"):
        raise ServerError("the key has characters that an HTTP header cannot have")
    request = urllib.request.Request(f"{url}/v1/models")
    if key:
        request.add_header("authorization", f"Bearer {key}")
    opener = urllib.request.build_opener()
    if urllib.parse.urlsplit(url).hostname in ("127.0.0.1", "localhost", "::1"):
        # Requests to this machine bypass the proxy of the environment.
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with opener.open(request, timeout=TIMEOUT_S) as answer:
            server = msgspec.json.decode(answer.read(), type=Server)
            return replace(server, url=url, has_key=bool(key))
    except urllib.error.HTTPError as error:
        raise ServerError(_describe_refusal(url, error.code, has_key=bool(key))) from None
    except (OSError, ValueError, http.client.HTTPException) as error:
        raise ServerError(_describe_failure(url, getattr(error, "reason", error))) from None


def _describe_refusal(url: str, status: int, *, has_key: bool) -> str:
    if status not in (401, 403):
        return f"{url}/v1/models answers {status}; is {url} a Turnwire server?"
    if has_key:
        return f"{url} refuses this key"
    return f"{url} requires a key: pass one with --key"


def _describe_failure(url: str, reason: object) -> str:
    if isinstance(reason, ssl.SSLCertVerificationError):
        remedy = "if your own authority signed the certificate: SSL_CERT_FILE=FILE"
        return f"{url}: {reason.verify_message}; {remedy}"
    return (
        f"no Turnwire server answers at {url} ({' '.join(str(reason).split())}); "
        "start one with `turnwire up`, or pass --url"
    )
