"""JSON that is handed on as it is spelled must be text, too."""

import json

from tests.kit.bodies import MESSAGES, block, messages, tool_result, tool_use, user

MARK = "the bytes go here"


def test_state_of_a_browser_that_is_not_utf8_is_refused() -> None:
    state = block("browser_state", tabs=[{"title": MARK}])
    asked = messages(
        user("Look."),
        {"role": "assistant", "content": [tool_use()]},
        user(tool_result(content=[state])),
    )
    body = json.dumps(asked).encode().replace(MARK.encode(), b"\xff\xfe")
    assert MESSAGES.refused(body).message.startswith("The request body is not valid JSON: ")
