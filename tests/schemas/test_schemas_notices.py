"""Notices of frontends, as releases before this form of the types wrote and read them."""

import msgspec
import pytest

from schemas.notices import (
    FrontendNotice,
    PromptSeen,
    ResponseCancelled,
    ResponseDeleted,
    SessionPlaced,
    decode_notice,
)
from tests.kit.every import for_rows

PLACED = '"action":"place","id":"s","name":"coder","model":"v2"'
SEEN = '"action":"place","id":"t","model":"v2","preprocessor":"p1","prompt_tokens":7'


@for_rows(
    [
        (PLACED, SessionPlaced("s", "coder", "v2")),
        (f'{PLACED},"root":"r"', SessionPlaced("s", "coder", "v2", "r")),
        (SEEN, PromptSeen("t", "v2", "p1", 7)),
        ('"action":"forget","id":"resp_1"', ResponseDeleted("resp_1")),
        ('"action":"cancel","id":"resp_1"', ResponseCancelled("resp_1")),
    ]
)
def test_notice_has_the_same_bytes_in_all_releases(fields: str, notice: FrontendNotice) -> None:
    written = f"{{{fields}}}"
    assert msgspec.json.encode(notice).decode() == written
    assert decode_notice(written.encode()) == notice


def test_notice_of_an_unknown_action_is_refused() -> None:
    with pytest.raises(msgspec.ValidationError):
        decode_notice(b'{"action":"merge","id":"x"}')
