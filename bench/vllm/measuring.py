"""Measures both servers, in turn: sessions, streams side by side, and how long a complete call
takes to the client."""

import time
from collections.abc import AsyncIterator, Mapping
from itertools import count
from pathlib import Path

from msgspec import Struct

from bench.client import Client, Target
from bench.clocks import Marks
from bench.cpu import Meter, descendants
from bench.exchange import Exchange
from bench.loops import closed_loop
from bench.stack import Running
from bench.vllm.servers import NAME
from bench.vllm.session import DIALECTS, TURNS, Answer, Dialect, Session, Style, single

TIMEOUT_S = 900.0
ENGINE = "engine"
_MODEL = ("VLLM::EngineCor", "VLLM::Worker")


class Failed(Exception):
    """A server's answer was wrong."""


class TurnRow(Struct, frozen=True):
    """One turn of a session."""

    side: str
    api: str
    style: Style
    turn: int
    prompt: int
    cached: int
    output: int
    ttft_ms: float
    tokens_per_s: float
    """From the first output to the last."""

    @property
    def computed(self) -> int:
        """Tokens of the prompt that the engine had to compute."""
        return self.prompt - self.cached


class StreamRow(Struct, frozen=True):
    """Some streams at once."""

    side: str
    api: str
    model: str
    streams: int
    tokens_per_s: float
    engine_us: float
    """CPU per token of the processes that run the model."""
    serving_us: float
    """CPU per token of all other processes of the server."""


class DispatchRow(Struct, frozen=True):
    """One call, after which the model continues."""

    side: str
    api: str
    ms: float
    """From the token that closes the call to the event with which the client has all of it."""


async def sessions(
    servers: Mapping[str, Running], api: str, style: Style, tokens: int
) -> AsyncIterator[TurnRow]:
    """One session on each side, turn by turn. Raises Failed, also where the sides' outputs
    differ."""
    dialect = DIALECTS[api]
    seed = time.time_ns() // 1000 % 1_000_000
    talks = {
        side: Session(dialect, NAME, script=style, tokens=tokens, seed=seed) for side in servers
    }
    clients = _clients(servers, dialect)
    for turn in range(TURNS):
        answers: dict[str, Answer] = {}
        for side, talk in talks.items():
            exchange = await clients[side].exchange(talk.body(turn), keep=True)
            answer = answers[side] = dialect.read(_good(side, exchange).each())
            if len(answer.calls) != (turn < TURNS - 1) or not answer.thinking:
                raise Failed(
                    f"{side}, {api}, turn {turn + 1}: {len(answer.calls)} calls, "
                    f"{answer.thinking!r}"
                )
            usage = exchange.tokens(dialect.api)
            if usage is None:
                raise Failed(f"{side}, {api}, turn {turn + 1}: no usage")
            ttft_ms = round((answer.first_at - exchange.due) / 1e6, 2)
            rate = round((usage.output - 1) / (answer.last_at - answer.first_at) * 1e9, 1)
            counts = (usage.prompt, usage.cached, usage.output)
            yield TurnRow(side, api, style, turn + 1, *counts, ttft_ms, rate)
            talk.take(answer)
        if len({(answer.thinking.strip(), answer.text.strip()) for answer in answers.values()}) > 1:
            raise Failed(f"{api}, turn {turn + 1}: the sides read other texts: {answers}")
    for client in clients.values():
        client.close()


async def streams(
    servers: Mapping[str, Running], api: str, model: str, number: int, rounds: int
) -> list[StreamRow]:
    """`number` stories at once, one side after the other, `rounds` times. Raises Failed."""
    dialect, rows, numbers = DIALECTS[api], [], count()

    def story(_: int) -> bytes:
        return single(dialect, NAME, f"Tell story {next(numbers)}. [[script story]]")

    for at in range(rounds + 1):
        for side, server in servers.items():
            client = Client(Target.of(server.url), dialect.api, timeout_s=TIMEOUT_S)
            meter = Meter(_processes(next(iter(server.pids.values()))))
            meter.start()
            begun = time.monotonic()
            exchanges = await closed_loop(client, story, number, 2)
            seconds = time.monotonic() - begun
            cost = meter.stop().processes
            client.close()
            tokens = 0
            for exchange in exchanges:
                usage = _good(side, exchange).tokens(dialect.api)
                tokens += usage.output if usage else 0
            if at:  # the first round warms up
                engine = sum(used for name, used in cost.items() if name.startswith(ENGINE))
                share = [
                    round(1e6 * used / tokens, 1) for used in (engine, sum(cost.values()) - engine)
                ]
                rows.append(StreamRow(side, api, model, number, round(tokens / seconds, 1), *share))
    return rows


async def dispatches(
    servers: Mapping[str, Running], api: str, requests: int, marks: Path
) -> AsyncIterator[DispatchRow]:
    """Measures calls followed by text, one side after the other. Raises Failed."""
    dialect, clock = DIALECTS[api], Marks(marks)
    clients = _clients(servers, dialect)
    for number in range(requests + 1):
        for side, client in clients.items():
            mark = f"{api}-{side.replace(' ', '-')}-{number}"
            body = single(dialect, NAME, f"Call {number}. [[script dispatch]] [[mark {mark}]]")
            exchange = await client.exchange(body, keep=True)
            (call,) = dialect.read(_good(side, exchange).each()).calls
            left = clock.left_at("close", mark)
            if left is None:
                raise Failed(f"{side}, {api}: no time for {mark}")
            if number:
                yield DispatchRow(side, api, round((call.whole_at - left) / 1e6, 2))
    for client in clients.values():
        client.close()


def _clients(servers: Mapping[str, Running], dialect: Dialect) -> dict[str, Client]:
    return {
        side: Client(Target.of(server.url), dialect.api, "fresh", timeout_s=TIMEOUT_S)
        for side, server in servers.items()
    }


def _processes(pid: int) -> dict[str, int]:
    """All processes of a server; those that run the model by the name which vLLM gives them."""
    found = {}
    for one in (pid, *descendants(pid)):
        name = Path(f"/proc/{one}/comm").read_text(encoding="utf-8").strip()
        found[f"{ENGINE if name.startswith(_MODEL) else name}-{one}"] = one
    return found


def _good(side: str, exchange: Exchange) -> Exchange:
    if not exchange.finished:
        raise Failed(f"{side}: {exchange.error}")
    return exchange
