"""Plays a file over one API, as a client of it, and says what is not as it should be."""

import asyncio
import json
from collections.abc import Callable, Mapping
from types import ModuleType
from typing import Any

import aiohttp
import msgspec
from msgspec import Struct, field

from schemas.conversation import Call, Conversation, Part, Result, Text, Thinking
from schemas.conversation import Turn as Said
from services.cli.replay import chat, messages, responses
from services.cli.replay.answer import Answer, Events, Reader
from services.cli.replay.gateway import GATE_TIMEOUT_S, MODEL, Gates, ReplayGateway
from services.cli.replay.script import Api, Replay, Turn, differences

CLIENTS: Mapping[Api, ModuleType] = {"messages": messages, "responses": responses, "chat": chat}
DISPATCH = {"x-turnwire-tool-dispatch": "1", "x-turnwire-reasoning-dispatch": "1"}
DETAILS = {"x-turnwire-reasoning-details": "1"}
TIMEOUT_S = 120.0

OnEvent = Callable[[str, Any], None]
"""Called with the name and data of each event of a stream."""
Ask = Callable[[Turn, str], str]
"""What to say to the server as a user: the turn, and its text in the file."""


class Played(Struct):
    """One turn as the client saw it."""

    line: int
    answer: Answer = field(default_factory=Answer)
    problems: list[str] = field(default_factory=list)


class Session:
    """A client of one API with a conversation of its own.

    `gateway`: that of the server in this process, for gates; None: the server is another's.
    """

    def __init__(
        self,
        replay: Replay,
        api: Api,
        http: aiohttp.ClientSession,
        url: str,
        *,
        model: str = MODEL,
        gateway: ReplayGateway | None = None,
        stream: bool = True,
        ask: Ask = lambda _turn, text: text,
        headers: Mapping[str, str] | None = None,
        on_event: OnEvent = lambda _name, _data: None,
        gate_timeout_s: float = GATE_TIMEOUT_S,
    ) -> None:
        self._replay = replay
        self._client = CLIENTS[api]
        self._http = http
        self._url = url
        self._gateway = gateway
        self._stream = stream
        self._ask = ask
        self._headers = {**DISPATCH, **DETAILS, **(headers or {})}
        self._on_event = on_event
        self._gate_timeout_s = gate_timeout_s
        self.conversation = Conversation(model, [], tools=replay.tools)
        if gateway is None and not replay.in_reasoning:
            # The file's output begins outside of a thought, so the server's prompt must not open one.
            self.conversation = msgspec.structs.replace(self.conversation, thinking=Thinking("disabled"))
        if replay.system:
            self.conversation = msgspec.structs.replace(self.conversation, system=[Text(replay.system)])

    async def play(self) -> list[Played]:
        """All turns. Raises aiohttp.ClientError where there is no server."""
        return [await self.turn(turn) for turn in self._replay.turns]

    async def turn(self, turn: Turn) -> Played:
        """The next turn."""
        body = self._request(turn)
        # Without a stream nobody sees anything before the end: gates would never open.
        gates = Gates(self._gate_timeout_s) if self._stream and self._gateway is not None else None
        if self._gateway is not None:
            self._gateway.begin(turn, gates)
        reader: Reader = self._client.Reader()
        played = Played(turn.line, reader.answer)
        async with self._http.post(
            self._url + self._client.PATH,
            data=body,
            headers={"content-type": "application/json", **self._headers},
            timeout=aiohttp.ClientTimeout(total=TIMEOUT_S),
        ) as response:
            if response.status != 200:
                reader.answer.end = "refused"
                reader.answer.problem = f"{response.status}: {_message(await response.read())}"
            elif response.content_type == "text/event-stream":
                await self._read(response, reader, gates)
            else:
                reader.document(await response.json())
        if gates is not None:
            played.problems += gates.problems
        played.problems += problems(turn, reader.answer, streamed=self._stream)
        self._append(Said("assistant", reader.answer.parts()))
        return played

    async def _read(self, response: aiohttp.ClientResponse, reader: Reader, gates: Gates | None) -> None:
        events, answer = Events(), reader.answer
        loop = asyncio.get_running_loop()
        async for chunk in response.content.iter_any():
            for name, data in events.feed(chunk):
                self._on_event(name, data)
                reader.event(name, data)
                while len(answer.marks) < len(answer.blocks) and answer.blocks[len(answer.marks)].complete:
                    answer.marks.append((answer.blocks[len(answer.marks)].kind, loop.time()))
            if gates is not None:
                gates.look(answer)

    def _request(self, turn: Turn) -> bytes:
        if turn.request is not None:
            return msgspec.json.encode({"model": self.conversation.model, **turn.request, "stream": self._stream})
        if turn.conversation is not None:
            self.conversation = msgspec.structs.replace(turn.conversation, model=self.conversation.model)
        elif turn.user is not None:
            self._append(Said("user", [Text(self._ask(turn, turn.user))]))
        else:
            self._append(Said("tool", self._results(turn)))
        asked = self.conversation
        if turn.conversation is None:
            asked = msgspec.structs.replace(asked, sampling=turn.sampling)
        body: bytes = self._client.request(asked, stream=self._stream)
        return body

    def _results(self, turn: Turn) -> list[Part]:
        """The file's results for the calls of the turn before, in their order."""
        calls = [part for part in self.conversation.turns[-1].parts if isinstance(part, Call)]
        given = turn.results or []
        return [
            Result(call.call_id, result.parts, result.is_error, call.name)
            for call, result in zip(calls, given, strict=False)
        ]

    def _append(self, said: Said) -> None:
        if said.parts:
            turns = [*self.conversation.turns, said]
            self.conversation = msgspec.structs.replace(self.conversation, turns=turns)


def problems(turn: Turn, answer: Answer, *, streamed: bool = True) -> list[str]:
    """What is wrong with an answer: against the file, and in itself."""
    found = differences(turn.expect, answer.story) if turn.expect is not None else []
    early = turn.end == "error" and answer.end == "refused" and not turn.expect  # a status, where nothing was said yet
    if turn.end is not None and answer.end != turn.end and not early:
        why = f" ({answer.problem})" if answer.problem else ""
        found.append(f"want the end {turn.end}, got {answer.end}{why}")
    elif turn.end is None and answer.end in ("error", "refused"):
        found.append(f"{answer.end}: {answer.problem}")
    if answer.after_end:
        found.append(f"behind the end came {', '.join(answer.after_end)}")
    if answer.end is None:
        found.append("the answer has no end")
    if streamed and answer.end in ("stop", "calls", "length"):
        if answer.usage is None:
            found.append("the answer does not tell its tokens")
        if answer.dispatched and answer.dispatched != answer.calls[: len(answer.dispatched)]:
            found.append(f"dispatched were {answer.dispatched}, the calls are {answer.calls}")
        if answer.end == "calls" and not all(block.complete for block in answer.blocks):
            found.append("a block has no end")
    return found


def _message(body: bytes) -> str:
    try:
        error = json.loads(body)["error"]
        return str(error["message"])
    except (KeyError, TypeError, ValueError):
        return body[:500].decode(errors="replace")
