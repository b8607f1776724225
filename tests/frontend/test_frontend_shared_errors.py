"""Tests the status and the form of each error, in every API."""

from itertools import product

from schemas.errors import (
    ContextOverflow,
    EngineFailed,
    ErrorInfo,
    ErrorKind,
    Forbidden,
    Invalid,
    NotFound,
    Overloaded,
    RateLimited,
    TimedOut,
    TooLarge,
    TurnwireError,
    Unauthorized,
    Unavailable,
)
from services.frontend.apis.messages.errors import error_reply
from services.frontend.apis.responses.errors import FORMAT
from services.frontend.apis.shared.errors import CHAT as CHAT_ERRORS
from services.frontend.apis.shared.errors import union_reply
from tests.kit.bodies import APIS, MESSAGES
from tests.kit.every import Cases, for_each
from tests.kit.frontend import FakeGateway, serving

REFUSALS: list[tuple[TurnwireError, int, str, int, str]] = [
    (Invalid("bad"), 400, "invalid_request_error", 400, "invalid_request_error"),
    (ContextOverflow("too long"), 400, "invalid_request_error", 400, "invalid_request_error"),
    (Unauthorized("bad"), 401, "authentication_error", 401, "invalid_request_error"),
    (Forbidden("bad"), 403, "permission_error", 403, "invalid_request_error"),
    (NotFound("bad"), 404, "not_found_error", 404, "invalid_request_error"),
    (TooLarge("bad"), 413, "request_too_large", 413, "invalid_request_error"),
    (RateLimited("bad"), 429, "rate_limit_error", 429, "rate_limit_error"),
    (Overloaded("bad"), 529, "overloaded_error", 503, "server_error"),
    (Unavailable("bad"), 503, "overloaded_error", 503, "server_error"),
    (TimedOut("bad"), 504, "timeout_error", 504, "server_error"),
    (EngineFailed("bad"), 500, "api_error", 500, "server_error"),
]
"""Errors, with status and type in Messages, and in the APIs of OpenAI."""


async def test_refusal_has_its_status(cases: Cases) -> None:
    gateway = FakeGateway()
    assert {error.info.kind for error, *_ in REFUSALS} == {*ErrorKind}
    async with serving(gateway) as served:
        for gateway.refusal, status, kind, openai_status, openai_kind in REFUSALS:
            info = gateway.refusal.info
            for api, stream in product(APIS, (False, True)):
                with cases.case(error=gateway.refusal, api=api.name, stream=stream):
                    reply = await served.post(api.path, api.body(stream=stream))
                    wanted = (status, kind) if api is MESSAGES else (openai_status, openai_kind)
                    assert reply.error[:2] == wanted
                    assert reply.error[2].startswith(info.message)
                    assert reply.headers["content-type"].startswith("application/json")
                    assert served.lines[-1]["outcome"] == info.kind
                    if api is MESSAGES:
                        assert reply.json["type"] == "error"
                        assert reply.json["request_id"] == reply.headers["request-id"]


@for_each(ErrorKind)
def test_refusal_for_lack_of_a_process_has_a_time_to_wait(kind: ErrorKind) -> None:
    for reply in (error_reply, FORMAT.reply, CHAT_ERRORS.reply, union_reply):
        without, with_time = (
            reply(ErrorInfo(kind, "no", retry_after_s=wait_s), "req_1", None)
            for wait_s in (None, 2.5)
        )
        assert with_time.headers["retry-after"] == "3"
        assert ("retry-after" in without.headers) == (without.status in (503, 529))
