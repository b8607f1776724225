"""Holds one answer while it is made: its deadline, its open turns, and its record for metrics and
the access log."""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from schemas.conversation import Client, Conversation
from schemas.errors import ContextOverflow
from schemas.events import Failed, Finish, TurnEvent, Usage, failure_of
from services.frontend.http.middleware import RequestContext
from services.frontend.turns.interfaces import CancelReason, Collector, OpenTurn, Renderer
from services.frontend.turns.metrics import FrontendMetrics, TokenTimes

OnEnd: TypeAlias = Callable[[Renderer | Collector], None]
"""Called when every turn has ended, before the client gets the end. Not called for an abandoned
answer."""
Shorten: TypeAlias = Callable[[Conversation, ContextOverflow], Awaitable[Conversation]]
"""Shortens a conversation that does not fit the context window. Raises the same error where it may
not or cannot."""


class TurnRecord:
    """The times, tokens and outcome of one request. `clock` and `started` are the event loop's."""

    def __init__(
        self, metrics: FrontendMetrics, started: float, clock: Callable[[], float]
    ) -> None:
        self.model = ""
        """The served model's name; "" until it is known."""
        self.outcome = ""
        """The finish reason, the kind of error, or `hangup`, `slow_reader`; "" while the turn runs."""
        self.client = Client()
        self.stream = False
        self.prompt_tokens: int | None = None
        """Tokens of the prompts, each counted once; None until they are known."""
        self.each = 1
        """The number of choices of each prompt."""
        self.first_s: float | None = None
        self._metrics = metrics
        self._started = started
        self._clock = clock
        self._open = False
        self._usages: dict[int, Usage] = {}
        """The tokens of each choice that has ended."""
        self._times: dict[int, TokenTimes] = {}
        """The times of each choice's tokens."""

    def opened(self, model: str, client: Client) -> None:
        """Records that the model is known and the turn begins."""
        self.model, self.client = model, client
        self._open = True
        self._metrics.running(model).inc()
        self._metrics.receive(model).observe(self._clock() - self._started)

    def batch(self, tokens: int, now: float, choice: int = 0) -> None:
        """Records that events of a choice arrived. `tokens`: its output tokens so far; `now`: the
        loop's time."""
        times = self._times.get(choice)
        if times is not None:
            times.record(tokens, now)
            return
        if self.first_s is None:
            self.first_s = now - self._started
            self._metrics.first_token(self.model).observe(self.first_s)
        times = self._times[choice] = TokenTimes(self._metrics.between_tokens.of(self.model))
        times.record(tokens, now)

    def ends(self, last: TurnEvent, choice: int = 0) -> bool:
        """Records the last of a choice's events. Returns whether it ends the turn."""
        if not isinstance(last, Finish | Failed):
            return False
        failure = failure_of(last)
        if failure is not None:
            self.outcome = str(failure.kind)
        if isinstance(last, Finish):
            self.outcome = self.outcome or str(last.reason)
            self._usages[choice] = last.usage
            self._metrics.count_tokens(self.model, last.usage)
        return True

    def close(self, dialect: str) -> None:
        """Records the end of the request."""
        metrics = self._metrics
        if self._open:
            self._open = False
            metrics.running(self.model).dec()
        metrics.count_answer(self.model, dialect, self.outcome, self._clock() - self._started)

    @property
    def tokens(self) -> int:
        """Tokens to charge for: of each choice those of its prompt that were computed, and of its
        answer. Of an abandoned turn only the whole prompt is known."""
        if not self._usages:
            return self.prompt_tokens or 0
        return sum(usage.prompt - usage.cached + usage.output for usage in self._usages.values())

    def fields(self) -> dict[str, object]:
        """Returns fields for the log line."""
        fields: dict[str, object] = {
            "model": self.model,
            "stream": self.stream,
            "prompt_tokens": self.prompt_tokens,
        }
        if (client := self.client).session is not None:
            fields |= {"session": client.session, "parent": client.parent, "kind": client.kind}
        if self.first_s is not None:
            fields["ttft"] = round(self.first_s, 4)
        if self._usages:
            usage = answer_usage(self._usages, self.each)
            fields["prompt_tokens"] = max(
                usage.prompt, self.prompt_tokens or 0
            )  # fewer: of the choices that ended
            fields |= {"cached_tokens": usage.cached, "output_tokens": usage.output}
            fields["reasoning_tokens"] = usage.reasoning
        return fields


def answer_usage(usages: Mapping[int, Usage], each: int) -> Usage:
    """Returns the token counts of an answer, as APIs and log report them: a prompt and its cached
    part count once for all its choices. `usages`: of each choice, one or more; `each`: the number
    of choices of a prompt."""
    prompts: dict[int, list[Usage]] = {}
    for choice, usage in usages.items():
        prompts.setdefault(choice // each, []).append(usage)
    return Usage(
        sum(choices[0].prompt for choices in prompts.values()),
        sum(min(usage.cached for usage in choices) for choices in prompts.values()),
        sum(usage.output for usage in usages.values()),
        sum(usage.reasoning for usage in usages.values()),
    )


@dataclass(slots=True)
class OpenAnswer:
    """One answer: to an HTTP request, a background response, a WebSocket lane, or this server
    itself."""

    context: RequestContext
    dialect: str
    """The API's name in metrics."""
    record: TurnRecord
    deadline: float
    """The loop's time at which the answer times out."""
    turn_id: str
    on_end: OnEnd | None = None
    shorten: Shorten | None = None
    turns: Sequence[OpenTurn] = ()
    """One for each choice. Empty until all are open, and after `cancel`."""

    def cancel(self, reason: CancelReason) -> None:
        """Cancels the open turns."""
        turns, self.turns = self.turns, ()
        for turn in turns:
            turn.cancel(reason)
