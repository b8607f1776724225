"""Why a prompt was not in the cache, and how much of it was, through real processes and two
preprocessors. The engine's prompts are the judge of each number."""

from typing import Any

from tests.kit.messages_client import TOOLS, Client, say
from tests.kit.stack import MODEL

HEADER = "x-anthropic-billing-header: cc_version=2.1.328.{}; cc_entrypoint=cli;"
ANSWERS = say(*(f"Hm.\n</think>\n\nYes, {number}." for number in range(30)))


def talk(turns: int, first: str = "Hi.") -> list[dict[str, Any]]:
    """A session after some answers."""
    found = [{"role": "user", "content": f"{ANSWERS}{first}"}]
    for number in range(turns):
        found.append({"role": "assistant", "content": f"Yes, {number}."})
        found.append({"role": "user", "content": f"And {number}?"})
    return found


def missed(old: list[int], new: list[int]) -> int:
    """Tokens of an earlier prompt that a later one does not begin with."""
    pairs = enumerate(zip(old, new, strict=False))
    return len(old) - next((at for at, (one, other) in pairs if one != other), len(new))


async def test_messages_names_what_changed(client: Client) -> None:
    async def ask(
        previous: str | None, messages: list[dict[str, Any]], *, header: str = "b7f", tool: str = ""
    ) -> dict[str, Any]:
        texts = (HEADER.format(header), "Be good.")
        body = {
            "model": MODEL,
            "max_tokens": 50,
            "system": [{"type": "text", "text": text} for text in texts],
            "tools": [{**TOOLS[0], "description": tool}],
            "messages": messages,
            "diagnostics": {"previous_message_id": previous},
            "return_token_ids": True,
        }
        status, found = await client.post("/v1/messages", body)
        assert status == 200, found
        return found

    first = await ask(None, talk(0))
    grown = await ask(first["id"], talk(1), header="c8a")
    assert first["diagnostics"] is grown["diagnostics"] is None
    other_tool = await ask(grown["id"], talk(2), tool="Runs it.")
    other_text = await ask(grown["id"], talk(2, "Ho."))
    for reason, other in (("tools_changed", other_tool), ("messages_changed", other_text)):
        count = missed(grown["prompt_token_ids"], other["prompt_token_ids"])
        expected = {"type": reason, "cache_missed_input_tokens": count}
        assert other["diagnostics"] == {"cache_miss_reason": expected}
    lost = await ask("msg_unknown", talk(0))
    assert lost["diagnostics"] == {"cache_miss_reason": {"type": "previous_message_not_found"}}


async def test_responses_names_what_changed(client: Client) -> None:
    async def ask(
        compared: str | None, messages: list[dict[str, Any]], **more: Any
    ) -> dict[str, Any]:
        options = {"comparison_response_id": compared} if compared else {}
        body = {"model": MODEL, "input": messages, "prompt_cache_options": options, **more}
        status, found = await client.post("/v1/responses", body | {"return_token_ids": True})
        assert status == 200, found
        return found

    first = await ask(None, talk(0))
    assert "prompt_cache_diagnostics" not in first
    grown = await ask(first["id"], talk(1))
    assert grown["prompt_cache_diagnostics"] == {"type": "cache_hit"}
    other = await ask(grown["id"], talk(2, "Ho."), text={"verbosity": "low"})
    before = grown["prompt_token_ids"]
    assert other["prompt_cache_diagnostics"] == {
        "type": "cache_miss",
        "reason": "verbosity_changed",
        "cache_missed_tokens": missed(before, other["prompt_token_ids"]),
        "comparison_reusable_tokens": len(before),
    }
