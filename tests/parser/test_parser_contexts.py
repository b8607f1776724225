"""Parse contexts are what an ordinary decoder makes of them; tools that were decoded are not
decoded again."""

from typing import Any

import msgspec

from schemas.conversation import ToolSpec
from schemas.ledger import LedgerContext
from schemas.requests import ParseContext
from services.parser.contexts import TOOLS_BYTES, ContextDecoder
from tests.kit.every import for_each

NESTED = {
    "type": "object",
    "properties": {"tools": {"type": "array"}, 'a"tools":[': {"enum": ['"tools":[]', "é"]}},
}
TOOLS = [ToolSpec(f"tool{n}", schema=NESTED) for n in range(20)]


def spelled(**fields: Any) -> msgspec.Raw:
    context: dict[str, Any] = {"prompt_tokens": 3, "tools": TOOLS, **fields}
    return msgspec.Raw(msgspec.json.encode(ParseContext("m", "hermes", "f", **context)))


@for_each(
    [
        {},
        {"tools": []},
        {"prefix": '"tools":' * 300, "stop": ['"tools":[]']},
        {"tools": TOOLS[:1], "prefix": "x" * 2000, "allowed": ["tool0"]},
        {"ledger": LedgerContext(b"s", 1, b"f", "lead" * 400), "calls": "single"},
    ]
)
def test_a_context_is_decoded_unchanged(fields: dict[str, Any]) -> None:
    raw, contexts = spelled(**fields), ContextDecoder()
    first, again = contexts.decode(raw), contexts.decode(raw)
    assert first == again == msgspec.json.decode(raw, type=ParseContext)


def test_turns_of_a_session_share_their_tools() -> None:
    contexts = ContextDecoder()
    first = contexts.decode(spelled(prompt_tokens=1))
    assert contexts.decode(spelled(prompt_tokens=2)).tools is first.tools
    for number in range(2 * TOOLS_BYTES // len(spelled())):
        contexts.decode(spelled(tools=[*TOOLS, ToolSpec(f"other{number}")]))
    assert contexts.decode(spelled()).tools is not first.tools
