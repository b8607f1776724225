"""An hour of a team's agents, as messages of the bus: sessions with helpers, titles, images, held
and failed turns, and prompts that were computed again.

`python -m tests.tools.inspector.team FILE` writes it as `turnwire tap --json` does, for
`turnwire inspect FILE` (docs/inspector.md).
"""

import json
import random
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from zlib import crc32

import msgspec
from msgspec import Raw

from schemas import subjects
from schemas.control import Cancel
from schemas.conversation import (
    Call,
    Client,
    Conversation,
    Media,
    Message,
    Part,
    Reasoning,
    Result,
    Sampling,
    Text,
    ToolSpec,
)
from schemas.errors import Overloaded
from schemas.events import Failed, Finish, FinishReason, Prepared, PromptImage, TurnEvent, Usage
from schemas.frames import EventEntry, EventFrame, TokenEntry, TokenFrame
from schemas.requests import GenerateRequest, ParseContext, TurnRequest, encode_generate
from schemas.token_ids import pack_ids
from tests.kit.conversations import assistant
from tests.tools.inspector.by_hand import block_events
from turnwire_tools.tap.messages import line_of

START = 1_795_000_000.0
"""Unix time of the first request."""
MODEL = "glm-5.2"
PREFILL = 9000.0
"""Prompt tokens a second."""
DECODE = 90.0
"""Output tokens a second."""
IMAGE = "4d1e0c6bb17f4a0f"
HOSTILE = "<img src=x onerror=\"document.title='owned'\"><script>document.title='owned'</script>"


@dataclass
class Agent:
    """A session, whose turns follow each other."""

    client: Client
    system: str
    tools: Sequence[ToolSpec]
    now: float
    worker: str = "worker-1"
    messages: list[Message] = field(default_factory=list)


class Team:
    """Plays sessions. `lines` has the messages by time."""

    def __init__(self) -> None:
        self._messages: list[tuple[float, str, bytes]] = []
        self._seen: dict[str, list[list[int]]] = {}
        self._turns = 0

    @property
    def lines(self) -> bytes:
        """The messages as `turnwire tap --json` writes them."""
        ordered = sorted(self._messages, key=lambda message: message[0])
        lines = (line_of(at + 0.002, subject, data) for at, subject, data in ordered)
        return b"".join(msgspec.json.encode(line) + b"\n" for line in lines)

    def turn(self, agent: Agent, asked: list[Part], answer: list[Part], **more: Any) -> str:
        """A turn of an agent: what its client adds, and what the model answers. Options: `pause`
        before it in seconds, `held_for`, `held_s`, `error`, `hangup`, `images`."""
        agent.now += more.get("pause", 1.5)
        agent.messages += _messages(asked)
        self._turns += 1
        turn = f"{crc32(str(self._turns).encode()):08x}{self._turns:016x}"
        conversation = Conversation(
            MODEL,
            list(agent.messages),
            system=[Text(agent.system)],
            tools=list(agent.tools),
            client=agent.client,
        )
        start = agent.now
        request = TurnRequest(turn, "frontend-1", conversation, time=start)
        self._send(start, subjects.turn(MODEL, "preprocessor-1"), request)
        if more.get("error"):
            self._events(turn, start + 0.05, Failed(Overloaded(more["error"]).info))
            return turn
        end = self._play(agent, turn, conversation, answer, more)
        agent.messages.append(assistant(*answer))
        agent.now = end
        return turn

    def _play(
        self,
        agent: Agent,
        turn: str,
        conversation: Conversation,
        answer: list[Part],
        more: dict[str, Any],
    ) -> float:
        ids = _ids(conversation)
        common = self._common(agent.worker, ids)
        cached = common // 16 * 16
        placed = agent.now + 0.004 + len(ids) / 4e6 + more.get("held_s", 0.0)
        context = ParseContext(MODEL, "qwen3_coder", "frontend-1", len(ids), 8192)
        generate = GenerateRequest(
            turn,
            1,
            MODEL,
            pack_ids(ids),
            "parser-1",
            "frontend-1",
            Sampling(),
            [],
            Raw(msgspec.json.encode(context)),
            reused=common,
            recall="reused",
            held_s=more.get("held_s", 0.0),
            held_for=more.get("held_for", ""),
            images=more.get("images", []),
            time=placed,
        )
        self._send(placed, subjects.generate(MODEL, agent.worker), generate)
        self._events(turn, placed + 0.001, Prepared(len(ids), 8192, agent.worker, "parser-1"))
        now: float = placed + 0.03 + (len(ids) - cached) / PREFILL
        output: list[int] = []
        for block, part in enumerate(answer):
            part_ids = list(_part_ids(part))
            entry = TokenEntry(turn, 1, len(output), part_ids, cached=cached)
            frame = TokenFrame(agent.worker, 2, [entry], time=now)
            self._send(now, subjects.tokens("parser-1"), frame)
            output += part_ids
            events = block_events(block, part)
            self._events(turn, now + 0.001, *events[:1])
            now += len(part_ids) / DECODE
            self._events(turn, now, *events[1:], tokens=len(output))
        if more.get("hangup"):
            self._send(now, subjects.cancel(MODEL), Cancel(turn, 1, "hangup"))
            return now
        usage = Usage(prompt=len(ids), cached=cached, output=len(output) + 1)
        self._events(turn, now + 0.002, Finish(FinishReason.STOP, len(answer), usage))
        self._seen.setdefault(agent.worker, []).append(ids + output)
        return now

    def _common(self, worker: str, ids: list[int]) -> int:
        """The tokens that a prompt has in common with an earlier one of the worker."""
        longest = max((_common(ids, seen) for seen in self._seen.get(worker, [])), default=0)
        return min(longest, len(ids) - 1)

    def _events(self, turn: str, at: float, *events: TurnEvent, tokens: int = 0) -> None:
        frame = EventFrame("parser-1", 1, [EventEntry(turn, 1, list(events), tokens)], at)
        self._send(at, subjects.events("frontend-1"), frame)

    def _send(self, at: float, subject: str, message: Any) -> None:
        data = msgspec.json.encode(message)
        if isinstance(message, GenerateRequest):
            data = encode_generate(message)
        self._messages.append((at, subject, data))


def _messages(parts: list[Part]) -> list[Message]:
    """Results are in messages of their own."""
    messages = [Message("tool", [part]) for part in parts if isinstance(part, Result)]
    others: list[Part] = [part for part in parts if not isinstance(part, Result)]
    return messages + ([Message("user", others)] if others else [])


def _common(one: list[int], other: list[int]) -> int:
    pairs = enumerate(zip(one, other, strict=False))
    return next((at for at, (a, b) in pairs if a != b), min(len(one), len(other)))


def _ids(conversation: Conversation) -> list[int]:
    """A token for four characters of each part."""
    texts = [part.text for part in conversation.system]
    texts += [
        f"{tool.name} {tool.description} {json.dumps(tool.schema)}" for tool in conversation.tools
    ]
    ids = [token for text in texts for token in _text_ids(text)]
    for message in conversation.messages:
        for part in message.parts:
            ids += _part_ids(part)
    return ids


def _part_ids(part: Part) -> Iterator[int]:
    match part:
        case Text():
            yield from _text_ids(part.text)
        case Reasoning():
            yield from _text_ids(part.text or "")
        case Call():
            yield from _text_ids(f"{part.name} {part.arguments}")
        case Result():
            for one in part.parts:
                yield from _part_ids(one) if isinstance(one, Text | Media) else ()
        case Media():
            yield from range(700)


def _text_ids(text: str) -> Iterator[int]:
    for at in range(0, len(text), 4):
        yield crc32(text[at : at + 4].encode()) % 50_000


def _tool(name: str, description: str, *arguments: str) -> ToolSpec:
    properties = {argument: {"type": "string"} for argument in arguments}
    schema = {"type": "object", "properties": properties, "required": list(arguments)}
    return ToolSpec(name, description, schema)


def _manual(name: str, rules: int) -> str:
    """Long instructions, as agents have them."""
    source = random.Random(name)
    verbs = ("Prefer", "Never skip", "Always run", "Keep", "Read", "Explain", "Check", "Avoid")
    things = ("small commits", "the tests", "the linter", "existing helpers", "public names")
    whens = ("before an edit", "in every answer", "if a test fails", "when a file is long")
    lines = (
        f"{number}. {source.choice(verbs)} {source.choice(things)} {source.choice(whens)}."
        for number in range(1, rules)
    )
    return "\n".join(lines)


CLAUDE_TOOLS = [
    _tool("Bash", "Runs a command in a shell.\n" + _manual("bash", 70), "command", "description"),
    _tool("Read", "Reads a file.\n" + _manual("read", 20), "file_path"),
    _tool(
        "Edit",
        "Replaces a text in a file.\n" + _manual("edit", 25),
        *("file_path", "old_string", "new_string"),
    ),
    _tool("Task", "Starts a helper.\n" + _manual("task", 50), "description", "prompt"),
    _tool("WebFetch", "Reads a page.\n" + _manual("fetch", 15), "url", "prompt"),
]
CODEX_TOOLS = [
    _tool("shell", "Runs a command.\n" + _manual("shell", 15), "command"),
    _tool("apply_patch", "Applies a patch.\n" + _manual("patch", 40), "input"),
]
REMINDER = (
    "<system-reminder>\nThe project's rules are in CLAUDE.md. Follow them.\n</system-reminder>"
)
TEST = """def test_login_survives_a_slow_clock(server, clock):
    clock.advance(seconds=30)
    session = server.login("ada", "correct horse")
    assert session.expires > clock.now()
    assert server.sessions() == [session]
"""


def _result(call: Call, text: str) -> Result:
    return Result(call.call_id, [Text(text)])


def _call(name: str, number: int, **arguments: str) -> Call:
    return Call(f"toolu_{name.lower()}_{number}", name, json.dumps(arguments))


def alice(team: Team) -> None:
    """Claude Code: a question, a helper, an image, and a date that changed in the instructions."""
    client = Client("c0ffee", "claude-cli/2.1.328 (external, cli)", "alice")
    day = "You are Claude Code, an agent for work on code.\nToday's date is 2026-11-23.\n"
    manual = _manual("claude", 240)
    agent = Agent(client, day + manual, CLAUDE_TOOLS, START + 2700)
    question = "The login test is flaky on CI: it fails about once in twenty runs. Find out why and fix it."
    title = Agent(
        Client("c0ffee", client.user_agent, "alice", kind="background"),
        "Generate a title for this session. Answer with JSON that has one member, title.",
        [],
        START + 2700.1,
    )
    team.turn(title, [Text(question)], [Text('{"title": "Fix the flaky login test"}')], pause=0)

    grep = _call(
        "Bash", 1, command="rg -n 'flaky|login' tests/ | head -40", description="Find the test"
    )
    team.turn(
        agent,
        [Text(REMINDER), Text(question)],
        [
            Reasoning(
                "The failure is rare, so timing is a likely cause. First I look for the test and "
                "for what it waits on."
            ),
            Text("I'll start with the test and how it sets its clock."),
            grep,
        ],
        pause=0,
    )
    found = "\n".join(
        f"tests/test_login.py:{at}: def test_login_{at}(server)" for at in range(8, 46)
    )
    read = _call("Read", 2, file_path="tests/test_login.py")
    task = _call(
        "Task",
        3,
        description="Search the history",
        prompt="Search the git history for changes to the session's expiry since March. Report commits and what they changed.",
    )
    second = team.turn(agent, [_result(grep, found)], [read, task])

    helper = Agent(
        Client("c0ffee/agent-1", client.user_agent, "alice", parent="c0ffee", kind="helper"),
        "You are a helper of Claude Code. Report briefly.\n" + _manual("helper", 60),
        CLAUDE_TOOLS[:2],
        agent.now + 0.2,
        "worker-2",
    )
    log = _call(
        "Bash",
        4,
        command="git log --oneline --since=2026-03-01 -- auth/session.py",
        description="History",
    )
    team.turn(helper, [Text(json.loads(task.arguments)["prompt"])], [log], pause=0.2)
    commits = "8f31c02 Sessions expire by the server's clock\n11ab9d4 Round expiry to seconds"
    report = "Two commits: 8f31c02 moved expiry to the server's clock, 11ab9d4 rounds it **down** to whole seconds."
    team.turn(helper, [_result(log, commits)], [Text(report)], held_for=second, held_s=0.212)

    agent.now = helper.now
    edit = _call(
        "Edit",
        5,
        file_path="auth/session.py",
        old_string="expires = int(clock.now() + TTL)",
        new_string="expires = math.ceil(clock.now() + TTL)  # never earlier than promised",
    )
    source = TEST * 12
    team.turn(
        agent,
        [_result(read, source), _result(task, report)],
        [
            Reasoning(
                "Rounding down loses up to a second. With a TTL of 30 s and a clock that has advanced by 30 s, the session may already be over."
            ),
            Text(
                "Expiry is rounded down, so a session can end up to a second early. I round up instead."
            ),
            edit,
        ],
    )
    run = _call(
        "Bash",
        6,
        command="pytest -q tests/test_login.py --count 200",
        description="Run it 200 times",
    )
    team.turn(agent, [_result(edit, "The file was changed.")], [run])
    team.turn(
        agent,
        [_result(run, "." * 400 + "\n200 passed in 31.07s")],
        [
            Text(
                "Fixed: 200 runs pass. `int()` rounded the expiry down, so that it could lie before the moment of the login. I use `math.ceil` now."
            )
        ],
    )
    agent.system = day.replace("23.", "24.") + manual
    shot = Media("image", "image/png", 48_213, hash=IMAGE, width=1280, height=720)
    at = len(
        _ids(Conversation(MODEL, agent.messages, system=[Text(agent.system)], tools=CLAUDE_TOOLS))
    )
    team.turn(
        agent,
        [Text("Good. This is the dashboard after the deploy: are the failed logins gone?"), shot],
        [
            Text(
                "Yes. The last failed login is from 14:02, before the deploy at 14:10; since then the red line is at zero."
            )
        ],
        pause=40,
        images=[PromptImage(IMAGE, at + 19, 700)],
    )


def bob(team: Team) -> None:
    """Codex: three calls at once, an error, and a history that was cut."""
    client = Client("b0b", "codex_cli_rs/0.169.0 (Debian 12)", "bob")
    agent = Agent(
        client, "You are Codex.\n" + _manual("codex", 200), CODEX_TOOLS, START + 1500, "worker-2"
    )
    calls = [
        Call(f"call_{number}", "shell", json.dumps({"command": command}))
        for number, command in enumerate(("cat Cargo.toml", "ls crates", "cargo tree -d"))
    ]
    environment = "<environment_context>\n<cwd>/home/bob/wire</cwd>\n</environment_context>"
    question = "Upgrade tokio to 2.1 in all crates and make it compile"
    team.turn(
        agent,
        [Text(environment), Text(question)],
        [Reasoning("Three commands show where tokio is used."), *calls],
    )
    texts = (
        '[workspace]\nmembers = ["crates/*"]',
        "api\nstore\nwire",
        "tokio v1.47.0\ntokio v2.1.3\n" * 60,
    )
    results: list[Part] = [_result(call, text) for call, text in zip(calls, texts, strict=True)]
    patch = Call(
        "call_9",
        "apply_patch",
        json.dumps(
            {
                "input": '*** Begin Patch\n*** Update File: Cargo.toml\n-tokio = "1"\n+tokio = "2.1"\n*** End Patch'
            }
        ),
    )
    team.turn(
        agent, results, [Text("Two versions are linked. I change the workspace first."), patch]
    )
    failed = Result("call_9", [Text("error: patch does not apply at line 14")], is_error=True)
    team.turn(agent, [failed], [Text("The line has moved; I read it again before the next patch.")])
    agent.messages = agent.messages[:1]
    summary = "Summary: tokio is in three crates; the workspace has version 1. Next: patch Cargo.toml at line 17."
    team.turn(agent, [Text(summary)], [Text("I patch line 17.")], pause=20)
    team.turn(agent, [Text("go on")], [], error="all workers are busy")


def carol(team: Team) -> None:
    """opencode, with hostile markup in every text, and a turn that the client left."""
    client = Client("ca501", "opencode/1.18.33", "carol <b>")
    agent = Agent(
        client,
        f"You are opencode. {HOSTILE}\n" + _manual("opencode", 80),
        [_tool(f"<i>{HOSTILE}", HOSTILE, "path")],
        START + 3000,
    )
    title = Agent(
        Client("ca501", client.user_agent, "carol <b>", kind="background"),
        "You are a title generator.",
        [],
        START + 3000,
    )
    team.turn(title, [Text(HOSTILE)], [Text(f"Markup {HOSTILE}"[:110])], pause=0)
    call = Call(HOSTILE, f"<i>{HOSTILE}", json.dumps({HOSTILE: HOSTILE}))
    team.turn(agent, [Text(f"Escape this: {HOSTILE}")], [Reasoning(HOSTILE), Text(HOSTILE), call])
    media = Media("image", f"image/svg {HOSTILE}", url="javascript:alert(1)", title=HOSTILE)
    bad = Result(HOSTILE, [Text(HOSTILE), media], is_error=True)
    team.turn(agent, [bad], [Text("I cannot render")], hangup=True)


def nightly(team: Team) -> None:
    """Many short sessions of a program."""
    source = random.Random(7)
    tools = [_tool("lookup", "Finds an article.\n" + _manual("lookup", 10), "query")]
    for number in range(60):
        client = Client(f"n{number}", "python-httpx/0.28", "nightly")
        agent = Agent(
            client,
            "You classify tickets.\n" + _manual("tickets", 120),
            tools,
            START + number * 55 + source.random() * 30,
            f"worker-{1 + number % 2}",
        )
        ticket = f"Ticket {4100 + number}: the invoice of {source.choice(('May', 'June', 'July'))} is {source.choice(('missing', 'wrong', 'unreadable'))}"
        call = Call(f"call_n{number}", "lookup", json.dumps({"query": ticket}))
        team.turn(agent, [Text(ticket)], [call], pause=0)
        for step in range(source.randrange(1, 4)):
            team.turn(
                agent,
                [_result(call, f"Article {step}: " + _manual(str(step), 12))],
                [Text("billing"), call],
            )


def play() -> bytes:
    """The whole hour, as `turnwire tap --json` writes it."""
    team = Team()
    for session in (nightly, bob, carol, alice):
        session(team)
    return team.lines


if __name__ == "__main__":
    Path(sys.argv[1]).write_bytes(play())
