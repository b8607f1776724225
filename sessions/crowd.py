"""Plays sessions that look alike at the same time: equal visible first turns, other tokens and
often other thoughts.

Each prompt must belong to its own session: made of its engine's ids, if the client returns anything
that shows which session it is; otherwise the template's text in the tokenizer's tokens. Each
thought has a word of its session.
"""

import random
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

from msgspec.structs import replace

from schemas.conversation import Client as Caller
from services.preprocessor.library import assemble
from services.preprocessor.model.model_setup import ModelSetup
from services.preprocessor.prompt.prompt_maker import Prompt
from sessions.clients import CLIENTS, Dialogue
from sessions.models import empty_ledger
from sessions.turn_writer import WORD, Choices, Model, go_on, start
from sessions.walk import SEALER, Before

THOUGHT = re.compile(r"w9\d{7}x")
"""A word that only one session has in its thoughts."""
ALIKE = 3
"""Turns that look the same to the clients of all sessions."""
_PROVE_REASONING = (
    "claude-code",
    "claude-code-omitted",
    "codex",
    "openclaw-responses",
    "openclaw-chat",
    "opencode-chat",
)


class Chance(Choices):
    """Decisions of a seeded generator."""

    def __init__(self, seed: int | str) -> None:
        super().__init__(b"")
        self._random = random.Random(seed)

    def below(self, count: int) -> int:
        return self._random.randrange(count)


@dataclass
class Member:
    """One session."""

    number: int
    client: str
    session: str | None
    tenant: str | None
    model: Model
    dialogue: Dialogue
    before: list[Before] = field(default_factory=list)
    proven: list[bool] = field(default_factory=list)
    """For each turn: whether the client has returned something that no other session has. Until
    then, turns may be rendered, and stay so."""


class Crowd:
    """`size` sessions of one model, which share its ledger."""

    def __init__(
        self, setup: ModelSetup, seed: int, *, size: int = 10, turns: int = 5, tenants: int = 1
    ) -> None:
        self.setup, self.ledger = setup, empty_ledger(setup)
        self.counts: Counter[str] = Counter()
        """Number of prompts that were exact, rendered, wrong or foreign."""
        self.faults: list[str] = []
        self._seed, self._turns = seed, turns
        self._chance = Chance(f"{seed} order")
        self._same_thoughts, self._talks = self._chance.below(3) == 0, self._chance.below(2) == 0
        self._members = [self._member(number, tenants) for number in range(size)]

    def play(self) -> Counter[str]:
        """Plays all sessions, in any order, and returns the counts."""
        open_sessions = list(self._members)
        while open_sessions:
            member = self._chance.of(open_sessions)
            self._step(member)
            if len(member.before) == self._turns:
                open_sessions.remove(member)
        return self.counts

    def _member(self, number: int, tenants: int) -> Member:
        model = Model(self.setup, self.ledger, Chance(f"{self._seed} start"), number)
        names = list(CLIENTS)
        client = names[self._chance.below(len(names))]
        session = f"session {number}" if self._chance.below(3) == 0 else None
        tenant = f"tenant {number % tenants}" if tenants > 1 else None
        return Member(number, client, session, tenant, model, start(model))

    def _step(self, member: Member) -> None:
        turn, model = len(member.before), member.model
        alike = turn < ALIKE
        prompt = self._prompt(member)
        if member.before:
            self._judge(member, prompt)
        model.calls = bool(self.setup.family.style.call) and not (alike and self._talks)
        model.choose = Chance(f"{self._seed} {turn} {'' if alike else member.number}")
        model.sample = Chance(f"{self._seed} {turn} tokens {member.number}")
        thoughts = iter(range(100))
        owner = 0 if self._same_thoughts and alike else member.number + 1
        model.think = lambda: f"w9{owner:03d}{turn:02d}{next(thoughts):02d}x so."
        output = model.answer(prompt)
        member.before.append(Before(prompt, output))
        for entry in output.entries:
            self.ledger.add(entry)
        kinds = {block.kind for block in output.blocks}
        returned = "reasoning" in kinds and member.client in _PROVE_REASONING
        sealed = returned and not member.client.endswith("chat")
        own_thought = returned and owner > 0
        ids = "tool_use" in kinds or (member.client in ("codex", "responses-ids") and bool(kinds))
        evidence = bool(output.entries) and (ids or sealed or own_thought)
        shown = member.session is not None or not alike or evidence
        member.proven.append(shown or member.proven[-1:] == [True])
        go_on(member.dialogue, output, model)

    def _prompt(self, member: Member) -> Prompt:
        conversation = CLIENTS[member.client](member.dialogue)
        conversation = replace(
            conversation, client=Caller(session=member.session, tenant=member.tenant)
        )
        unseal = SEALER.of(member.tenant).open
        prompt = assemble(conversation, self.setup, unseal=unseal, ledger=self.ledger)
        self.ledger.keep(prompt.encoded)
        return prompt

    def _judge(self, member: Member, prompt: Prompt) -> None:
        verdict = self._verdict(member, [*prompt.ids], prompt.text)
        self.counts[verdict] += 1
        if verdict in ("wrong", "foreign"):
            turn, outcome = len(member.before), prompt.encoded.outcome
            self.faults.append(
                f"{verdict}: seed {self._seed}, {member.client}, turn {turn}, {outcome}: "
                f"{prompt.text}"
            )

    def _verdict(self, member: Member, ids: list[int], text: str) -> str:
        own = {word for turn in member.before for word in turn.output.words}
        decoded = WORD.findall(self.setup.tokenizer.decode(ids))
        if decoded != WORD.findall(text):
            return "wrong"
        if any(THOUGHT.fullmatch(word) and word not in own for word in decoded):
            return "foreign"
        kept = next((turn for turn in reversed(member.before) if turn.kept_in(text)), None)
        if kept is not None and ids[: len(kept.ids)] == kept.ids:
            return "exact" if self._is_plain(ids, len(kept.ids), text) else "foreign"
        whole = kept is not None and kept.whole_in(text, self.ledger.model.ends)
        if kept is not None and whole and member.proven[member.before.index(kept)]:
            return "wrong"
        # Only ids of the session's own engine, and the tokenizer's tokens.
        starts = [0, *(len(turn.ids) for turn in member.before if ids[: len(turn.ids)] == turn.ids)]
        return (
            "rendered" if any(self._is_plain(ids, start, text) for start in starts) else "foreign"
        )

    def _is_plain(self, ids: Sequence[int], start: int, text: str) -> bool:
        rest = list(ids[start:])
        written = self.setup.tokenizer.decode(rest)
        return text.endswith(written) and rest == [*self.setup.encoder.encode(written)]
