"""The parts that the clients of the three APIs share: fields of requests, media, and the events of
a stream."""

import json
from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, TypeAlias

from schemas.conversation import Media, Sampling
from turnwire_tools.clients.answer import ClientAnswer

JsonObject: TypeAlias = dict[str, Any]
"""An object in a request's body."""


class IllFormed(Exception):
    """An answer breaks the rules of its API."""


def require(truth: object, what: str) -> None:
    """Raises IllFormed unless something is true."""
    if not truth:
        raise IllFormed(what)


class AnswerReader(ABC):
    """Reads one answer of an API, and checks the order of its events.

    `answer` has what came so far, also of a stream that broke off. Every method raises IllFormed.
    """

    def __init__(self) -> None:
        self.answer = ClientAnswer()

    def event(self, name: str, data: Any) -> None:
        """Takes an event of a stream: the name in its `event:` line, and its decoded data, None for
        `[DONE]`."""
        with _well_formed():
            self._event(name, data)

    def document(self, data: Any) -> None:
        """Takes an answer in one piece."""
        with _well_formed():
            self._document(data)
        self.answer.ends += 1

    @abstractmethod
    def finish(self) -> None:
        """Checks that a stream which has ended has all that belongs to it."""

    @abstractmethod
    def _event(self, name: str, data: Any) -> None: ...

    @abstractmethod
    def _document(self, data: Any) -> None: ...


@contextmanager
def _well_formed() -> Iterator[None]:
    try:
        yield
    except (KeyError, IndexError, TypeError, ValueError, AttributeError) as error:
        raise IllFormed(f"{type(error).__name__}: {error}") from error


def present(**fields: Any) -> JsonObject:
    """The fields that are not None."""
    return {name: value for name, value in fields.items() if value is not None}


def sampling_fields(sampling: Sampling, *, limit: str, stop: str = "stop") -> JsonObject:
    """The sampling of a request. `limit`, `stop`: what an API calls these two."""
    names = {limit: sampling.max_tokens, stop: sampling.stop or None}
    return present(
        **names, temperature=sampling.temperature, top_p=sampling.top_p, top_k=sampling.top_k
    )


def filler(size_bytes: int | None) -> str:
    """Base64 of zero bytes, for media without its content."""
    whole, rest = divmod(size_bytes or 0, 3)
    return "AAAA" * whole + ("", "AA==", "AAA=")[rest]


def media_url(media: Media) -> str:
    """The URL of media; a data URL with filler where there is none."""
    return media.url or f"data:{media.media_type};base64,{filler(media.size_bytes)}"


class SseParser:
    """Splits an event stream into its events, whatever the chunks."""

    def __init__(self) -> None:
        self._rest = b""

    def feed(self, chunk: bytes) -> list[tuple[str, Any]]:
        """The name and decoded data of each event that this chunk completes. Comments are left
        out."""
        *frames, self._rest = (self._rest + chunk).replace(b"\r\n", b"\n").split(b"\n\n")
        events = []
        for frame in frames:
            name = ""
            data = []
            for line in frame.decode().split("\n"):
                key, _, value = line.partition(":")
                if key == "event":
                    name = value.strip()
                elif key == "data":
                    data.append(value.removeprefix(" "))
            if data:
                events.append((name, _decoded("\n".join(data))))
        return events


def _decoded(data: str) -> Any:
    return None if data == "[DONE]" else json.loads(data)
