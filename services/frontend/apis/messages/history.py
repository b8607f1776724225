"""Converts `messages` of a request to those of the conversation, in their order; results come
before the text beside them.

Consecutive messages of one role stay separate; the template decides whether to join them. Ids are
checked only where the prompt would be wrong: a result without its call, and two calls with one id
in one message. Everything else that the native API refuses (calls without results, text before
results) is accepted, since interrupted agents send it.
"""

from collections.abc import Sequence

from schemas.conversation import Call, Media, Message, Part, Reasoning, Result, Text, ToolSpec
from schemas.errors import Invalid
from services.frontend.apis.messages import wire
from services.frontend.apis.messages.compaction.signature import LocatedBlock
from services.frontend.apis.messages.content import hosted_text, plain_parts, raw_text, result_parts
from services.frontend.apis.messages.hosted import plain_id, result_of
from services.frontend.apis.messages.tools import ToolSet
from services.frontend.apis.shared.content import CallHistory
from services.frontend.content.added_results import insert_results
from services.frontend.content.hosted_tools import result_part

_ASSISTANT_ONLY = (wire.ThinkingBlock, wire.RedactedThinkingBlock, wire.ToolUseBlock)


class MessagesHistoryReader(CallHistory):
    """Reads the messages of a request, and the changes that they make to its tools and effort."""

    def __init__(self, specs: list[ToolSpec], *, pairing: bool) -> None:
        super().__init__(pairing=pairing)
        self.tools = ToolSet(specs)
        self.effort: str | None = None
        self._hosted: list[tuple[Result, int]] = []
        """Results of tools that this server ran, and the number of messages before each."""
        self.compactions: list[LocatedBlock] = []
        """The compaction blocks with content or a signature."""
        self._first_path = ""
        """The place of the conversation's first block."""

    def read(self, messages: list[wire.MessagesMessage], *, held: int = 0) -> None:
        """Reads all messages. Raises Invalid.

        `held`: the number of messages that a thread holds. Errors count from the first after them,
        which is the first of the request.
        """
        first = -held
        indexed = [*enumerate(messages, first)]
        users = [index for index, message in indexed if message.role == "user"]
        last_user = users[-1] if users else first
        self._first_path = f"messages.{first}.content.0"
        for index, message in indexed:
            field_path = f"messages.{index}"
            if message.role == "system":
                self._add_system_message(message, field_path, cleared=index < last_user)
            elif message.role == "user":
                self._add_user_message(_blocks(message, field_path), field_path)
            else:
                self._add_assistant_message(_blocks(message, field_path), field_path)
        if self._hosted:
            self.messages = insert_results(self.messages, self._hosted)

    def _add_system_message(
        self, message: wire.MessagesMessage, field_path: str, *, cleared: bool
    ) -> None:
        if message.output_config is not None and message.output_config.effort is not None:
            self.effort = message.output_config.effort
        if message.content is None and message.output_config is not None:
            return
        is_over = cleared and message.clear_at == "next_user_message"
        parts: list[Part] = []
        for index, block in enumerate(_blocks(message, field_path)):
            block_path = f"{field_path}.content.{index}"
            if isinstance(block, wire.TextBlock):
                if not is_over:
                    parts += plain_parts(block, field_path) or []
            elif isinstance(block, wire.ToolAdditionBlock | wire.ToolRemovalBlock):
                parts += self.tools.change(block, block_path)
            else:
                raise _not_in_system(block, block_path)
        if parts:
            self.messages.append(Message("system", parts))

    def _add_user_message(self, blocks: Sequence[wire.Block], field_path: str) -> None:
        results: list[Result] = []
        parts: list[Part] = []
        for index, block in enumerate(blocks):
            block_path = f"{field_path}.content.{index}"
            if isinstance(block, wire.ToolResultBlock):
                results.append(self._result(block, block_path))
            elif isinstance(block, _ASSISTANT_ONLY):
                tag = block.__struct_config__.tag
                raise Invalid(f"{field_path}: `{tag}` blocks can only be in `assistant` messages")
            elif isinstance(block, wire.CompactionBlock):
                self._add_compaction(block, block_path)
            else:
                parts += _shared_parts(block, block_path)
        if results:
            self._add_results(results)
        if parts or not (results or _is_only_compaction(blocks)):
            self.messages.append(Message("user", parts))

    def _add_assistant_message(self, blocks: Sequence[wire.Block], field_path: str) -> None:
        parts: list[Part] = []
        ids: set[str] = set()
        for index, block in enumerate(blocks):
            block_path = f"{field_path}.content.{index}"
            if isinstance(block, wire.ToolUseBlock):
                if self._pairing and block.id in ids:
                    raise Invalid(
                        f"{block_path}: `tool_use` ids must be unique", param=f"{block_path}.id"
                    )
                ids.add(block.id)
                parts.append(self._call(block, block_path))
            elif isinstance(block, wire.ToolResultBlock):
                raise Invalid(f"{field_path}: `tool_result` blocks can only be in `user` messages")
            elif isinstance(block, wire.ServerToolUseBlock) and self.tools.runs(block.name):
                call = wire.ToolUseBlock(plain_id(block.id), block.name, block.input)
                parts.append(self._call(call, block_path))
            elif isinstance(block, wire.ServedResultBlock) and self._called_by(block) is not None:
                self._end_message(parts)
                parts = []
                self._add_hosted_result(block, block_path)
            elif isinstance(block, wire.CompactionBlock):
                self._add_compaction(block, block_path)
                parts = []
            else:
                parts += _assistant_parts(block, block_path)
        self._end_message(parts)

    def _end_message(self, parts: list[Part]) -> None:
        """Adds a message of the assistant, if it has parts."""
        if parts:
            self.messages.append(Message("assistant", parts))

    def _called_by(self, block: wire.ServedResultBlock) -> str | None:
        """The name of the tool that a result is of; None if its call is not in the history."""
        return self._name_of(plain_id(block.tool_use_id))

    def _add_hosted_result(self, block: wire.ServedResultBlock, block_path: str) -> None:
        """Notes the result of a tool that this server ran."""
        name = self._called_by(block) or ""
        result = result_part(result_of(block, name, block_path))
        self._hosted.append((result, len(self.messages)))

    def _call(self, block: wire.ToolUseBlock, field_path: str) -> Call:
        arguments = raw_text(block.input)
        if not arguments.startswith("{"):
            raise Invalid(
                f"{field_path}.tool_use.input: Input should be a valid dictionary",
                param=f"{field_path}.input",
            )
        call = Call(block.id, block.name, arguments)
        self._add_call(call)
        return call

    def _result(self, block: wire.ToolResultBlock, field_path: str) -> Result:
        name = self._name_of(block.tool_use_id)
        if name is None and self._pairing:
            raise Invalid(
                f"{field_path}: unexpected `tool_use_id` found in `tool_result` blocks: "
                f"{block.tool_use_id}. Each `tool_result` block must have a corresponding "
                "`tool_use` block in the previous message.",
                param=f"{field_path}.tool_use_id",
            )
        return Result(
            block.tool_use_id,
            result_parts(block.content, f"{field_path}.tool_result"),
            is_error=block.is_error,
            name=name,
        )

    def _add_compaction(self, block: wire.CompactionBlock, field_path: str) -> None:
        if block.content or block.signature:
            is_first = field_path == self._first_path
            self.compactions.append(LocatedBlock(field_path, is_first, block))
        if not block.content:
            return
        self.messages = [Message("user", [Text(block.content)])]
        self._hosted.clear()
        self.tools.compact(block.tool_changes or [], field_path)


def _not_in_system(block: wire.Block, field_path: str) -> Invalid:
    tag = block.__struct_config__.tag
    return Invalid(
        f"{field_path}: `{tag}` blocks are not allowed in `system` messages",
        code="compaction_block_misplaced" if tag == "compaction" else None,
    )


def _is_only_compaction(blocks: Sequence[wire.Block]) -> bool:
    return bool(blocks) and all(isinstance(block, wire.CompactionBlock) for block in blocks)


def _blocks(message: wire.MessagesMessage, field_path: str) -> Sequence[wire.Block]:
    if message.content is None:
        raise Invalid(f"{field_path}.content: Field required", param=f"{field_path}.content")
    if isinstance(message.content, str):
        return [wire.TextBlock(message.content)]
    return message.content


def _assistant_parts(block: wire.Block, field_path: str) -> Sequence[Part]:
    if isinstance(block, wire.ThinkingBlock):
        seal = block.signature if block.signature not in ("", wire.UNSEALED) else None
        return [Reasoning(block.thinking or None, seal)]
    if isinstance(block, wire.RedactedThinkingBlock):
        return [Reasoning(None, block.data)]
    return _shared_parts(block, field_path)


def _shared_parts(block: wire.Block, field_path: str) -> Sequence[Text | Media]:
    plain = plain_parts(block, field_path)
    if plain is not None:
        return plain
    if isinstance(block, wire.HostedUse | wire.HostedResultBlock):
        return [Text(hosted_text(block))]
    if isinstance(block, wire.FallbackBlock):
        return []
    if isinstance(block, wire.ContainerUploadBlock):
        raise Invalid(f"{field_path}: container uploads are not supported by this server")
    raise Invalid(
        f"{field_path}: `{block.__struct_config__.tag}` blocks can only be in `system` messages"
    )
