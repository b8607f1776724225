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
from re import findall
from typing import Any, Final

import msgspec

from fuzz.pieces import WHOLE, message
from schemas.errors import Invalid, NotFound
from schemas.events import BlockStart, BlockStop, Delta, Finish, FinishReason, Prepared, Usage
from services.frontend.apis.chat.request import Chat
from services.frontend.apis.completions.request import Completions
from services.frontend.apis.messages.request import Messages
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
                parse = Messages().parse_count if counting else Messages().parse
                ask = parse(body, HEADERS)
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
    request = decode(body).with_references({"known": msgspec.Raw(encode(message("user", "Hi.")))})
    ask = Responses().convert(request, HEADERS, sealer=Sealer(), counting=counting)
    encode(without_images(ask.conversation))
    encode(stored_items(request, "t1"))
    renderer = ask.renderer(AnswerInfo("t1", "req", ask.request.model, 1))
    rendered = renderer.start([Prepared(1, 1)]) + renderer.events(TURN)
    for number, payload in enumerate(payloads(rendered)):
        assert json.loads(payload)["sequence_number"] == number, payload


@cache
def words() -> tuple[list[str], list[Any]]:
    """The names of members in the OpenAPI document and in `WHOLE`; and values: words of the
    document, and all parts of `WHOLE`."""
    # Imported here, so that the fuzzer does not instrument the whole frontend.
    from services.frontend.apis.shared.openapi import document
    from services.frontend.app import APIS

    texts = json.dumps([document("1", APIS), WHOLE])
    names = dict.fromkeys(findall(r'"(\w+)":', texts))
    values = dict.fromkeys(findall(r'"([\w.-]+)"(?!:)', texts))
    return [*names], [*values, *(holder[key] for holder, key in _places(WHOLE))]


def mutate(data: bytes, chance: Random) -> bytes:
    """Another body: some of its values, members or items are replaced, added, moved or dropped."""
    head = data[:1] if data and chance.random() < 0.95 else chance.randbytes(1)
    try:
        body = json.loads(data[1:])
        for _ in range(chance.choice((1, 1, 2, 4))):
            _change([*_places(body)], chance)
        text = json.dumps(body, ensure_ascii=chance.random() < 0.5)
    except (ValueError, RecursionError, IndexError):  # IndexError: nothing is in it
        return chance.choice([seed for _, seed in seeds()])
    return head + text.encode("utf-8", "replace")


def _change(places: list[tuple[Any, Any]], chance: Random) -> None:
    """Changes one place: to a scalar, a part of an API, or another part of the body."""
    holder, key = chance.choice(places)
    other, its_key = chance.choice(places)
    values = (chance.choice(SCALARS), chance.choice(words()[1]), other[its_key])
    value = deepcopy(chance.choice(values))
    match chance.randrange(6):
        case 0:
            del holder[key]
        case 1 if chance.random() < 0.1:
            for _ in range(chance.choice((30, 300, 800))):
                holder[key] = [holder[key]]
        case 2 if isinstance(holder, dict):
            holder[chance.choice(words()[0])] = value
        case 2:
            holder.insert(key, value)
        case 3 if isinstance(holder[key], str):
            piece = chance.choice((" ", "\n", "\x00", "é", "船", "x" * 300))
            holder[key] = piece.join(chance.choice(((holder[key], ""), ("", holder[key]))))
        case _:
            holder[key] = value


def _places(value: Any, depth: int = 0) -> Iterator[tuple[Any, Any]]:
    """All holders of values, with their keys."""
    if not isinstance(value, dict | list):
        return
    for key, item in list(value.items() if isinstance(value, dict) else enumerate(value)):
        yield value, key
        if depth < 20:
            yield from _places(item, depth + 1)


def seeds() -> Iterator[tuple[str, bytes]]:
    """A request of each API with many members, and one with each of its messages alone."""
    bodies = [*WHOLE.items()]
    for path, whole in WHOLE.items():
        for name in {"messages", "input"} & whole.keys():
            least = {"max_tokens": 9, "model": "m"}
            bodies += [(path, {**least, name: [message("user", "hi"), one]}) for one in whole[name]]
    for number, (path, body) in enumerate(bodies):
        text = json.dumps({"model": "m", **body}, indent=1).encode()
        yield f"{number:03}", bytes([PATHS.index(path)]) + text
