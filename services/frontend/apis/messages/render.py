"""Renders a turn as the event stream of the Messages API.

    BlockStart reasoning                nothing yet
    Delta "Let me look."                content_block_start thinking, ping (the first time),
                                        thinking_delta
    BlockStop seal=…                    signature_delta, content_block_stop [, reasoning_dispatch]
    BlockStart tool_use name=Read       content_block_start tool_use, input_json_delta ""
    Delta '{"file_path": "/a'           input_json_delta
    BlockStop complete                  content_block_stop [, tool_call_dispatch]
    Finish                              message_delta, message_stop

A text or thinking block opens with its first character, so none is ever empty; the indices that the
client sees are counted here and have no gaps. Agents start a tool at its content_block_stop, while
the stream continues.
"""

from collections import Counter
from collections.abc import Sequence
from typing import Any

from msgspec import UNSET, Raw
from msgspec.structs import asdict, replace
from typing_extensions import override

from schemas.events import (
    BlockStart,
    BlockStop,
    Dispatch,
    Finish,
    HostedResults,
    OutputTokens,
    Prepared,
    TokenLogprob,
)
from services.frontend.apis.messages import wire_answers, wire_events
from services.frontend.apis.messages.compaction.edit import AnswerCompaction, block_events
from services.frontend.apis.messages.hosted import DIRECT, hosted_id, result_block
from services.frontend.apis.messages.message_renderer import (
    MessageRenderer,
    encode_event,
    iterations,
    last_usage,
    stop_of,
)
from services.frontend.apis.messages.wire import UNSEALED
from services.frontend.apis.shared.decode import is_json, one_line
from services.frontend.apis.shared.turn_renderer import Plain
from services.frontend.turns.interfaces import RenderInfo

COUNT_EVERY = 16
"""Tokens of an omitted thought after which the client gets their number."""

_WEB = ("web_search", "web_fetch")


class OpenBlock:
    """The block that the turn writes, and what the client has of it."""

    def __init__(self, start: BlockStart, index: int, *, counts_tokens: bool) -> None:
        self.start = start
        self.index = index
        """The block's number in the answer."""
        self.counts_tokens = counts_tokens
        """Deltas of a thought have a number of tokens."""
        self.kind = start.kind
        self.is_announced = False
        """Whether the client has its start."""
        self.is_started = False
        """Whether the client has some of its text."""
        self.texts: list[str] = []
        """The text of reasoning that will be sent again whole."""
        self.call: Dispatch | None = None
        """The block as a complete call."""
        self.counted = 0
        """Tokens of an omitted thought that were reported."""
        self.uncounted = 0
        """At least the tokens of an omitted thought that were not reported."""

    @property
    def is_thought(self) -> bool:
        """Whether the block is reasoning."""
        return self.kind == "reasoning"

    def piece(self, text: str) -> wire_events.ContentBlockDelta:
        """A delta of the block. Encoded, its text is between the bytes of `plain`."""
        delta: wire_events.BlockDelta
        if self.kind == "text":
            delta = wire_events.MessagesTextDelta(text)
        elif self.is_thought:
            delta = wire_events.ThinkingDelta(text, None if self.counts_tokens else UNSET)
        else:
            delta = wire_events.InputJsonDelta(text)
        return wire_events.ContentBlockDelta(self.index, delta)

    def plain(self) -> Plain:
        """The bytes around the text of every delta."""
        before, _, after = encode_event(self.piece("")).partition(b'""')
        return before, after


class MessagesStream(MessageRenderer):
    """Renders one turn, block by block."""

    def __init__(
        self,
        answer: RenderInfo,
        *,
        omit_thinking: bool = False,
        count_thinking: bool = False,
        applied_edits: list[dict[str, Any]] | None = None,
        compaction: AnswerCompaction | None = None,
        compare: str | None = None,
    ) -> None:
        """`count_thinking`: the beta `thinking-token-count`. `compaction`: the compaction at the
        beginning of the answer. Others: as for `MessageRenderer`."""
        super().__init__(answer, applied_edits=applied_edits, compare=compare)
        self._omit_thinking = omit_thinking
        self._counts = count_thinking
        self._compaction = compaction
        self._block: OpenBlock | None = None
        self._blocks = 0
        """Blocks of the answer so far."""
        self._calls = 0
        """Complete calls so far."""
        self._pinged = False
        self._hosted_uses: Counter[str] = Counter()
        """Searches and fetches that succeeded, by kind."""
        self._has_hosted_results = False
        """Whether a tool ran here, with success or not: only then are they reported. The API does
        not count searches of tools."""

    @override
    def opening(self, prepared: Sequence[Prepared]) -> wire_events.Events:
        out = super().opening(prepared)
        if self._compaction is not None:
            self._blocks += 1
            out += block_events(self._compaction)
        return out

    def _start(self, event: BlockStart, out: wire_events.Events) -> None:
        self._block = block = OpenBlock(event, self._blocks, counts_tokens=self._counts)
        self.plain = None
        if event.kind in ("tool_use", "hosted"):
            self._announce(block, _tool_use(event, self._answer), out)
            out.append(block.piece(""))

    def _announce(
        self, block: OpenBlock, content: wire_answers.AnswerContent, out: wire_events.Events
    ) -> None:
        """Sends the start of a block."""
        block.is_announced = True
        self._blocks += 1
        out.append(wire_events.ContentBlockStart(block.index, content))
        if not self._pinged:
            self._pinged = True
            out.append(wire_events.Ping())

    def _delta(self, text: str, tokens: list[TokenLogprob], out: wire_events.Events) -> None:
        block = self._block
        if block is None or not text:
            return
        if not block.is_announced:
            self._announce(block, _empty_content(block), out)
        if block.is_thought and self._omit_thinking:
            self._count_piece(block, out)
            return

        if block.is_thought and self._answer.dispatch_reasoning:
            block.texts.append(text)
            self.plain = None
        else:
            self.plain = block.plain()
        block.is_started = True
        out.append(block.piece(text))

    def _count_piece(self, block: OpenBlock, out: wire_events.Events) -> None:
        """Counts a delta of an omitted thought, which has a token or more."""
        block.uncounted += 1
        if block.uncounted == COUNT_EVERY:
            self._report_tokens(block, COUNT_EVERY, out)

    def _report_tokens(self, block: OpenBlock, tokens: int, out: wire_events.Events) -> None:
        """Reports further tokens of a thought, if the client asked for it."""
        if self._counts and tokens > 0:
            block.counted += tokens
            block.uncounted = 0
            delta = wire_events.ThinkingDelta("", tokens)
            out.append(wire_events.ContentBlockDelta(block.index, delta))

    def _dispatch(self, event: Dispatch) -> None:
        if self._block is not None:
            self._block.call = event

    def _stop(self, event: BlockStop, out: wire_events.Events) -> None:
        block = self._block
        self._block = None
        self.plain = None
        if block is None or not block.is_announced:
            return
        if block.is_thought:
            if self._omit_thinking:
                self._report_tokens(block, event.tokens - block.counted, out)
            signature = wire_events.SignatureDelta(event.seal or UNSEALED)
            out.append(wire_events.ContentBlockDelta(block.index, signature))
        if block.kind == "tool_use" and not event.complete and not block.is_started:
            # Clients read empty arguments as {} and run the call; they never run the beginning of
            # an object.
            out.append(block.piece("{"))
        out.append(wire_events.ContentBlockStop(block.index))

        if event.complete:
            if block.kind == "tool_use":
                self._calls += 1
            self._send_dispatch(block, event.seal, out)

    def _send_dispatch(self, block: OpenBlock, seal: str | None, out: wire_events.Events) -> None:
        """Sends the whole block in an event of its own, if a client or an operator requested it."""
        if block.is_thought:
            if self._answer.dispatch_reasoning:
                thought = wire_answers.ThinkingContent("".join(block.texts), seal or UNSEALED)
                out.append(wire_events.MessagesReasoningDispatch(_with_index(block, thought)))
        elif block.call is not None and self._answer.dispatch:
            arguments = block.call.arguments or "{}"
            if is_json(arguments, dict[str, Raw]):
                data = one_line(arguments.encode())
                call = replace(_tool_use(block.start, self._answer), input=data)
                out.append(wire_events.MessagesToolCallDispatch(_with_index(block, call)))

    def _tokens(self, event: OutputTokens, out: wire_events.Events) -> None:
        self._ids.add(event)

    def _results(self, event: HostedResults, out: wire_events.Events) -> None:
        for result in event.results:
            self._has_hosted_results = True
            index = self._blocks
            self._blocks += 1
            if result.error is None:
                self._hosted_uses[result.kind] += 1
            out.append(wire_events.ContentBlockStart(index, result_block(result)))
            out.append(wire_events.ContentBlockStop(index))

    def _finish(self, event: Finish, out: wire_events.Events) -> None:
        if self._block is not None:
            self._stop(BlockStop(self._block.start.block, complete=False), out)
        usage = last_usage(event.usage)
        if self._has_hosted_results:
            usage.server_tool_use = {f"{kind}_requests": self._hosted_uses[kind] for kind in _WEB}
        if self._compaction is not None:
            usage.iterations = iterations(compaction=self._compaction.usage, message=event.usage)
        stop = stop_of(event, self._calls)
        out += self._last(wire_events.MessagesMessageDelta(stop, usage, **self._ids.output()))


def _with_index(
    block: OpenBlock, content: wire_answers.ThinkingContent | wire_answers.ToolUseContent
) -> dict[str, Any]:
    return {"index": block.index, "type": content.__struct_config__.tag, **asdict(content)}


def _empty_content(block: OpenBlock) -> wire_answers.AnswerContent:
    """The content of a block of text or of a thought that begins."""
    return (
        wire_answers.ThinkingContent("", "") if block.is_thought else wire_answers.TextContent("")
    )


def _tool_use(block: BlockStart, answer: RenderInfo) -> wire_answers.ToolUseContent:
    call_id = block.call_id or f"toolu_{answer.turn}{block.block}"
    name = block.name or ""
    if block.kind == "hosted":
        return wire_answers.ServerToolUseContent(hosted_id(call_id), name, Raw(b"{}"), DIRECT)
    return wire_answers.ToolUseContent(call_id, name, Raw(b"{}"), DIRECT)
