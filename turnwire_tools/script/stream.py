"""One turn that the script engine plays: its tokens step by step, and the actions between them."""

import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from math import exp, log

from schemas.events import FinishReason
from schemas.token_ids import pack_ids
from services.worker.engine import EngineDelta
from services.worker.engines.open_turns import EngineTurn
from services.worker.kv.cached_blocks import extend_keys
from turnwire_tools.script.player import Action, Playback, PlayDirective

_FALL = 0.7
"""Each alternative's log probability is lower than the one before it by this."""

_NOTHING = Playback([], [])


class MarkFile:
    """The file for a script's marks; without one they are dropped."""

    def __init__(self) -> None:
        self._file = -1

    def open(self, path: str) -> None:
        """Marks are added to a file from now on. Raises OSError."""
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)

    def add(self, turn: str, text: str) -> None:
        """Adds a line with the time."""
        if self._file >= 0:
            # One write each, so that a reader of the file gets whole lines.
            os.write(self._file, f"{turn} {text} {time.monotonic_ns()}\n".encode())

    def close(self) -> None:
        """Closes the file."""
        if self._file >= 0:
            os.close(self._file)
            self._file = -1


@dataclass(slots=True, eq=False, kw_only=True)
class ScriptedStream:
    """One turn of the script engine, and how far it has been played."""

    prompt_tokens: int
    keys: Sequence[int]
    tail: Sequence[int]
    """The ids at the prompt's end that fill no block, as in keys."""
    salt: str | None
    resumed: int
    logprobs: int | None
    turn: EngineTurn
    put_running: Callable[[EngineDelta], None]
    """The sink's own `put`, for steps that end nothing and come only while the turn runs."""
    delay_us: int = 0
    burst: int = 1
    mark: str = "-"
    playback: Playback = _NOTHING
    ids: list[int] = field(default_factory=list)
    pos: int = 0
    action: int = 0
    """Index of the next action."""
    plain_until: int = 0
    """Steps that end before this token hold tokens and nothing else."""
    cached: int | None = None
    """Reported with the first delta, then None."""
    opened_us: int = 0
    waited_s: float | None = None
    """Reported with `cached`: how long it had no slot."""
    weights: int = 0
    """The version of the weights that decoded its last token."""

    def play(self, directive: PlayDirective, playback: Playback, delay_ms: float) -> None:
        """Sets what is played, and how. `delay_ms`: between two steps, if the directive names no
        other."""
        if directive.delay_ms is not None:
            delay_ms = directive.delay_ms
        self.playback = playback
        self.ids = playback.ids
        self.delay_us = round(delay_ms * 1000)
        self.burst = max(1, directive.burst)
        self.mark = directive.id

    def take_actions(self, marks: MarkFile) -> Action | None:
        """Takes the actions that are due; returns the one after which no token follows in this
        step."""
        actions = self.playback.actions
        while self.action < len(actions):
            at, action = actions[self.action]
            if at > self.pos:
                return None
            self.action += 1
            if action.kind in {"pause", "fail", "die", "silence"}:
                return action
            self._pace(action, marks)
        return None

    def next_delta(self, vocabulary: int, weights: int) -> EngineDelta:
        """The tokens up to the next action, and the end if they are the last ones. `weights`: the
        version that decodes them."""
        playback = self.playback
        ahead = len(playback.ids)
        if self.action < len(playback.actions):
            ahead, _ = playback.actions[self.action]
        end = min(self.pos + self.burst, ahead)
        ids = playback.ids[self.pos : end]
        self.pos = end
        self.plain_until = ahead if self.logprobs is None else 0

        delta = EngineDelta(ids, cached=self.cached, waited_s=self.waited_s)
        self.cached = None
        self.waited_s = None
        if weights != self.weights:
            self.weights = delta.weights = weights
        is_whole = end == len(playback.ids)
        if is_whole and (playback.finish is FinishReason.LENGTH or not ids):
            delta.finish = playback.finish
            delta.stop_id = playback.stop_id
        if self.logprobs is not None:
            self._add_logprobs(delta, self.logprobs, vocabulary)
        return delta

    def _add_logprobs(self, delta: EngineDelta, top: int, vocabulary: int) -> None:
        """Adds synthetic log probabilities to a delta, with `top` others for each token."""
        end = self.resumed + self.pos
        start = end - len(delta.ids)
        delta.logprobs = [
            synthetic_logprobs(token, at, top, vocabulary)
            for at, token in enumerate(delta.ids, start)
        ]
        if delta.stop_id is not None:
            delta.stop_logprobs = synthetic_logprobs(delta.stop_id, end, top, vocabulary)

    def _pace(self, action: Action, marks: MarkFile) -> None:
        """An action after which the turn goes on."""
        match action.kind:
            case "delay":
                self.delay_us = round(action.amount * 1000)
            case "burst":
                self.burst = max(1, int(action.amount))
            case _:
                marks.add(self.mark, action.text)

    def all_keys(self, block_tokens: int) -> Sequence[int]:
        """The keys of the blocks of the prompt and of the output so far."""
        rest = pack_ids([*self.tail, *self.ids[: self.pos]])
        return extend_keys(self.keys, rest, block_tokens, self.salt)


def synthetic_logprobs(token: int, at: int, top: int, vocabulary: int) -> list[tuple[int, float]]:
    """(id, log probability) of the token at output index `at` and of `top` others, likeliest first.

    The same for the same arguments in every process. The probabilities of one place add up to less
    than 1, and the written token is the likeliest.
    """
    chance = 0.75 + 0.24 * ((token * 2654435761 + at * 40503) % 1000) / 1000
    rest = log((1.0 - chance) * (1.0 - exp(-_FALL)))
    logprobs = [(token, log(chance))]
    most_others = max(vocabulary // 7 - 1, 0)
    for n in range(min(top, most_others)):
        other = (token + 1 + n * 7) % vocabulary
        logprobs.append((other, rest - _FALL * n))
    return logprobs
