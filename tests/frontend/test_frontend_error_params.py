"""An error of the pipeline names a field of the client's own API, whatever the pipeline calls
it."""

from typing import Any

import pytest
from aiohttp import ClientSession

from schemas.errors import ContextOverflow, Invalid
from services.frontend.apis.chat.wire import ChatBody
from services.frontend.apis.completions.wire import CompletionsBody
from services.frontend.apis.responses.wire import ResponsesBody
from services.frontend.apis.tokens import TokensText
from services.worker.engine import SAMPLING_FIELDS
from tests.kit.bodies import chat, completions, responses
from tests.kit.every import Cases
from tests.kit.frontend import FakeGateway, serving

OF_TURNS = (*SAMPLING_FIELDS, "messages", "prompt", "format", "top_logprobs", "cache_salt")
OF_CONVERSATIONS = ("messages", "tools", "tool_choice", "format", "chat_template_kwargs")
APIS: dict[str, tuple[Any, dict[str, Any], tuple[str, ...]]] = {
    "/v1/chat/completions": (ChatBody, chat(), OF_TURNS + OF_CONVERSATIONS),
    "/v1/completions": (CompletionsBody, completions(), OF_TURNS),
    "/v1/responses": (ResponsesBody, responses(), OF_TURNS + OF_CONVERSATIONS),
    "/v1/responses/input_tokens": (ResponsesBody, responses(), OF_CONVERSATIONS),
    "/v1/tokenize": (TokensText, chat(), OF_CONVERSATIONS),
}
"""Types and bodies of requests, and what the pipeline can name."""


class Refusing(FakeGateway):
    """Refuses everything."""

    async def refuse(self, *_: Any) -> Any:
        assert self.refusal is not None
        raise self.refusal

    count = tokenize = detokenize = refuse  # type: ignore[assignment]


@pytest.mark.parametrize("path", APIS)
async def test_error_names_a_field_of_the_own_api(path: str, cases: Cases) -> None:
    kind, body, names = APIS[path]
    own = {*kind.__struct_fields__} - {"format"}
    if kind is TokensText:
        own |= {*OF_CONVERSATIONS} - {"format"}
    gateway = Refusing()
    async with serving(gateway) as served, ClientSession(served.url) as http:
        for name in names:
            for gateway.refusal in (Invalid("no", param=name), ContextOverflow("no", param=name)):
                with cases.case(name, error=gateway.refusal.info.kind):
                    async with http.post(path, json=body) as reply:
                        error = (await reply.json())["error"]
                    assert reply.status == 400
                    assert error["param"] is None or error["param"].partition(".")[0] in own
