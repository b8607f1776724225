"""Sessions of Codex: with a provider of its own, and as OpenAI, over HTTP and over a WebSocket."""

from typing import Any

import pytest

from tests.clients.codex import CodexCli, items, work
from tests.clients.conftest import MODEL
from tests.clients.machine import Machine
from tests.clients.noncanonical import call, request
from tests.clients.pieces import answer_pieces, usage
from tests.clients.session import Session, continued
from tests.clients.tasks import FOLLOW, MUCH, ON
from tests.clients.wire import Exchange

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
    session.check_served()
    session.check_history(main)
    await session.check_counts(main)
    assert await session.prefix_breaks(main) == []
    calls = [piece[2] for one in main for piece in answer_pieces(one) if piece[0] == "call"]
    assert calls == ["exec_command", "apply_patch", *["exec_command"] * 4]
    counts = [usage(one) for one in main]
    assert shown == [as_codex(counts[:3]), as_codex(counts[:5]), as_codex(counts)]


async def test_codex_works_over_a_websocket(machine: Machine, session: Session) -> None:
    codex = await CodexCli(machine).built_in(session.wire.url, MODEL)
    await work(codex)
    session.check_served()
    assert session.wire.sockets == 3
    assert all(one.over_socket for one in session.wire.turns)
    main = [one for one in continued(session.wire.turns) if one.body.get("generate") is not False]
    assert len(main) == 7
    session.check_history(main)
    await session.check_counts(main)
    assert await session.prefix_breaks(main) == []


@pytest.mark.parametrize("kind", ["local", "named OpenAI", "built-in"])
async def test_a_session_is_compacted(machine: Machine, session: Session, kind: str) -> None:
    codex, url = CodexCli(machine), session.wire.url
    if kind == "local":
        await codex.connect(url)
    elif kind == "built-in":
        await codex.built_in(url, MODEL)
    else:
        await codex.named_openai(url, MODEL)
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
    session.check_served()
    session.check_history(main)
    await session.check_counts(main)
    found = [item for item in main[1].body["input"] if item["type"] == "tool_search_output"]
    assert [tool["name"] for item in found for tool in item["tools"]] == ["multi_agent_v1"]
    called = [piece[2] for one in main for piece in answer_pieces(one) if piece[0] == "call"]
    assert called == ["tool_search_call", "multi_agent_v1__close_agent"]
    assert (
        main[2].body["input"][-1]["output"].startswith("invalid agent id nobody")
    )  # Codex found the tool
    assert await session.prefix_breaks(main) == []


def profile(exchange: Exchange) -> tuple[dict[str, Any], str, dict[str, Any]]:
    """The tools by name, the base instructions and the other settings that a request has of its
    profile."""
    body = exchange.body
    tools = {tool.get("name", tool["type"]): tool for tool in body["tools"]}
    instructions = "".join(part["text"] for part in body["input"][0]["content"])
    return (
        tools,
        instructions,
        {name: body.get(name) for name in ("reasoning", "text", "parallel_tool_calls")},
    )


async def test_profiles_match_the_served_name(machine: Machine, session: Session) -> None:
    """Without a catalogue Codex falls back; an alias has the profile that Codex gives to gpt-5.5;
    ours has its own instructions."""
    url, asked, found = session.wire.url, "Answer with the single word HERE.", {}
    codex = CodexCli(machine)
    own = await codex.own_profiles(url)
    for name, model, catalogue in (
        ("fallback", MODEL, None),
        ("alias", "gpt-5.5", None),
        ("own", MODEL, own),
    ):
        await codex.plain(url, model, catalogue)
        ran = (await machine.run(*codex.command(), asked)).ok()
        warned = [item for item in items(ran) if item["type"] == "error"]
        assert bool(warned) is (name == "fallback"), warned
        assert items(ran)[-1]["text"] == "HERE"
        found[name] = profile(session.wire.turns[-1])
    await codex.connect(url)
    await codex.ask(asked)
    found["ours"] = profile(session.wire.turns[-1])
    session.check_served()
    tools = {name: set(each[0]) for name, each in found.items()}
    assert not tools["fallback"] & {"apply_patch", "tool_search"}
    assert "multi_agent_v1" in tools["fallback"]  # without tool_search nothing is deferred
    assert {"apply_patch", "tool_search", "exec_command"} <= tools["alias"]
    assert (found["alias"][0], found["alias"][2]) == (found["own"][0], found["own"][2])
    # Codex itself adds a line on task lists to the instructions where the catalogue is a file.
    added = [
        line for line in found["own"][1].splitlines() if line not in found["alias"][1].splitlines()
    ]
    assert len(added) == 1
    assert found["own"][1].replace(f"{added[0]}\n", "") == found["alias"][1]
    # `connect` switches off the search that OpenAI hosts; nothing else differs but the
    # instructions.
    tools_alone = {name: tool for name, tool in found["alias"][0].items() if name != "web_search"}
    assert found["ours"][0] == tools_alone
    assert found["ours"][2] == found["alias"][2] != found["fallback"][2]
    assert len({found[name][1] for name in ("fallback", "alias", "ours")}) == 3
    assert "apply_patch" in found["ours"][1]
