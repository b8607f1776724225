"""Runs calls of hosted tools, within their limits, and counts them: those of the web at the
provider, searches of tools here."""

import asyncio
from collections import Counter
from collections.abc import Awaitable, Mapping, Sequence

from msgspec.structs import replace
from prometheus_client import CollectorRegistry, Histogram
from prometheus_client import Counter as MetricCounter

from schemas.conversation import Call, Conversation, HostedTool, ToolSpec
from schemas.events import HostedResult, WebSource
from services.frontend.content.hosted_tools import TOO_MANY, hosted_argument
from services.frontend.hosted.contract import Provider, ProviderError
from services.frontend.hosted.policy import permitted_sources, refusal_code
from services.frontend.hosted.tool_search import InvalidPattern, find_tools
from services.runtime.config.frontend import FrontendConfig
from services.runtime.observability.telemetry import FilteringBoundLogger

CALL_S = (0.05, 0.1, 0.25, 0.5, 0.75, 1, 1.5, 2, 3, 5, 7.5, 10, 15, 20, 30, 60)


class CallRunner:
    """Runs the calls of all answers of a frontend."""

    def __init__(
        self,
        provider: Provider,
        config: FrontendConfig,
        registry: CollectorRegistry,
        log: FilteringBoundLogger,
    ) -> None:
        self.config = config
        self._provider = provider
        self._log = log
        self._calls = MetricCounter(
            "turnwire_hosted_calls",
            "Calls of hosted tools, by how they ended.",
            ["tool", "outcome"],
            registry=registry,
        )
        self._seconds = Histogram(
            "turnwire_hosted_call_seconds",
            "From the call of a hosted tool to its result.",
            ["tool"],
            registry=registry,
            buckets=CALL_S,
        )

    def refuse(self, call: HostedResult, code: str) -> HostedResult:
        """Returns the result of a call that may not run."""
        self._calls.labels(call.kind, code).inc()
        return replace(call, error=code)

    async def search_web(
        self, call: HostedResult, tool: HostedTool, argument: str, turn: str
    ) -> HostedResult:
        """Returns a call with the provider's sources, or with an error code."""
        return await self._counted(self._call_provider(call, tool, argument, turn), tool)

    async def search_tools(
        self, call: HostedResult, tool: HostedTool, argument: str, tools: Sequence[ToolSpec]
    ) -> HostedResult:
        """Returns a call with the names of the tools that it found, or with an error code."""
        return await self._counted(_search_tools(call, tool, argument, tools), tool)

    async def _counted(self, work: Awaitable[HostedResult], tool: HostedTool) -> HostedResult:
        loop = asyncio.get_running_loop()
        started = loop.time()
        outcome = "cancelled"
        try:
            result = await work
            outcome = result.error or "ok"
            return result
        finally:
            self._calls.labels(tool.kind, outcome).inc()
            self._seconds.labels(tool.kind).observe(loop.time() - started)

    async def _call_provider(
        self, call: HostedResult, tool: HostedTool, argument: str, turn: str
    ) -> HostedResult:
        try:
            async with asyncio.timeout(self.config.web_timeout_s):
                sources = await self._provider.run(tool, argument)
        except (ProviderError, TimeoutError, OSError, ValueError) as error:
            text = str(error) or type(error).__name__
            self._log.warning("hosted.call_failed", turn=turn, tool=tool.kind, error=text)
            code = error.code if isinstance(error, ProviderError) else "unavailable"
            return replace(call, error=code)
        sources = permitted_sources(tool, sources, self.config.web_max_chars)
        if tool.kind == "web_search":
            return replace(call, sources=sources)
        if not sources:
            return replace(call, error="url_not_accessible")
        return replace(call, sources=[_as_requested(sources[0], argument)])


class AnswerCalls:
    """The calls of one answer, up to the limits of their number."""

    def __init__(self, runner: CallRunner, tools: Mapping[str, HostedTool], turn: str) -> None:
        """`tools`: the hosted tools of the answer by name; `turn`: its id, for the log."""
        self._runner = runner
        self._tools = tools
        self._turn = turn
        self._uses: Counter[str] = Counter()

    async def run(self, calls: Sequence[Call], conversation: Conversation) -> list[HostedResult]:
        """Runs calls at the same time. `conversation`: that of the turn which made them."""
        return await asyncio.gather(*(self._run(call, conversation) for call in calls))

    async def _run(self, call: Call, conversation: Conversation) -> HostedResult:
        tool = self._tools[call.name]
        argument = hosted_argument(tool.kind, call.arguments)
        result = HostedResult(call.call_id, call.name, tool.kind, call.arguments)
        self._uses[call.name] += 1
        code = self._refusal_code(call.name, tool, argument, conversation)
        if code is not None:
            return self._runner.refuse(result, code)
        if tool.searches_tools:
            return await self._runner.search_tools(result, tool, argument, conversation.tools)
        return await self._runner.search_web(result, tool, argument, self._turn)

    def _refusal_code(
        self, name: str, tool: HostedTool, argument: str, conversation: Conversation
    ) -> str | None:
        config = self._runner.config
        code = refusal_code(tool, argument, conversation, allow_private=config.web_allow_private)
        is_over = tool.max_uses is not None and self._uses[name] > tool.max_uses
        if not is_over and self._uses.total() <= config.web_max_calls:
            return code
        if tool.searches_tools:
            return code or TOO_MANY
        return "max_uses_exceeded"


async def _search_tools(
    call: HostedResult, tool: HostedTool, argument: str, tools: Sequence[ToolSpec]
) -> HostedResult:
    try:
        names = await asyncio.to_thread(find_tools, tool.kind, argument, tools)
    except InvalidPattern as error:
        explanation = f"Invalid regular expression pattern: {error}"
        return replace(call, error="invalid_tool_input", explanation=explanation)
    except TimeoutError:
        return replace(call, error="execution_time_exceeded")
    return replace(call, tools=names)


def _as_requested(source: WebSource, url: str) -> WebSource:
    """Returns the page of a fetch under the URL that the model used."""
    return replace(source, url=url, age=None)
