"""Sessions of Codex: with a provider of its own, and as OpenAI, over a WebSocket."""

import pytest

from tests.clients.codex import CodexCli, items, work
from tests.clients.conftest import MODEL
from tests.clients.machine import Machine
from tests.clients.noncanonical import call, request
from tests.clients.pieces import answer_pieces, usage
from tests.clients.session import Session, continued
from tests.clients.tasks import FOLLOW, MUCH, ON

pytestmark = pytest.mark.timeout(900)


def as_codex(turns: list[dict[str, int]]) -> dict[str, int]:
    """Codex' own form of these counts."""
    return {
        "input_tokens": sum(turn["prompt"] for turn in turns),
        "cached_input_tokens": sum(turn["cached"] for turn in turns),
        "cache_write_input_tokens": 0,
        "output_tokens": sum(turn["output"] for turn in turns),
        "reasoning_output_tokens": sum(turn["reasoning"] for turn in turns),
    }


async def test_codex_works_with_its_own_provider(machine: Machine, session: Session) -> None:
    codex = await CodexCli(machine).connect(session.wire.url)
    shown = await work(codex)
    main = session.main
    assert len(main) == 7
    read = [one.path for one in session.wire.exchanges if one.method == "GET"]
    assert read[-1] == "/codex/models.json"
    await session.check(main)
    calls = [piece[2] for one in main for piece in answer_pieces(one) if piece[0] == "call"]
    assert calls == ["exec_command", "apply_patch", *["exec_command"] * 4]
    counts = [usage(one) for one in main]
    assert shown == [as_codex(counts[:3]), as_codex(counts[:5]), as_codex(counts)]


async def test_codex_works_over_a_websocket(machine: Machine, session: Session) -> None:
    codex = await CodexCli(machine).built_in(session.wire.url, MODEL)
    await work(codex)
    assert session.wire.sockets == 3
    assert all(one.over_socket for one in session.wire.turns)
    main = [one for one in continued(session.wire.turns) if one.body.get("generate") is not False]
    assert len(main) == 7
    await session.check(main)


@pytest.mark.parametrize("kind", ["local", "built-in"])
async def test_a_session_is_compacted(machine: Machine, session: Session, kind: str) -> None:
    codex, url = CodexCli(machine), session.wire.url
    if kind == "local":
        await codex.connect(url)
    else:
        await codex.built_in(url, MODEL)
    machine.write("notes.txt", "beta one\n")
    await codex.ask(MUCH)
    before = len(session.wire.turns)
    # The limit is what the last turn used: the next one must compact first.
    filled = usage(session.wire.turns[-1])
    limit = f"model_auto_compact_token_limit={filled['prompt'] + filled['output']}"
    ran = await codex.ask(ON, "-c", limit, resume=True)
    assert (items(ran)[-1]["text"], machine.file("on.txt")) == ("ON", "on\n")
    session.check_served()
    turns = continued(session.wire.turns)[before:]
    remote = [one for one in turns if one.body["input"][-1]["type"] == "compaction_trigger"]
    local = [one for one in turns if "CHECKPOINT COMPACTION" in str(one.body["input"][-1])]
    compactions = local if kind == "local" else remote
    assert len(compactions) == 1
    if kind != "local":
        for one in remote:
            assert [piece[0] for piece in answer_pieces(one)] == ["compaction"]
        assert any(item["type"] == "compaction" for item in turns[-1].body["input"])
    # Compacted before it begins, and again between the call and the answer.
    again = await codex.ask(
        FOLLOW.replace("p1.txt", "on.txt"), "-c", "model_auto_compact_token_limit=2000", resume=True
    )
    assert items(again)[-1]["text"] == "JOINED"
    assert machine.file("both.txt") == "on\nbeta one\n"
    session.check_served()


async def test_a_tool_that_a_search_finds_is_called(machine: Machine, session: Session) -> None:
    """Namespaces are deferred in our profile: Codex runs the search and sends the result as an
    item."""
    search = call("tool_search", query="spawn agents", limit="3")
    closed = call("multi_agent_v1__close_agent", target="nobody")
    outputs = [f"Look.\n</think>\n\n{search}", f"There.\n</think>\n\n{closed}"]
    codex = await CodexCli(machine).connect(session.wire.url)
    refused = "codex_core::tools::router: error=invalid agent id nobody"
    await codex.ask(request([*outputs, "Over.\n</think>\n\nDone."]), allowed=refused)
    main = session.main
    await session.check(main)
    found = [item for item in main[1].body["input"] if item["type"] == "tool_search_output"]
    assert [tool["name"] for item in found for tool in item["tools"]] == ["multi_agent_v1"]
    called = [piece[2] for one in main for piece in answer_pieces(one) if piece[0] == "call"]
    assert called == ["tool_search_call", "multi_agent_v1__close_agent"]
    assert (
        main[2].body["input"][-1]["output"].startswith("invalid agent id nobody")
    )  # Codex found the tool
