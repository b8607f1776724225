"""Real clients as the agents of rollouts: they get nothing but another base URL, and each unbroken
conversation is one sample with every decoded token once."""

import json
from collections.abc import AsyncIterator, Sequence
from typing import Any

import aiohttp
import pytest

from tests.clients.agents import Opencode
from tests.clients.claude import ClaudeCode
from tests.clients.codex import CodexCli
from tests.clients.conftest import MODEL
from tests.clients.machine import Machine
from tests.clients.tasks import EDIT, FOLLOW, PARALLEL
from tests.clients.test_clients_prefix import CLAUDE, CODEX, LOG, tidied
from tests.clients.test_clients_tree import OVER, TASK
from tests.kit.messages_client import say
from tests.kit.model_output import written_call
from tests.kit.stack import Stack
from tests.pipeline.tap import SAMPLE, Tap

pytestmark = pytest.mark.timeout(900)

SAMPLING = {"temperature": 1.0, "max_tokens": 8000}


class Rollout:
    """A rollout, as its trainer sees it."""

    def __init__(self, http: aiohttp.ClientSession, document: dict[str, Any], tap: Tap) -> None:
        self.url: str = document["base_urls"]["anthropic"]
        self._http = http
        self._tap = tap

    async def samples(self) -> list[SAMPLE]:
        """Finishes; returns the samples, after the independent check of what was decoded."""
        async with self._http.post(f"{self.url}/finish") as response:
            document = await response.json()
            assert (document["status"], document["missing"]) == ("finished", []), document
        async with self._http.get(f"{self.url}/samples") as response:
            *samples, last = (await response.text()).splitlines()
            assert json.loads(last)["metadata"] == {"task": 1}
            assert json.loads(last)["missing"] == []
            return self._tap.check("\n".join(samples))


@pytest.fixture
async def rollout(stack: Stack, tap: Tap) -> AsyncIterator[Rollout]:
    async with aiohttp.ClientSession(stack.url) as http:
        body = {"model": MODEL, "sampling": SAMPLING, "metadata": {"task": 1}}
        async with http.post("/rollouts", json=body) as response:
            assert response.status == 200, await response.text()
            yield Rollout(http, await response.json(), tap)


def check(samples: Sequence[SAMPLE], turns: int, helpers: int = 0) -> SAMPLE:
    """The conversation is one sample of so many turns; others go back to it. Returns it."""
    (main,) = [sample for sample in samples if sample["kind"] == "main"]
    assert len(main["turns"]) == turns
    assert (main["departs"], main["parent"]) == (None, None)
    assert sum(sample["kind"] == "helper" for sample in samples) == helpers
    for sample in samples:
        if sample["kind"] == "helper":
            assert sample["parent"]["sample"] == main["id"]
            assert sample["parent"]["cause"] == "helper"
    assert None not in [
        logprob for logprob, bit in zip(main["logprobs"], main["loss_mask"], strict=True) if bit
    ]
    return main


async def test_claude_code_is_an_agent(machine: Machine, rollout: Rollout) -> None:
    """A long session with calls that it spells differently, and two helpers."""
    claude = await ClaudeCode(machine).connect(rollout.url)
    agent = {"description": "look", "prompt": TASK, "subagent_type": "general-purpose"}
    call = written_call("Agent", **agent, run_in_background="false")
    delegated = [f"I delegate.\n</think>\n\n{call}\n{call}", OVER]
    asked = [*CLAUDE, tidied(machine), delegated]
    async with claude.dialog() as dialog:
        for outputs in asked:
            await dialog.ask(say(*outputs))
    assert sorted(machine.file("log.txt").splitlines()) == sorted(LOG)
    main = check(await rollout.samples(), sum(map(len, asked)), helpers=2)
    kinds = {block["kind"] for span in main["turns"] for block in span["blocks"]}
    assert kinds == {"reasoning", "text", "tool_use"}


@pytest.mark.parametrize("kind", ["http", "websocket"])
async def test_codex_is_an_agent(machine: Machine, rollout: Rollout, kind: str) -> None:
    codex = CodexCli(machine)
    if kind == "http":
        await codex.connect(rollout.url)
    else:
        await codex.built_in(rollout.url, MODEL)
    for number, outputs in enumerate(CODEX):
        await codex.ask(say(*outputs), resume=number > 0)
    assert sorted(machine.file("log.txt").splitlines()) == sorted(LOG)
    check(await rollout.samples(), sum(map(len, CODEX)))


@pytest.mark.parametrize("api", ["chat", "messages", "responses"])
async def test_opencode_is_an_agent(machine: Machine, rollout: Rollout, api: str) -> None:
    opencode = Opencode(machine)
    await opencode.connect(rollout.url, api)
    machine.write("notes.txt", "alpha one\n")
    answers = [await opencode.ask(EDIT)]
    for prompt in (PARALLEL, FOLLOW):
        answers.append(await opencode.ask(prompt, resume=True))
    assert (answers[0], answers[2]) == ("EDITED", "JOINED")
    assert machine.file("both.txt") == "1\nbeta one\n"
    samples = await rollout.samples()
    main = [sample for sample in samples if sample["kind"] == "main"]
    check(samples, len(main[0]["turns"]))
    assert [sample["kind"] for sample in samples if sample not in main] == ["background"]
