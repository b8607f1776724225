"""Plays a file as a client of one API, and compares the answers with what the file expects."""

import json
from collections.abc import Callable, Mapping
from contextlib import AbstractAsyncContextManager
from dataclasses import KW_ONLY, dataclass, field
from itertools import zip_longest
from typing import Any

import aiohttp
import msgspec

from schemas.conversation import Call, Conversation, Message, Part, Result, Text, Thinking
from turnwire_tools.clients.answer import Api, ClientAnswer, Story
from turnwire_tools.clients.apis import CLIENTS
from turnwire_tools.clients.shared import AnswerReader, IllFormed, SseParser
from turnwire_tools.replay.gateway import GATE_TIMEOUT_S, MODEL, ClientProgress, ReplayGateway
from turnwire_tools.replay.replay_file import ReplayFile, ReplayTurn, ToolResult

HEADERS = {
    "content-type": "application/json",
    "x-turnwire-tool-dispatch": "1",
    "x-turnwire-reasoning-dispatch": "1",
    "x-turnwire-reasoning-details": "1",
}
TIMEOUT_S = 120.0
NOT_COUNTED = frozenset(
    (
        "max_tokens",
        "stream",
        "stop_sequences",
        "temperature",
        "top_k",
        "top_p",
        "metadata",
        "context_management",
    )
)
"""Fields of a request that the counting endpoints do not have."""

OnEvent = Callable[[str, Any], None]
"""Called with the name and data of each event of a stream."""
UserText = Callable[[ReplayTurn, str], str]
"""Returns the text of a user message, from the turn and its text in the file."""


@dataclass
class Played:
    """One turn as the client received it."""

    line: int
    answer: ClientAnswer
    problems: list[str]


@dataclass
class Session:
    """A client of one API with a conversation of its own."""

    replay: ReplayFile
    api: Api
    http: aiohttp.ClientSession
    url: str
    _: KW_ONLY
    model: str = MODEL
    gateway: ReplayGateway | None = None
    """The server in this process, for gates; None: another server."""
    stream: bool = True
    ask: UserText = lambda _turn, text: text
    headers: Mapping[str, str] = field(default_factory=dict)
    on_event: OnEvent = lambda _name, _data: None
    gate_timeout_s: float = GATE_TIMEOUT_S
    count: bool = False
    """Ask the API's counting endpoint too, and compare the count with the answer's usage."""

    def __post_init__(self) -> None:
        """Begins the conversation."""
        header = self.replay.header
        self.conversation = Conversation(
            self.model,
            [],
            system=[Text(header.system)] if header.system else [],
            tools=self.replay.tools,
            thinking=self._thinking(),
        )

    def _thinking(self) -> Thinking:
        """Output that begins outside of reasoning needs a prompt that does not open it."""
        if self.gateway is None and not self.replay.header.in_reasoning:
            return Thinking("disabled")
        return Thinking()

    async def turn(self, turn: ReplayTurn) -> Played:
        """Plays the next turn. Raises aiohttp.ClientError where the server does not answer."""
        body = self._request(turn)
        progress = ClientProgress(self.gate_timeout_s)
        if self.gateway is not None:
            # Without a stream the client receives nothing before the end, and gates would never
            # open.
            self.gateway.select(turn, progress if self.stream else None)

        client = CLIENTS[self.api]
        reader = client.reader()
        answer = reader.answer
        errors: list[str] = []
        async with self._post(client.path, body) as response:
            if response.status != 200:
                answer.end = "refused"
                answer.problem = f"{response.status}: {_error_message(await response.read())}"
            else:
                try:
                    await self._read(response, reader, progress)
                except IllFormed as error:
                    errors.append(f"ill-formed: {error}")
        self._append(Message("assistant", answer.parts))

        errors += progress.problems
        errors += problems(turn, answer, streamed=self.stream)
        if self.count and client.count_path and answer.usage is not None:
            errors += await self._count(client.count_path, body, answer.usage[0])
        return Played(turn.line, answer, errors)

    async def _read(
        self, response: aiohttp.ClientResponse, reader: AnswerReader, progress: ClientProgress
    ) -> None:
        """Reads an answer. Raises IllFormed."""
        if response.content_type != "text/event-stream":
            reader.document(await response.json())
            return
        parser = SseParser()
        async for chunk in response.content.iter_any():
            for name, data in parser.feed(chunk):
                self.on_event(name, data)
                reader.event(name, data)
            progress.update(reader.answer)
        reader.finish()

    def _post(self, path: str, body: bytes) -> AbstractAsyncContextManager[aiohttp.ClientResponse]:
        headers = {**HEADERS, **self.headers}
        timeout = aiohttp.ClientTimeout(TIMEOUT_S)
        return self.http.post(self.url + path, data=body, headers=headers, timeout=timeout)

    async def _count(self, path: str, body: bytes, prompt: int) -> list[str]:
        """The differences between the counting endpoint and the answer's usage."""
        fields = json.loads(body)
        counted_body = {name: fields[name] for name in fields if name not in NOT_COUNTED}
        async with self._post(path, msgspec.json.encode(counted_body)) as response:
            if response.status != 200:
                return [f"counting: {response.status}: {_error_message(await response.read())}"]
            counted = (await response.json())["input_tokens"]
        if counted == prompt:
            return []
        return [f"{counted} tokens are counted, the answer's usage has {prompt}"]

    def _request(self, turn: ReplayTurn) -> bytes:
        model = self.conversation.model
        if turn.request is not None:
            return msgspec.json.encode({"model": model, **turn.request, "stream": self.stream})
        if turn.conversation is not None:
            self.conversation = msgspec.structs.replace(turn.conversation, model=model)
            return CLIENTS[self.api].request(self.conversation, stream=self.stream)

        if turn.user is not None:
            self._append(Message("user", [Text(self.ask(turn, turn.user))]))
        else:
            self._append(Message("tool", self._results(turn.results or [])))
        conversation = msgspec.structs.replace(self.conversation, sampling=turn.sampling)
        return CLIENTS[self.api].request(conversation, stream=self.stream)

    def _results(self, results: list[str | ToolResult]) -> list[Part]:
        """The results for the calls of the previous turn, in their order."""
        calls = [part for part in self.conversation.messages[-1].parts if isinstance(part, Call)]
        answers = [ToolResult(result) if isinstance(result, str) else result for result in results]
        return [
            Result(call.call_id, [Text(result.text)], result.is_error, call.name)
            for call, result in zip(calls, answers, strict=False)
        ]

    def _append(self, message: Message) -> None:
        if message.parts:
            turns = [*self.conversation.messages, message]
            self.conversation = msgspec.structs.replace(self.conversation, messages=turns)


def problems(turn: ReplayTurn, answer: ClientAnswer, *, streamed: bool = True) -> list[str]:
    """The errors of an answer, compared with the file and in itself."""
    errors: list[str] = []
    if turn.expect is not None:
        errors += differences(turn.expect, answer.story)
    errors += _end_problems(turn, answer)
    if streamed and answer.end in ("stop", "calls", "length"):
        errors += _stream_problems(answer)
    return errors


def _end_problems(turn: ReplayTurn, answer: ClientAnswer) -> list[str]:
    """The errors in how an answer ends."""
    errors = []
    # An error before the first block is a status.
    is_early_error = turn.end == "error" and answer.end == "refused" and not turn.expect
    if turn.end is None:
        if answer.end in ("error", "refused"):
            errors.append(f"{answer.end}: {answer.problem}")
    elif answer.end != turn.end and not is_early_error:
        problem = f"want the end {turn.end}, got {answer.end}"
        if answer.problem:
            problem += f" ({answer.problem})"
        errors.append(problem)
    if answer.end is None:
        errors.append("the answer has no end")
    return errors


def _stream_problems(answer: ClientAnswer) -> list[str]:
    """The errors of a stream that has ended well."""
    errors = []
    if answer.usage is None:
        errors.append("the answer has no usage")
    dispatched = answer.dispatched
    if dispatched != answer.calls[: len(dispatched)]:
        errors.append(f"dispatched are {dispatched}, the calls are {answer.calls}")
    if answer.end == "calls" and not all(block.complete for block in answer.blocks):
        errors.append("a block has no end")
    return errors


def differences(expected: Story, received: Story) -> list[str]:
    """The differences between two stories, block by block."""
    pairs = zip_longest(map(_told, expected), map(_told, received), fillvalue="none")
    return [
        f"block {number}: want {want}, got {got}"
        for number, (want, got) in enumerate(pairs)
        if want != got
    ]


def _told(block: tuple[str, str]) -> str:
    kind, text = block
    return f"{kind} {text!r}"


def _error_message(body: bytes) -> str:
    try:
        return str(json.loads(body)["error"]["message"])
    except (KeyError, TypeError, ValueError):
        return body[:500].decode(errors="replace")
