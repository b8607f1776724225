"""Runs of an agent with made-up ids, in which it is known which turn each sample goes back to."""

import json
from array import array
from dataclasses import dataclass, field
from itertools import count

from hypothesis import strategies as st

from schemas.conversation import Call, Client, Text
from schemas.events import FinishReason
from services.rollouts.sample_lines import Kind, Parent, ParentCause, Sample
from services.rollouts.sampled_turn import SampledTurn, digest_of
from services.rollouts.samples import Sampler


@dataclass
class Session:
    """What one of the run's conversations has sent and received."""

    client: Client
    question: list[str]
    sample: str = ""
    """The sample that its next turn continues; "": it begins one."""
    parent: Parent | None = None
    """Of that sample, when it begins."""
    ids: list[int] = field(default_factory=list)
    """All ids up to the next output."""
    answers: list[bytes] = field(default_factory=list)
    turns: list[SampledTurn] = field(default_factory=list)


class AgentRun:
    """Makes turns, and notes the parent of each sample."""

    def __init__(self, *, with_ids: bool) -> None:
        """`with_ids`: the client sends ids of sessions and parents."""
        self.with_ids = with_ids
        self.turns: list[SampledTurn] = []
        self.parents: dict[str, Parent | None] = {}
        self.kinds: dict[str, Kind] = {}
        self.samples: dict[str, str] = {}
        """The sample of each turn."""
        self.calls: list[tuple[SampledTurn, str, str]] = []
        """Turn, call id and argument of calls that have started no helper yet."""
        self.sessions = [self._session(["Do it all."], Client("s0" if with_ids else None))]
        self._ids = count(100)
        self._names = count()

    def _session(self, question: list[str], client: Client) -> Session:
        return Session(client, question)

    def new_ids(self, number: int) -> list[int]:
        return [next(self._ids) for _ in range(number)]

    def turn(
        self, session: Session, *, calls: int = 0, text: str | None = None, asks: int = 1
    ) -> SampledTurn:
        """The next turn of a session; `asks`: ids that its request adds."""
        session.ids += self.new_ids(asks)
        output = self.new_ids(2)
        at = float(len(self.turns))
        name = f"t{len(self.turns)}"
        written: list[Text | Call] = [Text(text or f"Text number {name} of this run.")]
        for n in range(calls):
            prompt = f"Look for {next(self._names)}"
            call = Call(f"{name}-{n}", "Task", json.dumps({"of": [{"prompt": prompt}], "n": 1}))
            written.append(call)
        made = SampledTurn(
            id=name,
            time=at,
            ended=at + 0.5,
            model="m",
            client=session.client,
            prompt=array("I", session.ids),
            output=array("I", output),
            reason=FinishReason.STOP,
            stop_id=output[-1],
            logprobs=[-0.5, None],
            written=written,
            answers=[*session.answers],
            question=session.question,
        )
        self.turns.append(made)
        if not session.sample:
            session.sample = name
            self.parents[name] = session.parent
            self.kinds[name] = self._kind(session)
        self.samples[name] = session.sample
        session.turns.append(made)
        session.ids += output
        session.answers.append(digest_of(written))
        for part in written[1:]:
            assert isinstance(part, Call)
            argument = json.loads(part.arguments)["of"][0]["prompt"]
            self.calls.append((made, part.call_id, argument))
        return made

    def _kind(self, session: Session) -> Kind:
        parent = session.parent
        if session.client.kind != "main" or parent is None:
            return session.client.kind
        return "helper" if parent.cause == "helper" else self.kinds[parent.sample]

    def helper(self, call: int) -> Session:
        """A new session, which a call has started."""
        turn, call_id, prompt = self.calls.pop(call)
        client = Client()
        if self.with_ids:
            client = Client(f"h{call_id}", parent=turn.client.session, kind="helper")
        session = self._session(["<reminder>Be brief.</reminder>", f" {prompt}\n"], client)
        session.parent = Parent(self.samples[turn.id], turn.id, "helper", call_id)
        self.sessions.append(session)
        return session

    def again(self, session: Session, at: int, cause: ParentCause) -> Session:
        """The session from its turn `at` on: `retry` with the same prompt, `fork` with another
        text after the turn."""
        turn = session.turns[at]
        copy = Session(session.client, session.question)
        copy.ids = turn.prompt.tolist()
        kept = at
        if cause == "fork":
            copy.ids += turn.output.tolist()
            kept = at + 1
        copy.answers = session.answers[:kept]
        copy.turns = session.turns[:kept]
        if cause == "retry":
            turn = next(one for one in self.turns if one.prompt == turn.prompt)
        copy.parent = Parent(self.samples[turn.id], turn.id, cause)
        self.sessions.append(copy)
        return copy

    def compact(self, session: Session) -> None:
        """Replaces a session's history by a summary, which its next turn writes."""
        name = next(self._names)
        summary = f"Number {name} of the tasks is done, <b>the others</b> are not."
        thoughts = "Let me think." * 30
        text = f"<analysis>{thoughts}</analysis>\n<summary>{summary}</summary>"
        turn = self.turn(session, text=text)
        sample = session.sample
        again = f"This goes on from an earlier conversation.\nSummary:\n{summary}\nGo on."
        session.question = [*session.question[:1], again]
        session.parent = Parent(sample, turn.id, "compaction")
        session.sample = ""
        session.ids = []
        session.answers = []
        session.turns = []

    def title(self, session: Session) -> SampledTurn:
        """A request in the background of a session that has a turn."""
        client = Client(session.client.session, kind="background")
        title = Session(client, [f"Title for {next(self._names)}"])
        newest = [turn for turn in self.turns if self._is_beside(turn, session)][-1]
        title.parent = Parent(self.samples[newest.id], newest.id, "background")
        return self.turn(title)

    def _is_beside(self, turn: SampledTurn, session: Session) -> bool:
        client = turn.client
        return client.session == session.client.session and client.kind != "background"


STEPS = ("turn", "turn", "turn", "helper", "retry", "fork", "compact", "title")


@st.composite
def runs(draw: st.DrawFn) -> AgentRun:
    run = AgentRun(with_ids=draw(st.booleans()))
    run.turn(run.sessions[0], calls=1)
    for step in draw(st.lists(st.sampled_from(STEPS), max_size=14)):
        session = draw(st.sampled_from(run.sessions))
        take(run, step, session, draw)
    return run


def take(run: AgentRun, step: str, session: Session, draw: st.DrawFn) -> None:
    match step:
        case "helper" if run.calls:
            helper = run.helper(draw(st.integers(0, len(run.calls) - 1)))
            run.turn(helper)
        case "retry" if session.turns:
            again = run.again(session, draw(st.integers(0, len(session.turns) - 1)), "retry")
            run.turn(again, asks=0)
        case "fork" if len(session.turns) > 1:
            run.turn(run.again(session, draw(st.integers(0, len(session.turns) - 2)), "fork"))
        case "compact" if session.turns:
            run.compact(session)
            run.turn(session)
        case "title" if session.turns:
            run.title(session)
        case _:
            run.turn(session, calls=draw(st.integers(0, 2)))


def samples_of(run: AgentRun) -> list[Sample]:
    sampler = Sampler(one_run=True)
    for turn in run.turns:
        sampler.add(turn)
    return sampler.close()
