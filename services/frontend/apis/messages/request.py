"""Parses a Messages request into a `Conversation`.

`docs/messages.md` lists what each field does. Fields that would silently change the meaning of the
answer are refused (containers, MCP servers, files); unknown fields are ignored.
"""

from collections.abc import Collection, Sequence
from typing import Literal

import msgspec
from msgspec import Struct
from msgspec.structs import replace
from typing_extensions import override

from schemas.conversation import Conversation, OutputFormat, Text, Thinking
from schemas.errors import Invalid
from services.frontend.apis.messages import context_edits, tools, wire, wire_answers
from services.frontend.apis.messages.bodies import DecodedBody, MessagesBodies
from services.frontend.apis.messages.compaction.edit import (
    AnswerCompaction,
    CompactEdit,
    read_compact_edit,
)
from services.frontend.apis.messages.compaction.request import SummaryRequest, read_summary_request
from services.frontend.apis.messages.compaction.signature import check_blocks
from services.frontend.apis.messages.compaction.stream import PausedCompaction, SummaryAnswer
from services.frontend.apis.messages.document import MessageCollector
from services.frontend.apis.messages.history import MessagesHistoryReader
from services.frontend.apis.messages.message_renderer import PING, MessageRenderer
from services.frontend.apis.messages.render import MessagesStream
from services.frontend.apis.messages.thread_history import (
    ThreadTurn,
    thread_turn,
    with_history,
)
from services.frontend.apis.shared.client import Headers, with_client
from services.frontend.apis.shared.decode import share_texts
from services.frontend.apis.shared.sampling_fields import CACHE_TTLS, hints, sampling_of
from services.frontend.stored.record import StoredReply
from services.frontend.turns.interfaces import ApiDialect, ParsedRequest, RenderInfo

DIALECT = ApiDialect("messages", PING)

_MIN_BUDGET = 1024
_INTERLEAVED = "interleaved-thinking-"
_TOKEN_COUNT = "thinking-token-count-"


class MessagesRequest(ParsedRequest, frozen=True, kw_only=True):
    """A parsed request."""

    edits: context_edits.Edits | None = None
    """None where the request has no `context_management`; the answer has none then."""
    compact: CompactEdit | None = None
    """The edit that `context_management.compact` applies."""
    compaction: AnswerCompaction | None = None
    """The compaction at the beginning of the answer."""
    pausing: bool = False
    """The answer is only the compaction: the conversation requests a summary."""
    summary: SummaryRequest | None = None
    """Set where the request has `compaction`: the answer is only the summary."""
    thread: ThreadTurn | None = None
    """The part that the request adds to its thread."""

    @override
    def collector(self, answer: RenderInfo) -> MessageCollector:
        answer = replace(answer, dispatch=False, dispatch_reasoning=False)
        return MessageCollector(self.renderer(answer), answer)

    @override
    def renderer(self, answer: RenderInfo) -> MessageRenderer:
        if self.summary is not None:
            return SummaryAnswer(answer, self.summary)
        applied_edits = None
        if self.edits is not None:
            applied_edits = self.edits.applied
        compare = self.conversation.client.compare
        if self.pausing:
            return PausedCompaction(answer, applied_edits=applied_edits, compare=compare)
        return MessagesStream(
            answer,
            omit_thinking=self.conversation.thinking.display == "omitted",
            count_thinking=self.conversation.thinking.count_tokens,
            applied_edits=applied_edits,
            compaction=self.compaction,
            compare=compare,
        )


def _conversation(
    request: wire.MessagesBody,
    headers: Headers,
    declared: tools.MessagesTools,
    history: MessagesHistoryReader,
) -> Conversation:
    return Conversation(
        request.model,
        history.messages,
        system=[*_system(request.system), *declared.missing],
        tools=history.tools.specs,
        tool_choice=tools.choice(request, history.tools.offered),
        thinking=replace(
            _thinking(request, history.effort),
            count_tokens=_TOKEN_COUNT in headers.get("anthropic-beta", ""),
        ),
        sampling=sampling_of(
            request,
            max_tokens=request.max_tokens,
            stop=request.stop_sequences,
            logprobs=0 if request.logprobs and request.return_token_ids else None,
        ),
        format=_format(request),
        template_kwargs=request.chat_template_kwargs or {},
        hints=hints(
            request.nvext,
            priority=request.priority,
            cache_salt=request.cache_salt,
            ttl=_ttl(request),
        ),
    )


def _refuse(request: wire.MessagesBody) -> None:
    if request.mcp_servers:
        raise Invalid("mcp_servers: not supported by this server", param="mcp_servers")
    if _needs_container(request):
        raise Invalid("container: not supported by this server", param="container")


def _check_messages(request: wire.MessagesBody) -> None:
    if not request.messages and request.compaction is None:
        raise Invalid("messages: at least one message is required", param="messages")


def _needs_container(request: wire.MessagesBody) -> bool:
    # A container is where the code_execution tool runs. Without that tool an object that describes
    # one changes nothing (the SDK's own tests send it); a bare id refers to the state of an earlier
    # request.
    if isinstance(request.container, str):
        return True
    coding = any((tool.type or "").startswith("code_execution_") for tool in request.tools or [])
    return request.container is not None and coding


def _ignored(request: wire.MessagesBody) -> list[str]:
    """The members of a container that no tool of the request uses."""
    container = request.container
    if not isinstance(container, wire.Container):
        return []
    members = {"container.id": container.id, "container.skills": container.skills}
    return [name for name, value in members.items() if value]


def _check_turn(request: wire.MessagesBody, headers: Headers) -> None:
    if request.max_tokens is None:
        raise Invalid("max_tokens: Field required", param="max_tokens")
    if any(not stop for stop in request.stop_sequences or []):
        raise Invalid(
            "stop_sequences: each stop sequence must be non-empty", param="stop_sequences"
        )
    _check_budget_fits(request, request.max_tokens, headers)
    if request.compaction is None:  # a summary does not continue the last message
        _check_last_message(request)


def _check_budget_fits(request: wire.MessagesBody, max_tokens: int, headers: Headers) -> None:
    """Raises Invalid for an answer that has no room after its thinking."""
    # In the native API an interleaved budget holds for all thoughts of a tool loop.
    if request.thinking is None or _INTERLEAVED in headers.get("anthropic-beta", ""):
        return
    budget = request.thinking.budget_tokens
    if budget is not None and budget >= max_tokens > 0:
        raise Invalid(
            "`max_tokens` must be greater than `thinking.budget_tokens`.",
            param="thinking.budget_tokens",
        )


def _check_last_message(request: wire.MessagesBody) -> None:
    """Raises Invalid for a text of the assistant that the answer cannot continue."""
    last = request.messages[-1]
    if last.role != "assistant" or not last.content:
        return
    if isinstance(last.content, str):
        _check_continued(request, last.content, last.content)
    elif isinstance(last.content[-1], wire.TextBlock):
        _check_continued(request, last.content[-1].text, last.content[0])


def _check_continued(request: wire.MessagesBody, text: str, first: str | wire.Block) -> None:
    """Checks that a last message that ends in `text`, and begins with the block `first`, can be
    continued."""
    if text != text.rstrip():
        raise Invalid("messages: final assistant content cannot end with trailing whitespace")
    if request.thinking is None or request.thinking.type != "enabled":
        return
    if not isinstance(first, wire.ThinkingBlock | wire.RedactedThinkingBlock):
        first_type: str | int | None = "text"
        if not isinstance(first, str):
            first_type = first.__struct_config__.tag
        field_path = f"messages.{len(request.messages) - 1}.content.0.type"
        raise Invalid(
            f"{field_path}: Expected `thinking` or `redacted_thinking`, but found `{first_type}`. "
            "When `thinking` is enabled, a final `assistant` message must start with a thinking "
            "block. To avoid this requirement, disable `thinking`.",
            param=field_path,
        )


def _system(system: str | list[wire.TextBlock] | None) -> list[Text]:
    if not system:
        return []
    if isinstance(system, str):
        return [Text(system)]
    return [Text(block.text) for block in system if block.text]


def _thinking(request: wire.MessagesBody, latest_effort: str | None) -> Thinking:
    effort = latest_effort
    if not effort and request.output_config:
        effort = request.output_config.effort
    thinking = request.thinking
    if thinking is None:
        # Claude Code sends effort without `thinking` when thinking is off, and in its side jobs.
        if effort:
            return Thinking("disabled", effort=effort)
        return Thinking("default", effort=effort)
    if thinking.type in ("disabled", "between_tools"):  # what is written between calls is text
        return Thinking("disabled", effort=effort)

    _check_budget(thinking)
    display: Literal["full", "omitted"] = "omitted" if thinking.display == "omitted" else "full"
    mode: Literal["enabled", "adaptive"] = "enabled" if thinking.type == "enabled" else "adaptive"
    return Thinking(mode, thinking.budget_tokens, effort, display)


def _check_budget(thinking: wire.MessagesThinking) -> None:
    """Raises Invalid for a budget that is missing or too small."""
    field_path = f"thinking.{thinking.type}.budget_tokens"
    budget = thinking.budget_tokens
    if budget is None:
        if thinking.type == "enabled":
            raise Invalid(f"{field_path}: Field required", param="thinking.budget_tokens")
    elif budget < _MIN_BUDGET:
        message = f"{field_path}: Input should be greater than or equal to {_MIN_BUDGET}"
        raise Invalid(message, param="thinking.budget_tokens")


def _format(request: wire.MessagesBody) -> OutputFormat | None:
    output_format = None
    if request.output_config is not None:
        output_format = request.output_config.format
    if output_format is not None and request.output_format is not None:
        message = "output_format: only one of `output_format` and `output_config.format` may be set"
        raise Invalid(message, param="output_format")
    output_format = output_format or request.output_format
    if output_format is None:
        return None
    return OutputFormat("json_schema", schema=output_format.schema)


def _ttl(request: wire.MessagesBody) -> str | None:
    """The longest `ttl` of the request. It holds for the whole prompt."""
    contents = (message.content for message in request.messages)
    controls = [request.cache_control]
    for items in (request.system, request.tools, *contents):
        if type(items) is list:
            controls += [getattr(item, "cache_control", None) for item in items]
    ttls = [control.ttl for control in controls if control is not None]
    return max(ttls, key=CACHE_TTLS.__getitem__, default=None)


def _compared(diagnostics: wire.Diagnostics | None) -> str | None:
    """The id of the message to compare with; "" for none, None where nothing is asked."""
    if diagnostics is None:
        return None
    previous = diagnostics.previous_message_id
    if previous is None:
        return ""
    return previous.removeprefix("msg_") or "msg_"  # no turn has an empty id


def _session(request: wire.MessagesBody) -> str | None:
    """The session id that the `user_id` of Claude Code or kimi-code contains."""
    if request.metadata is None or not request.metadata.user_id:
        return None
    user = request.metadata.user_id
    try:
        return msgspec.json.decode(user, type=_UserId).session_id
    except (msgspec.DecodeError, msgspec.ValidationError):
        # Claude Code before 2.1: user_<hash>_account_<uuid>_session_<uuid>; kimi-code:
        # session_<uuid>
        _, separator, session = f"_{user}".rpartition("_session_")
        if not separator or not session:
            return None
        return session


class _UserId(Struct):
    session_id: str | None = None


class Messages:
    """Reads requests of the Messages API. Pure, except for its memo of tools. One instance serves
    every request."""

    def __init__(self, served: Collection[str] = ()) -> None:
        """`served`: the kinds of hosted tools that this server runs."""
        self._bodies = MessagesBodies(frozenset(served))

    def parse_count(self, body: bytes, headers: Headers) -> MessagesRequest:
        """Parses a POST /v1/messages/count_tokens that continues no thread. Raises as
        `convert_count`."""
        return self.convert_count(self.decode(body, headers), headers)

    def decode(self, body: bytes, _headers: Headers) -> DecodedBody:
        """Decodes a body, for `read_request`. Raises Invalid in the native wording."""
        return self._bodies.read(body)

    def convert(
        self, decoded: DecodedBody, headers: Headers, replies: Sequence[StoredReply] = ()
    ) -> MessagesRequest:
        """Converts the body of POST /v1/messages. Raises Invalid in the native wording.

        `replies`: those of the thread that the request continues, oldest first.
        """
        whole = with_history(decoded, replies, self._bodies)
        _check_messages(whole.body)
        _refuse(whole.body)
        _check_turn(whole.body, headers)
        request = self._convert(whole, headers, counting=False)
        share_texts(request.conversation, self._bodies.memo)
        return replace(request, thread=thread_turn(whole, replies))

    def convert_count(
        self, decoded: DecodedBody, headers: Headers, replies: Sequence[StoredReply] = ()
    ) -> MessagesRequest:
        """Converts the body of POST /v1/messages/count_tokens. Such requests have no `max_tokens`,
        may have unmatched calls and results, and may use features that this server lacks. Raises
        Invalid. `replies`: see `convert`."""
        whole = with_history(decoded, replies, self._bodies)
        _check_messages(whole.body)
        return self._convert(whole, headers, counting=True)

    def _convert(self, whole: DecodedBody, headers: Headers, *, counting: bool) -> MessagesRequest:
        request = whole.body
        declared = whole.declared
        history = MessagesHistoryReader(declared.specs, pairing=not counting)
        history.read(request.messages, held=whole.held)
        management = request.context_management
        keep_turns = context_edits.thinking_turns(management)

        conversation = _conversation(request, headers, declared, history)
        conversation, cleared_turns = context_edits.clear_thinking(conversation, keep_turns)
        edits = context_edits.read_edits(management, history.messages, cleared_turns)
        compact_edit = read_compact_edit(management, declared.specs)

        compare = _compared(request.diagnostics)
        conversation = with_client(conversation, headers, _session(request), compare=compare)
        notes = [*declared.dropped, *whole.unknown, *_ignored(request)]
        parsed = MessagesRequest(
            conversation=conversation,
            stream=bool(request.stream),
            notes=notes,
            edits=edits,
            compact=compact_edit,
        )
        check_blocks(history.compactions, has_compact_edit=compact_edit is not None)
        if request.compaction is None or counting:
            return parsed
        summary = read_summary_request(request, conversation, history.tools.changes)
        return replace(parsed, conversation=summary.conversation(conversation), summary=summary)

    def count_answer(self, request: MessagesRequest, tokens: int) -> wire_answers.MessagesTokens:
        """The answer to count_tokens."""
        count = wire_answers.MessagesTokens(tokens)
        if request.edits is not None:
            original = request.edits.original_tokens
            if original is None:
                original = tokens
            count.context_management = wire_answers.OriginalTokens(original)
        return count
