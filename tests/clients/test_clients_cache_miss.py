"""Sessions of more than twenty turns in which each request is compared with the one before: no
comparison finds a change, and none is impossible, though two preprocessors share the turns."""

from typing import Any

import pytest

from tests.clients.claude import ClaudeCode
from tests.clients.codex import CodexCli
from tests.clients.machine import Machine
from tests.clients.noncanonical import request
from tests.clients.session import Session
from tests.clients.test_clients_prefix import CLAUDE, CODEX, tidied
from tests.clients.wire import Exchange

pytestmark = pytest.mark.timeout(900)


def answered(session: Session) -> list[dict[str, Any]]:
    """The beginning of each answer in the main conversation."""
    return [opening(one) for one in session.main if one.events]


def opening(one: Exchange) -> dict[str, Any]:
    data = next(data for name, data in one.events if name in ("message_start", "response.created"))
    return dict(data.get("message") or data["response"])


async def test_claude_code_changes_nothing(machine: Machine, session: Session) -> None:
    def compared(path: str, body: Any) -> dict[str, Any]:
        previous = answered(session)[-1:]
        diagnostics = {"previous_message_id": previous[0]["id"] if previous else None}
        return {"diagnostics": diagnostics} if path == "/v1/messages" and body.get("tools") else {}

    session.wire.add_fields = compared
    claude = await ClaudeCode(machine).connect(session.wire.url)
    asked = [*CLAUDE, tidied(machine)]
    async with claude.dialog() as dialog:
        for outputs in asked:
            await dialog.ask(request(outputs))
    answers = answered(session)
    assert len(answers) == sum(map(len, asked)) > 20
    assert [answer["diagnostics"] for answer in answers] == [None] * len(answers)
    assert [one.body["diagnostics"]["previous_message_id"] for one in session.main[1:]] == [
        answer["id"] for answer in answers[:-1]
    ]


async def test_codex_changes_nothing(machine: Machine, session: Session) -> None:
    def compared(path: str, body: Any) -> dict[str, Any]:
        previous = answered(session)[-1:]
        if path != "/v1/responses" or not previous:
            return {}
        return {"prompt_cache_options": {"comparison_response_id": previous[0]["id"]}}

    session.wire.add_fields = compared
    codex = await CodexCli(machine).connect(session.wire.url)
    for n, outputs in enumerate(CODEX):
        await codex.ask(request(outputs), resume=n > 0)
    answers = answered(session)
    assert len(answers) == sum(map(len, CODEX)) >= 20
    assert [answer["prompt_cache_diagnostics"] for answer in answers[1:]] == [
        {"type": "cache_hit"}
    ] * (len(answers) - 1)
