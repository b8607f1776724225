"""Requests of all APIs: any body is parsed and encodable for the bus, or refused with `Invalid`.
What Responses echoes stays on one line of its stream.

Layout: which API, and whether it is counted; then the body. Names and values that are put into it
come from the OpenAPI document and from `fuzz.pieces`.
"""

import json
from collections.abc import Iterator
from copy import deepcopy
from functools import cache
from random import Random
from typing import Any, Final

import msgspec

from fuzz.pieces import PIECES, PROMPTS, RESPONSES, WHOLE, message
from schemas.errors import Invalid, NotFound
from schemas.events import BlockStart, BlockStop, Delta, Finish, FinishReason, Prepared, Usage
from services.frontend.apis.chat.request import Chat
from services.frontend.apis.completions.request import Completions
from services.frontend.apis.messages.request import parse as parse_messages
from services.frontend.apis.responses.dialect import Responses
from services.frontend.apis.responses.render.events import payloads
from services.frontend.apis.responses.request.body import decode
from services.frontend.apis.responses.state.input_items import stored_items
from services.frontend.apis.shared.shared_errors import openai_error
from services.frontend.content.image import without_images
from services.frontend.turns.interfaces import AnswerInfo

PATHS: Final = tuple(WHOLE)
HEADERS: Final = {"user-agent": "fuzz"}
NUMBERS: Final = (0, -1, 1.5, 1e400, 2**63, 2**70)
STRINGS: Final = ("", " ", "x", "c1", "\x00", "\ud800", '{"a": 1}', "data:image/png;base64,AAAA")
SCALARS: Final[tuple[Any, ...]] = (*NUMBERS, *STRINGS, None, True, False, [], {}, [[]])
TURN: Final = (
    *(BlockStart(0, "reasoning"), Delta(0, 0, "t"), BlockStop(0, seal="s")),
    *(BlockStart(1, "text"), Delta(1, 0, "a\n\nb"), BlockStop(1)),
    *(BlockStart(2, "tool_use", "n", "c"), Delta(2, 0, '{\n\n"a": 1}'), BlockStop(2)),
    *(BlockStart(3, "tool_use", "tool_search", "d"), Delta(3, 0, '{\n\n"a": 1}'), BlockStop(3)),
    Finish(FinishReason.STOP, 4, Usage(1, 0, 1)),
)
encode: Final = msgspec.json.encode


def one(data: bytes) -> None:
    """Raises any exception but those of a refusal, any of the encoder, and AssertionError where an
    event is not one line of JSON."""
    path = PATHS[data[0] % len(PATHS)] if data else PATHS[0]
    counting, body = bool(data[:1] and data[0] & 128), data[1:]
    try:
        match path:
            case "/v1/messages":
                ask = parse_messages(body, HEADERS, counting=counting)
                conversations = [ask.conversation]
            case "/v1/responses":
                responses(body, counting=counting)
                return
            case _:
                dialect = Chat() if path == "/v1/chat/completions" else Completions()
                conversations = list(dialect.parse(body, HEADERS).conversations[:2])
    except (Invalid, NotFound) as error:
        encode(error.info if path == "/v1/messages" else openai_error(error.info))
        return
    for conversation in conversations:
        encode(without_images(conversation))


class Sealer:
    """Opens one seal, that of a compaction."""

    def seal(self, text: str) -> str:
        """Seals nothing."""
        return text

    def open(self, blob: str) -> str | None:
        """Opens the seal of the pieces."""
        return "turnwire.compaction.1\nsummary" if blob == "mine" else None


def responses(body: bytes, *, counting: bool) -> None:
    """The same for Responses, with its store and its stream."""
    request = decode(body).with_references({"known": msgspec.Raw(encode(RESPONSES[0]))})
    ask = Responses().convert(request, HEADERS, sealer=Sealer(), counting=counting)
    encode(without_images(ask.conversation))
    encode(stored_items(request, "t1"))
    renderer = ask.renderer(AnswerInfo("t1", "req", ask.request.model, 1))
    rendered = renderer.start([Prepared(1, 1)]) + renderer.events(TURN)
    for number, payload in enumerate(payloads(rendered)):
        assert json.loads(payload)["sequence_number"] == number, payload


@cache
def words() -> tuple[list[str], list[Any]]:
    """All names of members in the OpenAPI document and in the pieces; fixed values, and pieces."""
    # Imported here, so that the fuzzer does not instrument the whole frontend.
    from services.frontend.apis.shared.openapi import document
    from services.frontend.app import APIS

    names: dict[str, None] = {}
    values: dict[str, None] = {}

    def walk(part: Any) -> None:
        for key, item in part.items() if isinstance(part, dict) else enumerate(part):
            if key == "properties":
                names.update(dict.fromkeys(item))
            elif key == "enum":
                values.update(dict.fromkeys(value for value in item if isinstance(value, str)))
            elif key == "const" and isinstance(item, str):
                values[item] = None
            if isinstance(item, dict | list):
                walk(item)

    walk(document("1", APIS))
    found = [holder[key] for holder, key in _places(WHOLE)]
    for one in found:
        if isinstance(one, dict):
            names.update(dict.fromkeys(one))
    return list(names), [*values, *found]


def mutate(data: bytes, chance: Random) -> bytes:
    """Another body: some of its values, members or items are replaced, added, moved or dropped."""
    head = data[:1] if data and chance.random() < 0.95 else chance.randbytes(1)
    try:
        body = json.loads(data[1:])
        for _ in range(chance.choice((1, 1, 2, 4))):
            body = _changed(body, chance)
        text = json.dumps(body, ensure_ascii=chance.random() < 0.5)
    except (ValueError, RecursionError):
        return chance.choice([seed for _, seed in seeds()])
    return head + text.encode("utf-8", "replace")


def _value(body: Any, chance: Random) -> Any:
    """Any value: a scalar, a word or a piece of the APIs, or another part of the body."""
    kind = chance.randrange(3)
    if kind == 0:
        return deepcopy(chance.choice(SCALARS))
    if kind == 1:
        return deepcopy(chance.choice(words()[1]))
    holder, key = chance.choice(list(_places(body)) or [([body], 0)])
    return deepcopy(holder[key])


def _changed(body: Any, chance: Random) -> Any:
    places, value = list(_places(body)), _value(body, chance)
    if not places:
        return value
    holder, key = chance.choice(places)
    match chance.randrange(5):
        case 0 if chance.random() < 0.1:
            for _ in range(chance.choice((30, 300, 800))):
                holder[key] = [holder[key]]
        case 0:
            del holder[key]
        case 1 if isinstance(holder, dict):
            holder[chance.choice(words()[0])] = value
        case 2 if isinstance(holder, list):
            holder.insert(key, value)
        case 3 if isinstance(holder[key], str):
            text, at = holder[key], chance.randrange(len(holder[key]) + 1)
            piece = chance.choice((" ", "\n", "\x00", "é", "船", "x" * 300))
            holder[key] = text[:at] + piece + text[at:]
        case _:
            holder[key] = value
    return body


def _places(value: Any, depth: int = 0) -> Iterator[tuple[Any, Any]]:
    """All holders of values, with their keys."""
    if not isinstance(value, dict | list):
        return
    for key, item in list(value.items() if isinstance(value, dict) else enumerate(value)):
        yield value, key
        if depth < 20:
            yield from _places(item, depth + 1)


def seeds() -> Iterator[tuple[str, bytes]]:
    """A request of each API with many members, and small ones with each piece."""
    bodies = [(path, body) for path, body in WHOLE.items()]
    for path, (member, pieces) in PIECES.items():
        least = {"max_tokens": 9} if path == "/v1/messages" else {}
        for piece in pieces:
            bodies.append((path, {**least, member: [message("user", "hi"), piece]}))
    for prompt in PROMPTS:
        bodies.append(("/v1/completions", WHOLE["/v1/completions"] | {"prompt": prompt}))
    for number, (path, body) in enumerate(bodies):
        text = json.dumps({"model": "m", **body}, indent=1).encode()
        yield f"{number:03}", bytes([PATHS.index(path)]) + text
