"""Judges answers, prompts and stored answers: they are those of the run without faults."""

import math
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from simulation.canonical import by_choice, canonical, log_probabilities, without_prompt_tokens
from simulation.clients import SILENCE, Agent, Request
from simulation.faults import GRACE_S, LOSING, Applied
from simulation.world import World, tokenizer

LATE_S = 25.0
"""How much longer than without faults a request may take, without the time of faults: readers are
slow by chance."""

NOTICED_S = 80.0
"""Time until the bus notices that a machine is gone: four intervals of pings. Until then it may be
a suspended one."""

_ASK = re.compile(r"s\d+a\d+ asks\.")


@dataclass
class Reference:
    """The run of a workload without faults."""

    answers: dict[str, list[Any]]
    """Session → its answers' events."""
    probabilities: dict[str, list[Any]]
    """Session → the log probabilities in its answers."""
    prompts: dict[str, list[int]]
    """The turn that a prompt is for → its ids."""
    seconds: dict[str, list[float]]
    """Session → how long its answers took."""

    @classmethod
    def of(cls, agents: Sequence[Agent], world: World) -> "Reference":
        """Takes the answers and prompts of a run that has ended."""
        answers = {
            agent.session.name: [canonical(request.events) for request in agent.answers]
            for agent in agents
        }
        seconds = {
            agent.session.name: [answer.ended - answer.began for answer in agent.answers]
            for agent in agents
        }
        probabilities = {
            agent.session.name: [*map(_probabilities, agent.answers)] for agent in agents
        }
        return cls(answers, probabilities, {turn: ids for _, turn, ids in _named(world)}, seconds)


def differences(
    agents: Sequence[Agent], world: World, reference: Reference, applied: Sequence[Applied]
) -> Iterator[str]:
    """Yields how answers and prompts differ from those of the run without faults, and requests that
    took too long."""
    # The loss of a turn's entry in the ledger costs its exact tokens, never its text
    # (docs/ledger.md).
    exact_until = min((one.began for one in applied), default=math.inf)
    for agent in agents:
        for number, request in enumerate(agent.answers):
            name, turn = agent.session.name, f"{agent.session.name} turn {number}"
            got, expected = canonical(request.events), reference.answers[name][number]
            if request.ended >= exact_until:
                got, expected = without_prompt_tokens(got), without_prompt_tokens(expected)
            if got != expected:
                differing = next(
                    (pair for pair in zip(got, expected, strict=False) if pair[0] != pair[1]), ""
                )
                yield f"{turn}: other events than without faults: {differing}"
            if not _agree(_probabilities(request), reference.probabilities[name][number], applied):
                yield f"{turn}: other log probabilities than without faults"
        for request in agent.requests:
            taken, normal = (
                request.ended - request.began,
                reference.seconds[agent.session.name][request.turn],
            )
            if taken - faulty_s(request, applied) > normal + LATE_S and request.problem != SILENCE:
                end = f"{request.outcome} {request.problem}".strip()
                yield (
                    f"{request.session} turn {request.turn}: {end} after {taken:.1f} s, "
                    f"{normal:.1f} s without faults"
                )
    for at, turn, ids in _named(world):
        if ids == reference.prompts.get(turn):
            continue
        text, wanted = (
            _decode(prompt, world.model) for prompt in (ids, reference.prompts.get(turn, []))
        )
        if at < exact_until or text != wanted:
            yield f"the prompt of {turn} differs: {text[-200:]!r}, without faults {wanted[-200:]!r}"


def unstored(agent: Agent, applied: Sequence[Applied]) -> Iterator[str]:
    """Yields how stored answers differ from those that the client had. One that is stored during a
    fault of the bus, of the store or of its frontend may be missing, or not have its end; some
    faults lose older ones, too."""
    for answer, read in agent.reads:
        is_lost = (
            read.status == 404
            or read.outcome == "pending"
            or "that ran this response is gone" in read.problem
        )
        excuses = [
            one
            for one in applied
            if one.name in ("", answer.frontend)
            and one.until >= answer.began
            and (one.began <= answer.ended + GRACE_S or one.fault.kind in LOSING)
        ]
        if read.problem and not (is_lost and excuses):
            yield f"{agent.session.name} turn {answer.turn} is not read back: {read.problem}"


def _named(world: World) -> Iterator[tuple[float, str, list[int]]]:
    """When each turn began, the turn, by the last question in its prompt and the answers after
    that, and the ids."""
    for at, ids in world.prompts:
        text = _decode(ids, world.model)
        asks = [*_ASK.finditer(text)]
        if asks:
            yield at, f"{asks[-1][0]} {text.count('<|im_start|>assistant', asks[-1].end())}", ids


def _decode(ids: Sequence[int], model: str) -> str:
    text: str = tokenizer(model).decode(ids, skip_special_tokens=False)
    return text


def _probabilities(request: Request) -> list[Any]:
    return [log_probabilities(choice) for choice in by_choice(request.events)]


def _agree(got: Sequence[Any], expected: Sequence[Any], applied: Sequence[Applied]) -> bool:
    """Whether log probabilities are those of the run without faults. Those of tokens that a lost
    worker decoded may be missing."""
    if not any(one.stage in ("worker", "") for one in applied):
        return got == expected
    left = [iter(choice) for choice in expected]
    return all(
        probability in rest
        for choice, rest in zip(got, left, strict=True)
        for probability in choice
    )


def faulty_s(request: Request, applied: Sequence[Applied]) -> float:
    """How long a request lasted while any fault had effects, in seconds."""
    total, until = 0.0, request.began
    for effect in sorted(applied, key=lambda effect: effect.began):
        gone_s = NOTICED_S if effect.fault.kind == "lose machine" else 0.0
        ended = min(max(effect.until, effect.began + gone_s + GRACE_S), request.ended)
        if ended > until:
            total, until = total + max(ended - max(effect.began, until), 0.0), ended
    return total
