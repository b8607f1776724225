"""The record of one answer, for metrics and the access log: its times, tokens and outcome."""

from collections.abc import Mapping

from msgspec.structs import replace

from schemas.conversation import Client
from schemas.events import Finish, LastEvent, Usage, failure_of
from services.frontend.turns.metrics import FrontendMetrics, ModelMetrics, TokenTimes


class AnswerRecord:
    """The times, tokens and outcome of one answer. All times are the event loop's."""

    def __init__(self, metrics: FrontendMetrics, started: float) -> None:
        self.model = ""
        """The served model's name; "" until it is known."""
        self._adapter = ""
        """The adapter of the turn; "": none."""
        self.outcome = ""
        """The finish reason, the kind of error, `hangup` or `slow_reader`; "" while turns run."""
        self.client = Client()
        self.stream = False
        self.prompt_tokens: int | None = None
        """Tokens of the prompts, each counted once; None until they are known."""
        self.choices_per_prompt = 1
        self.first_s: float | None = None
        self._metrics = metrics
        self._started = started
        self._of_model: ModelMetrics | None = None
        """The metrics of its model; None until that is known."""
        self._usages: dict[int, Usage] = {}
        """The tokens of each choice that has ended."""
        self._times: dict[int, TokenTimes] = {}
        """The times of each choice's tokens."""

    def __repr__(self) -> str:
        return f"<answer of {self.model or 'no model yet'}: {self.outcome or 'running'}>"

    def begin(self, model: str, client: Client, now: float, adapter: str = "") -> None:
        """Records that the model is known and the turn begins."""
        self.model = model
        self._adapter = adapter
        self.client = client
        self._of_model = self._metrics.of(model)
        self._of_model.running.inc()
        self._of_model.receive.observe(now - self._started)

    def move_to(self, model: str) -> None:
        """Counts the answer for the model that its turn moved to before it was open. "": it did not
        move."""
        if self._of_model is None or model in ("", self.model):
            return
        self.model = model
        self._of_model.running.dec()
        self._of_model = self._metrics.of(model)
        self._of_model.running.inc()

    def record_batch(self, tokens: int, now: float, choice: int = 0) -> None:
        """Records that events of a choice arrived. `tokens`: its output tokens so far."""
        times = self._times.get(choice)
        if times is not None:
            times.record(tokens, now)
            return

        of_model = self._metrics.of(self.model)
        if self.first_s is None:
            self.first_s = now - self._started
            of_model.first_token.observe(self.first_s)
        times = self._times[choice] = TokenTimes(of_model.token_gaps)
        times.record(tokens, now)

    def record_end(self, last: LastEvent, choice: int = 0) -> None:
        """Records the last of a choice's events."""
        failure = failure_of(last)
        if failure is not None:
            self.outcome = str(failure.kind)
        if isinstance(last, Finish):
            self.conclude(str(last.reason))
            usage = self._usages[choice] = last.usage + last.hidden_usage
            self._metrics.of(self.model).count_cache(usage)

    def conclude(self, outcome: str) -> None:
        """Records the outcome, if none is known so far."""
        self.outcome = self.outcome or outcome

    def close(self, dialect: str, now: float) -> None:
        """Records the end of the request."""
        if self._of_model is None:
            self._metrics.count_refusal(dialect, self.outcome)
            return
        self._of_model.running.dec()
        self._of_model.count_answer(dialect, self.outcome, now - self._started)
        usage = self.usage
        if usage is not None:
            self._of_model.count_tokens(usage)

    @property
    def tokens(self) -> int:
        """Tokens to charge for: of each choice those of its prompt that were computed, and of its
        answer. If all were given up, the whole prompt, because its cached part is unknown."""
        usages = self._usages_so_far()
        tokens = sum(usage.prompt - usage.cached + usage.output for usage in usages.values())
        if self._usages:
            return tokens
        return tokens + (self.prompt_tokens or 0)

    @property
    def usage(self) -> Usage | None:
        """The tokens of the whole answer, for the log, the metrics and the usage of the key; of
        choices that were given up, those that arrived. None for an answer without a prompt."""
        if self.prompt_tokens is None and not self._usages:
            return None
        total = answer_usage(self._usages_so_far(), self.choices_per_prompt)
        # The tokens of all prompts count, also if only some of the choices have ended.
        return replace(total, prompt=max(total.prompt, self.prompt_tokens or 0))

    def fields(self) -> dict[str, object]:
        """Returns fields for the log line."""
        fields: dict[str, object] = {
            "model": self.model,
            "stream": self.stream,
            "prompt_tokens": self.prompt_tokens,
        }
        if self._adapter:
            fields["adapter"] = self._adapter
        client = self.client
        if client.session is not None:
            fields |= {"session": client.session, "parent": client.parent, "kind": client.kind}
        if self.first_s is not None:
            fields["ttft"] = round(self.first_s, 4)
        usage = self.usage
        if usage is not None:
            fields["prompt_tokens"] = usage.prompt
            fields["output_tokens"] = usage.output
            if self._usages:  # only the engine knows these, and reports them at the end of a turn
                fields["cached_tokens"] = usage.cached
                fields["reasoning_tokens"] = usage.reasoning
            if usage.discarded:
                fields["discarded_tokens"] = usage.discarded
        return fields

    def _usages_so_far(self) -> dict[int, Usage]:
        """Returns the tokens of each choice; of one that has not ended, those that arrived."""
        arrived = {choice: Usage(output=times.tokens) for choice, times in self._times.items()}
        return arrived | self._usages


def answer_usage(usages: Mapping[int, Usage], choices_per_prompt: int) -> Usage:
    """Returns the token counts of an answer, as APIs and log report them: a prompt and its cached
    part count once for all its choices. `usages`: of each choice, one or more."""
    by_prompt: dict[int, list[Usage]] = {}
    for choice, usage in usages.items():
        by_prompt.setdefault(choice // choices_per_prompt, []).append(usage)
    total = Usage()
    for choices in by_prompt.values():
        total += Usage(
            choices[0].prompt,
            min(usage.cached for usage in choices),
            sum(usage.output for usage in choices),
            sum(usage.reasoning for usage in choices),
            sum(usage.discarded for usage in choices),
        )
    return total
