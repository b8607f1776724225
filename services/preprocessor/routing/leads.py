"""Finds the turns that should wait while another turn computes the beginning of their prompts.
Pure.

A *lead* is a turn with a worker that computes its prompt. A *follower* begins with the same tokens,
and waits until the lead's first token: the worker's KV cache then has what both share. Nothing is
elected. When a lead has computed the prefix, its followers go on in the order in which they came.
When it ends without that, one of them goes on, to be the next lead, and the others wait for that
one: were all to go on each time, a group in which each turn is refused would cost the square of its
size.
"""

from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

MAX_HOLD_S = 30.0
"""Longest time that a turn is held in all, and the limit of a lead on a worker with an unknown
speed."""
MARGIN = 2.0
"""Limit of a lead, in times of the prefill that its worker's speed predicts."""


@dataclass(slots=True, eq=False, kw_only=True)
class LongPrompt:
    """A prompt that may wait for a lead, and may then be one. Its whole blocks have `hold_tokens`
    or more."""

    turn: str
    tokens: int
    keys: Sequence[int]
    """The keys of its whole blocks (`block_keys`)."""
    block_tokens: int
    priority: float = 0.0
    computed: dict[str, int] = field(default_factory=dict)
    """Leading tokens that workers are known to hold, by worker."""
    hold_s: float = MAX_HOLD_S
    """Longest time from when it is first held until it is sent."""
    worker: str = ""
    """The worker that computes it; "": it is not a lead."""
    sent_at: float = 0.0
    """When it was sent to its worker."""
    taken: bool = False
    """Whether the worker accepted it."""
    followers: "dict[LongPrompt, Callable[[], None]]" = field(default_factory=dict)
    """The turns that wait for it, in the order in which they came, and the functions that continue
    them."""
    lead: "LongPrompt | None" = None
    """The turn that it waits for."""
    held_at: float | None = None
    """When it was first held."""
    held_for: str = ""
    """The turn that it waited for last, and …"""
    held_s: float = 0.0
    """… how long it was held in all."""

    def hold_until(self, now: float) -> float:
        """Returns the time at which it is sent at the latest, if it is held now."""
        return self.hold_s + (now if self.held_at is None else self.held_at)

    def shared(self, other: "LongPrompt") -> int:
        """Returns the number of leading tokens that are equal in whole blocks. Equal keys mean
        equal tokens up to the block's end, so that a binary search finds it."""
        blocks = range(min(len(self.keys), len(other.keys)))
        return self.block_tokens * bisect_left(
            blocks, True, key=lambda at: self.keys[at] != other.keys[at]
        )

    def shares(self, other: "LongPrompt", tokens: int) -> bool:
        """Whether `shared` is at least `tokens`, 1 or more. Costs one comparison."""
        block = -(-tokens // self.block_tokens) - 1
        return (
            block < min(len(self.keys), len(other.keys)) and self.keys[block] == other.keys[block]
        )

    def missing(self, worker: str) -> int:
        """Returns the number of tokens that a worker would compute."""
        return self.tokens - self.computed.get(worker, 0)


class Leads:
    """The leads of one model. Times are those of one clock, in seconds."""

    def __init__(self, hold_tokens: int, waiting: Counter[str]) -> None:
        """`hold_tokens`: the fewest new shared tokens that are worth waiting for, 1 or more;
        `waiting`: counts the followers by the worker of their lead."""
        self.hold_tokens = hold_tokens
        self._leads: dict[tuple[int, int], list[LongPrompt]] = {}
        """Leads by their first `hold_tokens` tokens, the oldest first: all others share fewer."""
        self.speeds: dict[str, float] = {}
        """Prompt tokens per second from sending to first token, by worker: with the time in its
        queue, so that a worker may look slower than it is, never faster. The acceptance does not
        count: a preprocessor that is busy with siblings reads it late."""
        self._waiting = waiting

    def computing(self, prompt: LongPrompt) -> dict[str, int]:
        """Returns how many leading tokens of a prompt each worker computes now, or is known to
        hold."""
        tokens = dict(prompt.computed)
        for lead in self._leads.get(self._beginning(prompt), ()):
            if prompt.shares(lead, tokens.get(lead.worker, 0) + 1):
                tokens[lead.worker] = prompt.shared(lead)
        return tokens

    def find(self, prompt: LongPrompt, worker: str, now: float) -> LongPrompt | None:
        """Returns the lead that a turn should wait for if it goes to this worker, at most until
        `hold_until`.

        That is the one which spares it most, and at least `hold_tokens`. It computes no more
        besides than the turn would without it, so that a worker which computes prompts side by side
        is not slower with holding, either. Its priority is not lower than the turn's.
        """
        best, least = None, self.hold_tokens
        for lead in (
            self._leads.get(self._beginning(prompt), ()) if now < prompt.hold_until(now) else ()
        ):
            fits = lead.worker == worker and lead.priority >= prompt.priority
            if fits and (spared := self._spared(prompt, lead, least)):
                best, least = lead, spared + 1
        return best

    def follow(
        self, prompt: LongPrompt, lead: LongPrompt, now: float, go_on: Callable[[], None]
    ) -> None:
        """Makes a turn wait for a lead, until `go_on` is called, at most once, or the turn leaves."""
        self.pass_on(prompt)
        if prompt.held_at is None:
            prompt.held_at = now
        prompt.held_for, prompt.lead = lead.turn, lead
        lead.followers[prompt] = go_on
        self._waiting[lead.worker] += 1

    def leave(self, prompt: LongPrompt) -> Callable[[], None]:
        """Ends the wait of a turn, and returns the function that continues it; one without effect
        if it has gone on."""
        if (lead := prompt.lead) is None:
            return lambda: None
        prompt.lead = None
        self._waiting[lead.worker] -= 1
        return lead.followers.pop(prompt)

    def pass_on(self, prompt: LongPrompt) -> None:
        """Continues the first follower with the highest priority of a turn that is not a lead. The
        others wait for that one."""
        if prompt.followers:
            following = max(prompt.followers, key=lambda one: one.priority)
            go_on = self.leave(following)
            following.followers, prompt.followers = prompt.followers, {}
            for one in following.followers:
                one.held_for, one.lead = following.turn, following
            go_on()

    def begin(self, prompt: LongPrompt, worker: str, now: float) -> None:
        """Makes a turn the lead of those like it: it is being sent to this worker."""
        self._move(prompt, worker)
        prompt.sent_at, prompt.taken = now, False
        self._leads.setdefault(self._beginning(prompt), []).append(prompt)

    def taken(self, prompt: LongPrompt, held: int | None) -> float | None:
        """Notes that the worker accepted a lead, and how many of its tokens it held
        (`GenerateReply.held`). Returns the lead's limit in seconds; None: there is nothing to wait
        for, so that the caller ends it."""
        worker = prompt.worker
        prompt.computed[worker] = max(held or 0, prompt.computed.get(worker, 0))
        if held is None or prompt.missing(worker) < self.hold_tokens:
            return None
        prompt.taken = True
        for follower in [
            one for one in prompt.followers if not self._spared(one, prompt, self.hold_tokens)
        ]:
            self._release(follower, prompt, min(prompt.computed[worker], follower.shared(prompt)))
        return self.limit_s(prompt)

    def end(self, prompt: LongPrompt, *, computed: bool, now: float) -> None:
        """Ends a lead. `computed`: it has its first token; else it failed, was cancelled or
        refused, or is late."""
        alike = self._leads[self._beginning(prompt)]
        alike.remove(prompt)
        if not alike:
            del self._leads[self._beginning(prompt)]
        if prompt.taken:
            speed = prompt.missing(prompt.worker) / max(now - prompt.sent_at, 0.001)
            known = self.speeds.get(prompt.worker, speed if computed else 0.0)
            if known:  # without a first token, the worker is slower than that
                self.speeds[prompt.worker] = (known + speed) / 2 if computed else min(known, speed)
        for follower in list(prompt.followers) if computed else ():
            self._release(follower, prompt, follower.shared(prompt))
        self._move(prompt, "")
        self.pass_on(prompt)

    def limit_s(self, lead: LongPrompt) -> float:
        """Returns the limit of a lead from its acceptance, in seconds."""
        speed = self.speeds.get(lead.worker)
        return (
            MAX_HOLD_S
            if speed is None
            else min(MARGIN * lead.missing(lead.worker) / speed, MAX_HOLD_S)
        )

    def _release(self, follower: LongPrompt, lead: LongPrompt, tokens: int) -> None:
        """Continues a follower. `tokens`: what the lead's worker holds of it."""
        follower.computed[lead.worker] = max(tokens, follower.computed.get(lead.worker, 0))
        self.leave(follower)()

    def _move(self, lead: LongPrompt, worker: str) -> None:
        self._waiting[lead.worker] -= len(lead.followers)
        self._waiting[worker] += len(lead.followers)
        lead.worker = worker

    def _spared(self, prompt: LongPrompt, lead: LongPrompt, least: int) -> int:
        """Tokens that the lead computes, and the turn then need not; 0 if they are fewer than
        `least`, or the lead computes more besides than the turn would without it."""
        worker = lead.worker
        held = max(prompt.computed.get(worker, 0), lead.computed.get(worker, 0))
        spared = prompt.shared(lead) - held if prompt.shares(lead, held + least) else 0
        return spared if lead.missing(worker) - spared <= prompt.missing(worker) else 0

    def _beginning(self, prompt: LongPrompt) -> tuple[int, int]:
        """The key of the block in which the first `hold_tokens` tokens end."""
        return prompt.block_tokens, prompt.keys[-(-self.hold_tokens // prompt.block_tokens) - 1]
