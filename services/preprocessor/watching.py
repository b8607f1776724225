"""Tells of what varies at the front of a session's prompts: counters, and one line in the log per session and cause."""

from collections import Counter, OrderedDict
from collections.abc import Iterator

from prometheus_client.core import CounterMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from schemas.conversation import Conversation, Text
from services.preprocessor.prompt import Prompt
from services.preprocessor.volatile import Difference, PromptWatch
from services.preprocessor.wording import tool_name
from services.runtime.kv import digest_key
from services.runtime.metrics import register
from services.runtime.process import Process

WATCH_BYTES = 64 * 1024 * 1024
MAX_TOLD = 4096


class Watching:
    """One preprocessor's eye on its sessions."""

    def __init__(self, process: Process) -> None:
        self._process = process
        self._watch = PromptWatch(WATCH_BYTES)
        self._told: OrderedDict[tuple[str, str], None] = OrderedDict()
        self.times: Counter[str] = Counter()
        self.tokens: Counter[str] = Counter()
        register(process.metrics, _Varied(self))

    def look(self, conversation: Conversation, prompt: Prompt) -> None:
        """Looks how a session's prompt parts from the last one: 20 us where it does not, of 52,000 tokens."""
        if conversation.prompt is not None or prompt.found is None or prompt.found.seat is None:
            return
        session = session_of(conversation)
        tools = [tool_name(tool.name, tool.namespace) for tool in conversation.tools if not tool.deferred]
        found = self._watch.look(session, prompt.text, prompt.found.seat.front, prompt.found.ids, tools)
        if found is not None:
            self.tell(session, found)

    def tell(self, session: str, found: Difference) -> None:
        """Counts, and writes one line for the first time in a session."""
        self.times[found.cause] += 1
        self.tokens[found.cause] += found.tokens
        if (session, found.cause) in self._told:
            return
        self._told[session, found.cause] = None
        if len(self._told) > MAX_TOLD:
            self._told.popitem(last=False)
        write = self._process.log.debug if found.cause == "history" else self._process.log.warning
        write("preprocessor.prompt_varies", cause=found.cause, tokens=found.tokens, was=found.was, now=found.now)


def session_of(conversation: Conversation) -> str:
    """A name for the prompts that should begin with one another: those of a client's session, by their first question,
    for agents send the requests of their helpers under the same name."""
    asked = next((turn for turn in conversation.turns if turn.role == "user"), None)
    first = "\n".join(part.text for part in asked.parts if isinstance(part, Text)) if asked is not None else ""
    return digest_key(conversation.client.tenant, conversation.client.session, first)


class _Varied(Collector):
    def __init__(self, watching: Watching) -> None:
        self._watching = watching

    def collect(self) -> Iterator[Metric]:
        text = "Prompts that did not begin with the last one of their session, by what varied."
        times = CounterMetricFamily("turnwire_prompt_varied", text, labels=["cause"])
        text = "Tokens computed again because of it."
        tokens = CounterMetricFamily("turnwire_prompt_varied_tokens", text, labels=["cause"])
        for cause in sorted(self._watching.times):
            times.add_metric([cause], self._watching.times[cause])
            tokens.add_metric([cause], self._watching.tokens[cause])
        yield times
        yield tokens
