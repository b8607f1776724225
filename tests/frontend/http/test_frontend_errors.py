"""Errors as HTTP responses: what all APIs have in common."""

import pytest

from schemas.errors import ErrorInfo, ErrorKind
from services.frontend.apis.messages import errors as messages
from services.frontend.apis.responses import errors as responses
from services.frontend.apis.shared.shared_errors import CHAT, union_reply
from services.frontend.http.errors import ErrorShape


@pytest.mark.parametrize("kind", ErrorKind)
@pytest.mark.parametrize(
    "reply", [messages.error_reply, responses.FORMAT.reply, CHAT.reply, union_reply]
)
def test_refusal_for_lack_of_a_process_has_a_time_to_wait(
    reply: ErrorShape, kind: ErrorKind
) -> None:
    without, with_time = (
        reply(ErrorInfo(kind, "no", retry_after_s=wait_s), "req_1", None) for wait_s in (None, 2.5)
    )
    assert with_time.headers["retry-after"] == "3"
    assert ("retry-after" in without.headers) == (without.status in (503, 529))
