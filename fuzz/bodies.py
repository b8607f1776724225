"""Random requests of all APIs: any body is parsed and encodable for the bus, or refused with
`Invalid`. What Responses echoes stays on one line of its stream.

Names and values that are put into a body come from the OpenAPI document and from `WHOLE`.
"""

import json
from collections.abc import Iterator
from copy import deepcopy
from functools import cache
from pathlib import Path
from random import Random
from re import findall
from typing import Any, Final, TypeAlias

from msgspec import Raw
from msgspec.json import encode

from schemas.errors import Invalid, NotFound
from schemas.events import Prepared
from services.frontend.apis.messages.request import Messages
from services.frontend.apis.responses.parse.body import decode
from services.frontend.apis.responses.render.events import payloads
from services.frontend.apis.responses.request import Responses
from services.frontend.apis.responses.state.input_items import stored_items
from services.frontend.apis.shared.errors import openai_error
from services.frontend.apis.shared.openapi import document
from services.frontend.app import APIS
from services.frontend.content.image import without_images
from services.frontend.turns.interfaces import RenderInfo
from tests.kit import bodies, events
from tests.kit.bodies import assistant, block, message, user

Request: TypeAlias = tuple[str, bytes]
"""A path and a body."""
URL: Final = "data:image/png;base64,AAAA"
GRAMMAR: Final = {"syntax": "lark", "definition": 'start: "x"'}
CUSTOM: Final = block("custom", id="c2", custom={"name": "p", "input": "raw"})
DETAIL: Final = block("reasoning.encrypted", data="d", id="c1", format="turnwire-v1", index=0)
THINKING: Final = block("thinking", thinking="t", signature="s")
SEARCHED: Final = {"title": "t", "url": "u", "encrypted_content": "e"}
WHOLE: Final = {
    "/v1/messages": bodies.messages(
        user(block("image", source=block("base64", media_type="image/png", data="AAAA"))),
        assistant(block("web_search_tool_result", content=[SEARCHED])),
    ),
    "/v1/chat/completions": bodies.chat(
        assistant(None, tool_calls=[CUSTOM]),
        assistant("x", thinking_blocks=[THINKING], reasoning_details=[DETAIL]),
        assistant(None, function_call={"name": "n", "arguments": "{}"}),
        user(block("image_url", image_url={"url": URL})),
        user(block("file", file={"file_data": "AAAA", "filename": "f"})),
        tools=[block("custom", custom={"name": "p", "format": block("grammar", grammar=GRAMMAR)})],
        n=2,
        stop=["x", 5],
        logprobs=True,
        top_logprobs=2,
        response_format=block("json_schema", json_schema={"name": "n", "schema": {}}),
        chat_template_kwargs={"a": 1},
        thinking=block("enabled"),
    ),
    "/v1/completions": bodies.completions(prompt=[[1], [2, 3]], n=2, max_tokens=3),
    "/v1/responses": bodies.responses(
        user(block("input_text", text="hi"), block("input_image", image_url=URL)),
        assistant(block("refusal", refusal="no")),
        bodies.function_call(),
        bodies.function_output(output=[block("input_file", file_data="AAAA")]),
        block("local_shell_call", id="l", call_id="e", action=block("exec", command=["ls"])),
        block("shell_call", call_id="f", action={"commands": ["ls"]}),
        block("shell_call_output", call_id="f", output=[{"outcome": {"exit_code": 1}}]),
        block("apply_patch_call", call_id="g", operation=block("delete_file", path="x")),
        block("tool_search_call", call_id="h", arguments={"query": "q"}),
        block("tool_search_output", call_id="h", tools=[block("function", name="found")]),
        block("additional_tools", role="developer", tools=[block("custom", name="more")]),
        block("compaction", encrypted_content="mine"),
        block("item_reference", id="known"),
        block("web_search_call", id="w", action={"query": "q"}),
        instructions="i",
        tools=[block("shell", environment=block("local"))],
        include=["message.output_text.logprobs"],
        text={"format": block("json_schema", name="n", schema={})},
        top_logprobs=2,
        context_management=[block("compaction")],
    ),
}
"""For each path a request with members that clients' recorded requests (`tests/replays`) lack."""
CAPTURED: Final = Path(__file__).parents[1] / "tests/replays/requests"
SCALARS: Final[tuple[Any, ...]] = (
    *(0, -1, 1.5, 1e400, 2**63, 2**70, None, True, False, [], {}, [[]]),
    *("", " ", "x", "c1", "\x00", "\ud800", '{"a": 1}', URL),
)
TURN: Final = (
    *events.reasoning(0, "t"),
    *events.text(1, "a\n\nb"),
    *events.call(2, "n", '{\n\n"a": 1}', call_id="c"),
    *events.call(3, "tool_search", '{\n\n"a": 1}', call_id="d"),
    events.finish(4),
)


def check(request: Request, *, counting: bool = False) -> bool:
    """Whether the request is accepted. Raises any exception but those of a refusal, and
    AssertionError where an event is not one line of JSON. `counting`: its tokens are counted."""
    path, body = request
    try:
        if counting and path == "/v1/messages":
            conversations = Messages().parse_count(body, {}).conversations
        elif path == "/v1/responses":
            conversations = [_responses(body, counting=counting)]
        else:
            api = next(api for api in bodies.APIS if api.path == path)
            conversations = api.parse(body).conversations[:2]
    except (Invalid, NotFound) as error:
        encode(error.info if path == "/v1/messages" else openai_error(error.info))
        return False
    for conversation in conversations:
        encode(without_images(conversation))
    return True


class Sealer:
    """Opens one seal, that of the compaction in `WHOLE`."""

    def seal(self, text: str) -> str:
        """Seals nothing."""
        return text

    def open(self, blob: str) -> str | None:
        """Opens the seal."""
        return "turnwire.compaction.1\nsummary" if blob == "mine" else None


def _responses(body: bytes, *, counting: bool) -> Any:
    """The conversation of a request of Responses, which is also stored and answered."""
    request = decode(body).with_references({"known": Raw(encode(message("user", "Hi.")))})
    ask = Responses().convert(request, {}, sealer=Sealer(), counting=counting)
    encode(stored_items(request, "t1"))
    info = RenderInfo(
        turn="t1", request_id="req", model=ask.decoded.model, created=1, clock=lambda: 1.0
    )
    renderer = ask.renderer(info)
    rendered = renderer.start([Prepared(1, 1)]) + renderer.render(TURN)
    for number, payload in enumerate(payloads(rendered)):
        assert json.loads(payload)["sequence_number"] == number, payload
    return ask.conversation


@cache
def seeds() -> list[Request]:
    """Requests of clients, `WHOLE`, and a request with each message of `WHOLE` alone, but not with
    the output of a call: all are accepted."""
    found = [*WHOLE.items()]
    for file in sorted(CAPTURED.glob("*.json")):
        path = file.stem.partition("-POST-")[2].replace("-", "/")
        found.append((f"/{path}", json.loads(file.read_text(encoding="utf-8"))))
    for api in bodies.CONVERSING:
        whole = WHOLE[api.path]
        for item in whole.get("messages") or whole["input"]:
            if not item.get("type", "").endswith("output"):
                found.append((api.path, api.body(user("hi"), item)))
    return [(path, json.dumps({**body, "model": "m"}, indent=1).encode()) for path, body in found]


@cache
def words() -> tuple[list[str], list[Any]]:
    """Names of members, and values, in the OpenAPI document and in the requests."""
    requests = [json.loads(body) for _, body in seeds()]
    texts = json.dumps([document("1", APIS), requests])
    names = dict.fromkeys(findall(r'"(\w+)":', texts))
    values = dict.fromkeys(findall(r'"([\w.-]+)"(?!:)', texts))
    return [*names], [*values, *(holder[key] for holder, key in _places(requests))]


def mutate(request: Request, chance: Random) -> Request:
    """Another request, with some values, members or items replaced, added, moved or dropped."""
    path, body = request
    if chance.random() < 0.05:
        path = chance.choice([*WHOLE])
    try:
        value = json.loads(body)
        for _ in range(chance.choice((1, 1, 2, 4))):
            _change([*_places(value)], chance)
        text = json.dumps(value, ensure_ascii=chance.random() < 0.5)
        text = text.replace("Infinity", "1e400")  # JSON has no other form of it
    except (RecursionError, IndexError):  # IndexError: nothing is in it
        return chance.choice(seeds())
    return path, text.encode("utf-8", "replace")


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
