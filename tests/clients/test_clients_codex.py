"""Sessions of Codex: with a provider of its own, and as OpenAI, over a WebSocket."""

import pytest

from tests.clients.codex import CodexCli, items, work
from tests.clients.conftest import MODEL
from tests.clients.machine import Machine
from tests.clients.session import Session, continued
from tests.clients.tasks import FOLLOW, MUCH, ON
from tests.clients.wire import usage

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
        done = [
            data["item"]["type"] for name, data in remote[0].events if name.endswith("item.done")
        ]
        assert done == ["compaction"]
        assert any(item["type"] == "compaction" for item in turns[-1].body["input"])
    # Compacted before it begins, and again between the call and the answer.
    again = await codex.ask(
        FOLLOW.replace("p1.txt", "on.txt"), "-c", "model_auto_compact_token_limit=2000", resume=True
    )
    assert items(again)[-1]["text"] == "JOINED"
    assert machine.file("both.txt") == "on\nbeta one\n"
    session.check_served()
