"""Draws what agents ask and what the model writes: sessions with known answers.

The script engine plays output that is part of the prompt (`[[say]]…[[/say]]`), so each answer is
known beforehand. Every word names its session and its turn: text in the wrong place is seen at
once.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from random import Random

from schemas.conversation import ToolSpec
from services.families import find_family
from turnwire_tools.clients.answer import APIS, Api, Story

TENANTS = ("red", "blue")
TOOLS = [
    ToolSpec(
        "look", "Looks at a place.", {"type": "object", "properties": {"where": {"type": "string"}}}
    ),
    ToolSpec(
        "run",
        "Runs a command.",
        {"type": "object", "properties": {"cmd": {"type": "string"}, "count": {"type": "integer"}}},
    ),
]
_STYLE = find_family("qwen3_coder").style
"""How the demo model writes."""
PACES = (
    "",
    "",
    "[[burst 1]]",
    "[[burst 16]]",
    "[[pause 300]]",
    "[[pause 4000]]",
    "[[delay 60]]",
    "[[delay 400]]",
)
LONG_PACE = "[[pause 45000]]"
"""Once in a while an answer takes longer than recovery, so that a fault can be over before the turn
is."""
PACES_BETWEEN_CALLS = ("", "", "[[pause 1500]]", "[[pause 4000]]")
_ODD = (
    "é船🌊",
    "a < b && c",
    '{"k": [1, 2]}',
    "two\nlines",
    "<think>",
    "</tool_call>",
    "`code`",
    "end.",
)


@dataclass(frozen=True)
class Answer:
    """One turn of the model: what the engine plays, and what the client must get."""

    script: str
    story: Story
    results: list[str]
    """What the client returns for each call."""


@dataclass(frozen=True)
class Ask:
    """A user's message, and the model's turns until it has no more calls."""

    text: str
    answers: Sequence[Answer]


@dataclass(frozen=True)
class Behaviour:
    """How a client acts."""

    stream: bool = True
    chained: bool = False
    """Responses: sends `previous_response_id` in place of the history."""
    background: bool = False
    """Responses: starts in the background and follows the stream."""
    hang_up: float = 0.0
    """Chance to hang up in a stream and to send the request again."""
    repeat: float = 0.0
    """Chance that a request is sent twice at the same time."""
    too_long: float = 0.0
    """Chance to send a prompt that is longer than the window before a request."""
    slow: float = 0.0
    """Chance to read slowly."""
    pause_s: float = 0.2
    """Longest pause before the next request."""
    choices: int = 1
    """Chat Completions: how many answers are requested, `n`. The agent goes on with the first."""
    logprobs: bool = False
    """Chat Completions and Responses: requests log probabilities."""


@dataclass(frozen=True)
class Session:
    """One agent."""

    name: str
    api: Api
    tenant: str
    system: str
    asks: Sequence[Ask]
    behaviour: Behaviour
    tools: Sequence[ToolSpec] = field(default_factory=lambda: list(TOOLS))
    group: int = 0
    """Sessions of one group begin together, and their prompts begin alike. 0: it is alone."""

    @property
    def turns(self) -> int:
        """The number of the model's turns."""
        return sum(len(ask.answers) for ask in self.asks)


class Workload:
    """The sessions of one simulation, drawn from a seed."""

    def __init__(self, seed: int, sessions: int) -> None:
        self._random = Random(f"workload {seed}")
        self.sessions = [self._session(number) for number in range(sessions)]
        self._form_groups(Random(f"groups {seed}"))

    @property
    def turns(self) -> int:
        """The number of the model's turns in all sessions."""
        return sum(session.turns for session in self.sessions)

    def _form_groups(self, random: Random) -> None:
        """Makes siblings of some sessions: a random number of groups of random sizes."""
        alone = random.sample(range(len(self.sessions)), len(self.sessions) // 2)
        group = 0
        while alone and random.random() < 0.9:
            group += 1
            words = " ".join(
                f"g{group}w{number}" for number in range(random.choice((20, 100, 400)))
            )
            size = random.randint(2, 8)
            members, alone = alone[:size], alone[size:]
            for member in members:
                self.sessions[member] = replace(
                    self.sessions[member], group=group, system=f"Group {group}. {words}"
                )

    def _session(self, number: int) -> Session:
        random, name = self._random, f"s{number}"
        api = random.choice(APIS)
        responses = api == "responses"
        behaviour = Behaviour(
            stream=random.random() < 0.85,
            chained=responses and random.random() < 0.4,
            background=responses and random.random() < 0.25,
            hang_up=random.choice((0.0, 0.0, 0.3)),
            repeat=random.choice((0.0, 0.0, 0.2)),
            slow=random.choice((0.0, 0.0, 0.3)),
            too_long=random.choice((0.0, 0.0, 0.2)),
            pause_s=random.choice((0.05, 0.5, 3.0)),
            choices=random.choice((1, 1, 1, 2)) if api == "chat" else 1,
            logprobs=api != "messages" and random.random() < 0.3,
        )
        self._turn = 0
        asks = [self._ask(name, ask) for ask in range(random.randint(1, 3))]
        system = f"You are {name}. Work only for {name}."
        return Session(
            name=name,
            api=api,
            tenant=random.choice(TENANTS),
            system=system,
            asks=asks,
            behaviour=behaviour,
        )

    def _ask(self, name: str, number: int) -> Ask:
        calls = self._random.choice((0, 0, 1, 1, 2))
        answers = []
        for turn in range(calls + 1):
            answers.append(self._answer(f"{name}t{self._turn}", last=turn == calls))
            self._turn += 1
        said = "".join(f"[[say]]{answer.script}[[/say]]" for answer in answers)
        return Ask(f"{name}a{number} asks. {said}", answers)

    def _answer(self, name: str, *, last: bool) -> Answer:
        random = self._random
        words = iter(f"{name}w{number}" for number in range(1000))

        def prose(most: int) -> str:
            texts = [next(words) for _ in range(random.randint(1, most))]
            if random.random() < 0.3:
                texts.insert(random.randrange(len(texts)), random.choice(_ODD[:4]))
            return " ".join(texts)

        story: Story = []
        thought = prose(5)
        story.append(("reasoning", thought))
        script = (
            random.choice(("", "[[burst 4]]", "[[burst 16]]", "[[burst 64]]"))
            + self._paced(thought)
            + "\n</think>\n\n"
        )
        results: list[str] = []
        if last or random.random() < 0.6:
            text = prose(random.choice((3, 3, 12)))
            story.append(("text", text))
            script += self._paced(text)
        if not last:
            count = random.choice((1, 1, 2, 3))
            for at in range(count):
                script += (
                    ("\n" if at else "\n\n" if len(story) == 2 else "") if len(story) > 1 else ""
                )
                if random.random() < 0.5:
                    where = " ".join(next(words) for _ in range(random.randint(1, 3)))
                    if random.random() < 0.2:
                        where += " " + random.choice(_ODD)
                    script += _STYLE.write_call("look", {"where": self._paced(where)})
                    story.append(("call", f"look {_json({'where': where})}"))
                else:
                    command, number = next(words), random.randint(0, 9)
                    script += _STYLE.write_call("run", {"cmd": command, "count": number})
                    story.append(("call", f"run {_json({'cmd': command, 'count': number})}"))
                script += random.choice(PACES_BETWEEN_CALLS)
                results.append(f"{name} result {at} {next(words)}")
        return Answer(script, story, results)

    def _paced(self, text: str) -> str:
        """The text, with a change of pace somewhere."""
        random = self._random
        pace = LONG_PACE if random.random() < 0.03 else random.choice(PACES)
        at = text.find(" ", random.randrange(len(text)))
        if at > 0:
            return text[:at] + pace + text[at:]
        return text if pace == LONG_PACE else pace + text  # siblings are held until the first token


def _json(value: object) -> str:
    return json.dumps(value, ensure_ascii=False)
