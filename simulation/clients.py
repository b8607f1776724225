"""Simulated agents: they play sessions over HTTP as real clients do, with retries, hang-ups and
slow reading.

Each request is judged as it ends: its events by the rules of its API (`turnwire_tools.clients`),
its blocks by what the model wrote.
"""

import asyncio
import copy
import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Any, Literal, TypeAlias

from msgspec.structs import replace

from bench.http1 import BadResponse, ResponseParser
from schemas.conversation import Call, Conversation, Message, Part, Result, Text
from simulation.canonical import choice_of
from simulation.judges.stories import mistakes
from simulation.sessions import Answer as Wanted
from simulation.sessions import Session
from simulation.world import WINDOW, World
from turnwire_tools.clients.answer import ClientAnswer
from turnwire_tools.clients.apis import CLIENTS
from turnwire_tools.clients.shared import AnswerReader, IllFormed, SseParser

Outcome: TypeAlias = Literal["answer", "error", "refused", "broken", "hung up", "pending"]
"""How a request ended: with its answer; with the API's error event; with an error status; the
connection broke; the client hung up. `pending`: a background response has not ended."""
MOST_TRIES = 40
RETRY_S, LONGEST_RETRY_S = 0.5, 16.0
"""The first pause before a request is sent again, which doubles each time, and the longest one."""
READ_BYTES = 65_536
ENDLESS = f"Never ends. [[say]][[delay 2000]]{'on ' * 400}[[/say]]"
"""A question with an answer that takes far longer than anything is waited for."""
TOO_LONG = "far " * WINDOW
"""A question with a prompt that is longer than the window."""
SILENCE_S = 700.0
"""Time without a byte after which a client gives up: far above every promise."""
SILENCE = "not a byte for a long time"
KEEPALIVE_S = 12.0
"""The longest time without a byte in a stream that has begun: frontends send a keep-alive after ten
seconds."""


@dataclass
class Request:
    """One request, and how it ended."""

    session: str
    turn: int
    frontend: str
    began: float
    ended: float = 0.0
    outcome: Outcome = "broken"
    status: int = 0
    problem: str = ""
    events: list[tuple[str, Any]] = field(default_factory=list)
    silences: list[tuple[float, float]] = field(default_factory=list)
    """From when to when a stream that had begun had no bytes, where that is longer than
    `KEEPALIVE_S`."""
    too_long: bool = False
    """Whether the prompt is longer than the window, so that it must be refused."""
    readers: Sequence[AnswerReader] = field(kw_only=True)
    """One for each choice."""

    @property
    def answer(self) -> ClientAnswer:
        """The answer so far; the first of several choices."""
        return self.readers[0].answer


class Agent:
    """Plays one session."""

    def __init__(self, world: World, session: Session, random: Random, frontend: str = "") -> None:
        """`frontend`: the only one that it uses; by default it takes any."""
        self.world = world
        self.session = session
        self.requests: list[Request] = []
        self.problems: list[str] = []
        """What no fault excuses."""
        self.answers: list[Request] = []
        """The requests with the session's answers, in order."""
        self.reads: list[tuple[Request, Request]] = []
        """Requests with stored answers, and the requests that read these again."""
        self.done = False
        self.task: asyncio.Task[None] | None = None
        self._random = random
        self._frontend = frontend
        self._turn = 0
        self._previous = ""
        self._conversation = Conversation(
            "m", [], system=[Text(session.system)], tools=[*session.tools]
        )

    @property
    def left(self) -> int:
        """How many of the session's turns have no answer yet."""
        return 0 if self.done else self.session.turns - len(self.answers)

    async def run(self) -> None:
        """Plays all turns."""
        try:
            for ask in self.session.asks:
                self._add(Message("user", [Text(ask.text)]))
                new: list[Message] = [self._conversation.messages[-1]]
                for wanted in ask.answers:
                    await asyncio.sleep(self._random.random() * self.session.behaviour.pause_s)
                    answer = await self._answered(wanted, new)
                    if answer is None:
                        return
                    self._add(Message("assistant", answer.parts))
                    new = []
                    if wanted.results:
                        calls = [part for part in answer.parts if isinstance(part, Call)]
                        results: list[Part] = [
                            Result(call.call_id, [Text(text)], False, call.name)
                            for call, text in zip(calls, wanted.results, strict=True)
                        ]
                        self._add(Message("tool", results))
                        new = [self._conversation.messages[-1]]
                    self._turn += 1
        finally:
            self.done = True

    def _add(self, message: Message) -> None:
        self._conversation = replace(
            self._conversation, messages=[*self._conversation.messages, message]
        )

    def _note(self, text: str) -> None:
        self.world.note(self.session.name, text)

    def _wrong(self, text: str) -> None:
        self.problems.append(f"{self.session.name} turn {self._turn}: {text}")
        self._note(f"WRONG {text}")

    async def _answered(self, wanted: Wanted, new: Sequence[Message]) -> ClientAnswer | None:
        """Requests one turn until it is answered; None if it never was."""
        behaviour = self.session.behaviour
        for number in range(MOST_TRIES):
            hang_up = self._random.random() < behaviour.hang_up
            if hang_up and self._random.random() < 0.3:
                await self._abandon()
            if self._random.random() < behaviour.too_long:
                await self._exceed()
            body = self._body(new)
            if self._random.random() < behaviour.repeat:
                first, second = await asyncio.gather(self._request(body), self._request(body))
                self._judge(second, wanted)
                request = first
            else:
                request = await self._request(body, hang_up=hang_up)
            self._judge(request, wanted)
            if request.outcome == "answer":
                self.answers.append(request)
                self._previous = _response_id(request)
                return request.answer
            if request.status == 400 and "Previous response" in request.problem:
                self._previous = ""  # the store lost it: the client sends its history
            if request.outcome != "hung up":
                await asyncio.sleep(
                    min(LONGEST_RETRY_S, RETRY_S * 2**number) * (0.5 + self._random.random())
                )
        self._wrong(
            f"no answer after {MOST_TRIES} requests; the last one: {self.requests[-1].problem}"
        )
        return None

    # -- one request

    async def _abandon(self) -> None:
        """Asks something else, and hangs up at once or later, long before the answer's end: only a
        cancellation ends that turn."""
        conversation = Conversation("m", [Message("user", [Text(ENDLESS)])])
        body = CLIENTS[self.session.api].request(conversation, stream=self.session.behaviour.stream)
        request = asyncio.create_task(self._request(body))
        await asyncio.wait(
            [request], timeout=self._random.random() * self._random.choice((0.02, 8.0))
        )
        request.cancel()
        await asyncio.wait([request])

    async def _exceed(self) -> None:
        """Asks something with a prompt that does not fit."""
        conversation = Conversation("m", [Message("user", [Text(TOO_LONG)])])
        request = await self._request(
            CLIENTS[self.session.api].request(conversation, stream=self.session.behaviour.stream)
        )
        request.too_long = True
        if request.outcome == "answer":
            self._wrong("a prompt that is longer than the window has an answer")

    def _body(self, new: Sequence[Message]) -> bytes:
        behaviour, conversation = self.session.behaviour, self._conversation
        chained = behaviour.chained and self._previous
        if chained:
            conversation = replace(conversation, messages=[*new])
        body = json.loads(CLIENTS[self.session.api].request(conversation, stream=behaviour.stream))
        if behaviour.chained or behaviour.background:
            body["store"] = True
        if chained:
            body["previous_response_id"] = self._previous
        if behaviour.background:
            body["background"] = True
        if behaviour.choices > 1:
            body["n"] = behaviour.choices
        if behaviour.logprobs:
            body["top_logprobs"] = 2
            if self.session.api == "chat":
                body["logprobs"] = True
            else:
                body["include"] = [*body["include"], "message.output_text.logprobs"]
        return json.dumps(body).encode()

    async def _request(self, body: bytes, *, hang_up: bool = False) -> Request:
        frontend = self._frontend_to_use()
        if frontend is None:
            return self._ended(self._new(""), "broken", "no frontend")
        port, name = frontend
        request = self._new(name)
        self._note(f"turn {self._turn} requests {name}")
        head = self._head("POST", CLIENTS[self.session.api].path, len(body))
        await self._exchange(request, port, head + body, hang_up=hang_up)
        if self.session.behaviour.background:
            await self._follow(request)
        return self._ended(request, request.outcome, request.problem)

    def _frontend_to_use(self) -> tuple[int, str] | None:
        """The port and the name of a frontend; None: there is none."""
        frontends = sorted(
            (running.port, name)
            for name, running in self.world.running.items()
            if running.stage == "frontend" and self._frontend in ("", name)
        )
        return self._random.choice(frontends) if frontends else None

    async def _exchange(
        self, request: Request, port: int, message: bytes, *, hang_up: bool = False
    ) -> None:
        """Sends an HTTP request on a connection of its own, reads the answer, and sets the
        request's outcome."""
        try:
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
        except OSError as error:
            request.outcome, request.problem = "broken", str(error)
            return
        try:
            writer.write(message)
            await self._read(request, reader, hang_up)
        except TimeoutError:  # an OSError, too
            request.outcome, request.problem = "broken", SILENCE
        except (OSError, BadResponse) as error:
            request.outcome, request.problem = "broken", f"{type(error).__name__}: {error}"
        except IllFormed as error:
            self._wrong(f"ill-formed: {error}")
            request.outcome, request.problem = "error", str(error)
        finally:
            writer.transport.abort()

    def _new(self, frontend: str) -> Request:
        readers = [
            CLIENTS[self.session.api].reader() for _ in range(self.session.behaviour.choices)
        ]
        return Request(
            self.session.name, self._turn, frontend, self.world.loop.now, readers=readers
        )

    async def _follow(self, request: Request) -> None:
        """Waits for a background response, and reads the rest of its stream where that broke
        off."""
        began = request.began
        while request.outcome in ("pending", "broken") and (id := _response_id(request)):
            if request.outcome == "broken":  # each such connection is judged
                part = copy.copy(request)
                part.began, part.ended = began, self.world.loop.now
                self.requests.append(part)
            await asyncio.sleep(0.5)
            began = self.world.loop.now
            frontend = self.world.running.get(request.frontend)
            if frontend is None:
                return
            path = f"{CLIENTS['responses'].path}/{id}"
            if self.session.behaviour.stream:
                after = max(
                    (data["sequence_number"] for _, data in request.events if data), default=0
                )
                path += f"?stream=true&starting_after={after}"
            await self._exchange(request, frontend.port, self._head("GET", path, 0))

    async def read_back(self) -> None:
        """Reads the stored answers again, from any frontend."""
        if self.session.behaviour.chained or self.session.behaviour.background:
            for answer in self.answers:
                ended = next(
                    data
                    for _, data in reversed(answer.events)
                    if data and ("response" in data or "id" in data)
                )
                document = ended.get("response", ended)
                if (frontend := self._frontend_to_use()) is None:
                    return
                port, name = frontend
                read = self._new(name)
                path = f"{CLIENTS['responses'].path}/{document['id']}"
                await self._exchange(read, port, self._head("GET", path, 0))
                if read.outcome == "answer" and read.events != [("document", document)]:
                    stored = read.events[0][1]
                    differ = [
                        name
                        for name in {**document, **stored}
                        if stored.get(name) != document.get(name)
                    ]
                    read.problem = (
                        "read, sent: "
                        f"{[(name, stored.get(name), document.get(name)) for name in differ]}"
                    )
                self.reads.append((answer, read))

    def _head(self, verb: str, path: str, size: int) -> bytes:
        headers = {
            "host": "localhost",
            "content-type": "application/json",
            "content-length": str(size),
            "authorization": f"Bearer {self.session.tenant}",
            "x-turnwire-tool-dispatch": "1",
            "x-turnwire-reasoning-details": "1",
            "x-session-id": self.session.name,
            # frontends log it beside the turn's own id
            "x-request-id": f"{self.session.name}-{self._turn}",
        }
        lines = [
            f"{verb} {path} HTTP/1.1",
            *(f"{name}: {value}" for name, value in headers.items()),
        ]
        return "\r\n".join(lines).encode() + b"\r\n\r\n"

    async def _read(self, request: Request, stream: asyncio.StreamReader, hang_up: bool) -> None:
        """Reads an answer, or the rest of one, and sets the request's outcome. Raises as
        `StreamReader`, BadResponse, IllFormed."""
        http, events, readers, document = ResponseParser(), SseParser(), request.readers, b""
        request.outcome, request.problem = "broken", "the stream ended without its last event"
        slow = self._random.random() < self.session.behaviour.slow
        leave_after = self._random.randint(1, 30) if hang_up else 0
        streams = False
        while not http.complete:
            waited_from = self.world.loop.now
            async with asyncio.timeout(SILENCE_S):
                data = await stream.read(READ_BYTES)
            if streams and self.world.loop.now > waited_from + KEEPALIVE_S:
                request.silences.append((waited_from, self.world.loop.now))
            if not data:
                http.end()
                break
            part = http.feed(data)
            request.status = http.status
            streams = http.headers.get(b"content-type", b"").startswith(b"text/event-stream")
            if streams:
                for name, event in events.feed(part):
                    request.events.append((name, event))
                    choice = choice_of(event)
                    for reader in readers if choice is None else readers[choice : choice + 1]:
                        reader.event(name, event)
            else:
                document += part
            if leave_after and len(request.events) >= leave_after:
                request.outcome, request.problem = "hung up", ""
                return
            if slow:
                await asyncio.sleep(self._random.random() * 0.4)
        if request.status != 200:
            request.outcome, request.problem = (
                "refused",
                f"{request.status}: {self._message(document)}",
            )
            if request.status in (503, 529) and b"retry-after" not in http.headers:
                self._wrong(f"no Retry-After: {request.problem}")
            return
        if document:
            decoded = json.loads(document)
            request.events[:] = [("document", decoded)]
            if decoded.get("status") in ("queued", "in_progress"):
                request.outcome = "pending"
                return
            for choice, reader in enumerate(readers):
                its_choice = (
                    {"choices": decoded["choices"][choice:]} if "choices" in decoded else {}
                )
                reader.document(decoded | its_choice)
        if request.answer.end == "error":
            request.outcome, request.problem = "error", request.answer.problem or ""
        elif all(reader.answer.end is not None for reader in readers):
            if not document:
                for reader in readers:
                    reader.finish()
            request.outcome, request.problem = "answer", ""

    def _message(self, document: bytes) -> str:
        """The message of an error's document, which has the same place in all APIs."""
        try:
            return str(json.loads(document)["error"]["message"])
        except (KeyError, TypeError, ValueError):
            self._wrong(f"an error that has not the API's form: {document[:300]!r}")
            return ""

    def _ended(self, request: Request, outcome: Outcome, problem: str) -> Request:
        request.ended, request.outcome, request.problem = self.world.loop.now, outcome, problem
        self.requests.append(request)
        self._note(f"turn {request.turn} {outcome} {problem}")
        return request

    def _judge(self, request: Request, wanted: Wanted) -> None:
        behaviour = self.session.behaviour
        is_live = behaviour.stream and not behaviour.background
        for reader in request.readers:
            for mistake in mistakes(
                reader.answer, wanted, is_whole=request.outcome == "answer", is_live=is_live
            ):
                self._wrong(f"after {request.outcome}: {mistake}")


def _response_id(request: Request) -> str:
    for _, data in reversed(request.events):
        if isinstance(data, dict):
            response = data.get("response", data)
            if isinstance(response, dict) and str(response.get("id", "")).startswith("resp"):
                return str(response["id"])
    return ""
