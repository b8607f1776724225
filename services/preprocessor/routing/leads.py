"""Decides which turns wait while another turn computes the beginning of their prompts. Pure.

A *lead* is a turn with a worker that computes its prompt. A *follower* begins with the same tokens,
and waits until the lead's first token: the worker's KV cache then has what both share. Nothing is
elected. When a lead has computed the prefix, its followers go on in the order in which they came.
When it ends without that, one of them goes on, to be the next lead, and the others wait for that
one. If all went on each time, a group of n turns that are all refused would take n² tries.

`Leads` calls nothing: each change returns the turns that waited and now go on, in order. The caller
looks for their workers again.
"""

import math
from bisect import bisect_left
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from operator import attrgetter

MAX_HOLD_S = 30.0
"""Longest time that a turn is held in all, and the limit of a lead on a worker with an unknown
speed."""
MARGIN = 2.0
"""Limit of a lead, in times of the prefill that its worker's speed predicts."""
LEAST_PREFILL_S = 0.001
"""The least time of a prefill from which a speed is computed."""


@dataclass(slots=True, eq=False, kw_only=True, repr=False)
class PendingPrompt:
    """A prompt on the way to its worker: it may wait for other turns, and may then be a lead."""

    turn: str
    tokens: int
    keys: Sequence[int] = ()
    """The keys of its whole blocks (`block_keys`), if they have `hold_tokens` or more. Empty: it is
    too short to wait or to be waited for."""
    block_tokens: int = 1
    priority: float = 0.0
    cached: dict[str, int] = field(default_factory=dict)
    """Leading tokens that workers are known to hold, by worker."""
    hold_s: float = MAX_HOLD_S
    """Longest time from when it is first held until it is sent."""
    lead: "Lead | None" = None
    """Its computation by a worker; None: it is not a lead."""
    followers: "dict[PendingPrompt, None]" = field(default_factory=dict)
    """The turns that wait for it, in the order in which they came."""
    waits_for: "PendingPrompt | None" = None
    """A lead, or a turn that is to be the next one."""
    held_at: float = math.inf
    """When it was first held; infinite: never."""
    held_for: str = ""
    """The turn that it waited for last; "": none."""

    def __repr__(self) -> str:
        state = "to be sent"
        if self.lead is not None:
            state = f"computed by {self.lead.worker}"
        elif self.waits_for is not None:
            state = f"waits for {self.waits_for.turn}"
        return f"<{self.turn}: {self.tokens} tokens, {state}, {len(self.followers)} followers>"

    @property
    def was_held(self) -> bool:
        """Whether it has waited, or waits."""
        return self.held_for != ""

    def hold_until(self, now: float) -> float:
        """Returns the time at which it is sent at the latest, if it is held now."""
        return min(self.held_at, now) + self.hold_s

    def shared(self, other: "PendingPrompt") -> int:
        """Returns the number of leading tokens that are equal in whole blocks. Equal keys mean
        equal tokens up to the block's end, so that a binary search finds it."""
        blocks = range(min(len(self.keys), len(other.keys)))
        first_different = bisect_left(
            blocks, True, key=lambda block: self.keys[block] != other.keys[block]
        )
        return first_different * self.block_tokens

    def shares(self, other: "PendingPrompt", tokens: int) -> bool:
        """Whether `shared` is at least `tokens`, 1 or more. Costs one comparison."""
        last_block = _blocks_of(tokens, self.block_tokens) - 1
        if last_block >= min(len(self.keys), len(other.keys)):
            return False
        return self.keys[last_block] == other.keys[last_block]

    def missing(self, worker: str) -> int:
        """Returns the number of tokens that a worker would compute."""
        return self.tokens - self.cached.get(worker, 0)

    def note_cached(self, worker: str, tokens: int) -> None:
        """Notes that a worker holds this number of leading tokens, or more."""
        self.cached[worker] = max(tokens, self.cached.get(worker, 0))


@dataclass(slots=True, eq=False)
class Lead:
    """A prompt that a worker computes."""

    prompt: PendingPrompt
    worker: str
    sent_at: float
    """When it was sent to its worker."""
    accepted: bool = False
    """Whether the worker accepted it."""

    @property
    def missing(self) -> int:
        """The number of tokens that the worker computes."""
        return self.prompt.missing(self.worker)

    @property
    def has_ended(self) -> bool:
        """Whether no turn waits for it any more."""
        return self.prompt.lead is not self


class Leads:
    """The leads of one model. Times are those of one clock, in seconds."""

    def __init__(self, hold_tokens: int) -> None:
        """`hold_tokens`: the fewest new shared tokens that are worth waiting for, 1 or more."""
        self.hold_tokens = hold_tokens
        self.waiting: Counter[str] = Counter()
        """The number of followers, by the worker of their lead."""
        self._leads: dict[tuple[int, int], list[Lead]] = {}
        """Leads by their first `hold_tokens` tokens, the oldest first: all others share fewer."""
        self.speeds: dict[str, float] = {}
        """Prompt tokens per second from sending to first token, by worker: with the time in its
        queue, so that a worker may look slower than it is, never faster. The acceptance does not
        count: a preprocessor that is busy with siblings reads it late."""

    def computing(self, prompt: PendingPrompt) -> dict[str, int]:
        """Returns how many leading tokens of a prompt each worker computes now, or is known to
        hold."""
        tokens = dict(prompt.cached)
        for lead in self._beginning_alike(prompt):
            if prompt.shares(lead.prompt, tokens.get(lead.worker, 0) + 1):
                tokens[lead.worker] = prompt.shared(lead.prompt)
        return tokens

    def find(self, prompt: PendingPrompt, worker: str, now: float) -> Lead | None:
        """Returns the lead that a turn should wait for if it goes to this worker, at most until
        `hold_until`.

        That is the lead that saves most tokens, at least `hold_tokens`, with a priority that is not
        lower than the turn's. It must not compute more other tokens than the turn itself would:
        otherwise a worker that runs prompts in parallel would be slower with holding.
        """
        if now >= prompt.hold_until(now):
            return None
        best: Lead | None = None
        least = self.hold_tokens
        for lead in self._beginning_alike(prompt):
            if lead.worker != worker or lead.prompt.priority < prompt.priority:
                continue
            spared = self._spared(prompt, lead, least)
            if spared:
                best = lead
                least = spared + 1
        return best

    def follow(self, prompt: PendingPrompt, lead: Lead, now: float) -> list[PendingPrompt]:
        """Makes a turn wait for a lead, until it goes on or leaves."""
        go_on = self.pass_on(prompt)
        prompt.held_at = min(prompt.held_at, now)
        prompt.held_for = lead.prompt.turn
        prompt.waits_for = lead.prompt
        lead.prompt.followers[prompt] = None
        self.waiting[lead.worker] += 1
        return go_on

    def leave(self, prompt: PendingPrompt) -> None:
        """Ends the wait of a turn, if it waits."""
        leader = prompt.waits_for
        if leader is None:
            return
        prompt.waits_for = None
        del leader.followers[prompt]
        if leader.lead is not None:
            self.waiting[leader.lead.worker] -= 1

    def pass_on(self, prompt: PendingPrompt) -> list[PendingPrompt]:
        """Lets the first follower with the highest priority of a turn that is not a lead go on. The
        others wait for that one."""
        if not prompt.followers:
            return []

        successor = max(prompt.followers, key=attrgetter("priority"))
        self.leave(successor)
        successor.followers = prompt.followers
        prompt.followers = {}
        for follower in successor.followers:
            follower.held_for = successor.turn
            follower.waits_for = successor
        return [successor]

    def is_worth_waiting_for(self, prompt: PendingPrompt, worker: str) -> bool:
        """Whether a worker has so much of a prompt to compute that it should be a lead there."""
        return bool(prompt.keys) and prompt.missing(worker) >= self.hold_tokens

    def begin(self, prompt: PendingPrompt, worker: str, now: float) -> Lead:
        """Makes a turn the lead of those like it: it is being sent to this worker."""
        lead = Lead(prompt, worker, now)
        prompt.lead = lead
        self.waiting[worker] += len(prompt.followers)
        self._leads.setdefault(self._beginning(prompt), []).append(lead)
        return lead

    def record_accepted(self, lead: Lead, cached: int | None, now: float) -> list[PendingPrompt]:
        """Notes that the worker accepted a lead, and how many of its tokens it has
        (`GenerateReply.expected_cached`). A lead with too little to compute ends. Followers of
        another one that it spares nothing any more go on."""
        prompt = lead.prompt
        worker = lead.worker
        prompt.note_cached(worker, cached or 0)
        if cached is None or not self.is_worth_waiting_for(prompt, worker):
            return self.end(lead, computed=True, now=now)

        lead.accepted = True
        go_on = [
            follower
            for follower in prompt.followers
            if not self._spared(follower, lead, self.hold_tokens)
        ]
        for follower in go_on:
            self._release(follower, lead, min(prompt.cached[worker], follower.shared(prompt)))
        return go_on

    def end(self, lead: Lead, *, computed: bool, now: float) -> list[PendingPrompt]:
        """Ends a lead. `computed`: it has its first token; else it failed, was cancelled or
        refused, or is late."""
        self._remove(lead)
        if lead.accepted:
            self._measure(lead, computed=computed, now=now)
        prompt = lead.prompt
        go_on = list(prompt.followers) if computed else []
        for follower in go_on:
            self._release(follower, lead, follower.shared(prompt))
        prompt.lead = None
        self.waiting[lead.worker] -= len(prompt.followers)
        return go_on + self.pass_on(prompt)

    def limit_s(self, lead: Lead) -> float:
        """Returns the limit of a lead from its acceptance, in seconds."""
        speed = self.speeds.get(lead.worker)
        if speed is None:
            return MAX_HOLD_S
        return min(MARGIN * lead.missing / speed, MAX_HOLD_S)

    def _measure(self, lead: Lead, *, computed: bool, now: float) -> None:
        """Updates the speed of a lead's worker. Without a first token, the worker is slower than
        the tokens in this time."""
        worker = lead.worker
        speed = lead.missing / max(now - lead.sent_at, LEAST_PREFILL_S)
        if computed:
            earlier = self.speeds.get(worker, speed)
            self.speeds[worker] = (earlier + speed) / 2
        elif worker in self.speeds:
            self.speeds[worker] = min(self.speeds[worker], speed)

    def _release(self, follower: PendingPrompt, lead: Lead, tokens: int) -> None:
        """Lets a follower go on. `tokens`: what the lead's worker holds of it."""
        follower.note_cached(lead.worker, tokens)
        self.leave(follower)

    def _spared(self, prompt: PendingPrompt, lead: Lead, least: int) -> int:
        """Tokens that the lead computes, and the turn then need not; 0 if they are fewer than
        `least`, or if the lead computes more other tokens than the turn would without it."""
        worker = lead.worker
        cached = max(prompt.cached.get(worker, 0), lead.prompt.cached.get(worker, 0))
        if not prompt.shares(lead.prompt, cached + least):
            return 0
        spared = prompt.shared(lead.prompt) - cached
        besides = lead.missing - spared
        return spared if besides <= prompt.missing(worker) else 0

    def _beginning_alike(self, prompt: PendingPrompt) -> Sequence[Lead]:
        return self._leads.get(self._beginning(prompt), ()) if prompt.keys else ()

    def _remove(self, lead: Lead) -> None:
        beginning = self._beginning(lead.prompt)
        alike = self._leads[beginning]
        alike.remove(lead)
        if not alike:
            del self._leads[beginning]

    def _beginning(self, prompt: PendingPrompt) -> tuple[int, int]:
        """The key of the block in which the first `hold_tokens` tokens end."""
        last_block = _blocks_of(self.hold_tokens, prompt.block_tokens) - 1
        return prompt.block_tokens, prompt.keys[last_block]


def _blocks_of(tokens: int, block_tokens: int) -> int:
    """The blocks that this number of tokens takes, the last one perhaps in part."""
    return -(-tokens // block_tokens)
