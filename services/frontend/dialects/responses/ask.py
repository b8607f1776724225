"""A Responses request, its history and the objects that it names, as a `Conversation`."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgspec
from msgspec import Raw, Struct

from schemas.conversation import Client, Conversation, OutputFormat, Sampling, Text, Thinking, ToolChoice, Turn
from schemas.errors import Invalid, NotFound
from schemas.events import Usage
from services.frontend.dialects.base import Reply
from services.frontend.dialects.hints import hints
from services.frontend.dialects.known_parts import KnownParts
from services.frontend.dialects.responses import tools, wire
from services.frontend.dialects.responses.compaction import CompactionStream
from services.frontend.dialects.responses.document import Status, response_document
from services.frontend.dialects.responses.history import History
from services.frontend.dialects.responses.names import Names
from services.frontend.dialects.responses.output import Shape
from services.frontend.dialects.responses.request import (
    LOGPROBS,
    REASONING_SEALED,
    ResponsesRequest,
    given,
    is_reference,
)
from services.frontend.dialects.responses.request import kinds as kinds_of
from services.frontend.dialects.responses.response import ResponsesCollector
from services.frontend.dialects.responses.stream import ResponsesStream
from services.frontend.dialects.responses.tools import Offered
from services.frontend.dialects.responses.vault import Vault
from services.frontend.dialects.responses.wording import convert, missing_parameter

Resolve = Callable[[str], Raw | None]
"""A stored item by its id."""

SUMMARIZE = (
    "Summarize the conversation so far for a model that goes on with it and sees nothing else of it. Tell the user's "
    "goals and instructions, the decisions and their reasons, every file, command and result that still matters, what "
    "is done, what is open, and the next step. Be exact with names, paths and values. Write the summary only; call no "
    "tools."
)
"""The last word to the model where a compaction is asked for."""
TRIGGER = "compaction_trigger"
_SESSION_HEADERS = ("session-id", "thread-id", "x-session-id", "x-session-affinity")
_HISTORY = {"all_turns": "keep", "current_turn": "drop"}
_reasoning = msgspec.json.Decoder(wire.Reasoning)
_text = msgspec.json.Decoder(wire.TextConfig)
_managed = msgspec.json.Decoder(list[wire.ManagedContext] | None)


class ResponsesAsk(Struct, frozen=True):
    """One understood request."""

    request: ResponsesRequest
    conversation: Conversation
    notes: list[str]
    names: Names
    truncate: bool
    """`truncation: auto`: where the context window is too small, the oldest items may go."""
    compacting: bool
    """The answer is one compaction item: the summary that the model writes, sealed."""
    vault: Vault | None = None
    before: Sequence[Raw] = ()
    """Output items that were made before the turn: the summary of a context that was compacted."""
    spent: Usage = Usage()
    """What they took."""

    @property
    def conversations(self) -> Sequence[Conversation]:
        """The one conversation: a Response has one choice."""
        return (self.conversation,)

    @property
    def stream(self) -> bool:
        """Whether the answer is to be streamed."""
        return self.request.stream

    def renderer(self, reply: Reply) -> ResponsesStream:
        """The streamed answer."""
        if self.compacting and self.vault is not None:
            return CompactionStream(reply, self._shape(), self.vault)
        return ResponsesStream(reply, self._shape())

    def collector(self, reply: Reply) -> ResponsesCollector:
        """The answer in one piece."""
        return ResponsesCollector(self.renderer(reply))

    def document(self, reply: Reply, status: Status) -> dict[str, Any]:
        """The Response object before there is any output: `queued`, or `cancelled` while it was."""
        return response_document(reply, self.request.echo, status=status)

    def _shape(self) -> Shape:
        request = self.request
        summary = request.reasoning.summary or request.reasoning.generate_summary
        return Shape(
            names=self.names,
            echo=request.echo,
            sealed=request.includes(REASONING_SEALED),
            summary=summary not in (None, "none"),
            logprobs=self.conversation.sampling.logprobs is not None,
            prefill=request.prefill,
            compacting=self.compacting,
            before=self.before,
            spent=self.spent,
        )


def understand(
    request: ResponsesRequest,
    headers: Mapping[str, str],
    *,
    history: Sequence[Raw] = (),
    resolve: Resolve | None = None,
    vault: Vault | None = None,
    counting: bool = False,
    compacting: bool = False,
    known: KnownParts[Offered] | None = None,
) -> ResponsesAsk:
    """The conversation of a request. `known`: tools of earlier requests.

    `history`: the items of the chain that `previous_response_id` names, inputs and outputs in order; they come before
    the request's own. `resolve` finds the items that `references` name. `vault` opens compaction items, and seals a new
    one where the input ends in a `compaction_trigger` or `compacting` asks for one. `counting`: only the size of the
    prompt is wanted. Raises Invalid; NotFound for a reference that `resolve` does not know.
    """
    body = request.body
    offered = Offered.of(body.tools or [], KnownParts() if known is None else known)
    compacting = _triggered(request.kinds) or compacting
    if compacting and vault is None and not counting:
        raise Invalid("This server cannot compact: it has no key to seal with.", param="input", code=TRIGGER)
    read = History(offered, vault, pairing=not counting)
    read.read(*_expanded(history, kinds_of(history, "history"), resolve), "history")
    read.read(*_expanded(request.items, request.kinds, resolve), "input")
    read.close()
    if not read.turns and not body.instructions and request.model and body.input is None:
        raise missing_parameter("input")
    reasoning, text = _settings(request, read)
    conversation = Conversation(
        request.model,
        read.turns or [Turn("user", [])],
        system=[Text(body.instructions)] if body.instructions else [],
        tools=offered.settled(),
        tool_choice=tools.choice(request, offered),
        thinking=_thinking(reasoning),
        sampling=_sampling(request),
        format=_format(text),
        template_kwargs=body.chat_template_kwargs or {},
        client=Client(session=_session(request, headers), user_agent=headers.get("user-agent")),
        verbosity=text.verbosity,
        hints=hints(body.nvext, priority=body.priority, cache_salt=body.cache_salt),
        prefill=False,
    )
    if compacting:
        conversation = _to_summarize(conversation)
    notes = [*offered.dropped, *read.notes]
    truncate = body.truncation == "auto"
    return ResponsesAsk(request, conversation, notes, Names(offered.named.values()), truncate, compacting, vault)


def compact_threshold(request: ResponsesRequest) -> int | None:
    """The size of the prompt in tokens from which on its context is to be compacted first. Raises Invalid."""
    managed = convert(_managed, request.body.context_management, "context_management") or []
    return next((one.compact_threshold for one in managed if one.type == "compaction"), None)


def _expanded(
    items: Sequence[Raw], kinds: Sequence[wire.Kind], resolve: Resolve | None
) -> tuple[list[Raw], list[wire.Kind]]:
    """Items with every reference replaced by what it names, and without the triggers of compactions that are over."""
    kept = [_resolved(item, kind, resolve) for item, kind in zip(items, kinds, strict=True) if kind.type != TRIGGER]
    return [item for item, _ in kept], [kind for _, kind in kept]


def _resolved(item: Raw, kind: wire.Kind, resolve: Resolve | None) -> tuple[Raw, wire.Kind]:
    if not is_reference(kind):
        return item, kind
    named = resolve(kind.id) if resolve is not None and kind.id is not None else None
    if named is None:
        raise NotFound(f"Item with id '{kind.id}' not found.", param="input")
    return named, kinds_of([named], "input")[0]


def _triggered(kinds: Sequence[wire.Kind]) -> bool:
    """Whether the input ends in a compaction trigger, its only place."""
    for index, kind in enumerate(kinds[:-1]):
        if kind.type == TRIGGER:
            raise Invalid("A compaction_trigger must be the last item.", param=f"input[{index}]", code="invalid_value")
    return bool(kinds) and kinds[-1].type == TRIGGER


def _settings(request: ResponsesRequest, read: History) -> tuple[wire.Reasoning, wire.TextConfig]:
    """Reasoning and text as the request has them, with what a configuration update changes of them."""
    reasoning, text = request.reasoning, request.text
    if given(read.reasoning):
        update = convert(_reasoning, read.reasoning, "input.reasoning")
        reasoning = msgspec.structs.replace(reasoning, effort=update.effort or reasoning.effort)
    if given(read.text):
        changed = convert(_text, read.text, "input.text")
        text = msgspec.structs.replace(
            text, format=changed.format or text.format, verbosity=changed.verbosity or text.verbosity
        )
    return reasoning, text


def _thinking(reasoning: wire.Reasoning) -> Thinking:
    history = _HISTORY.get(reasoning.context or "", "default")
    if reasoning.effort is None:
        return Thinking(history=history)  # type: ignore[arg-type]
    mode = "disabled" if reasoning.effort == "none" else "enabled"
    return Thinking(mode, effort=reasoning.effort, history=history)  # type: ignore[arg-type]


def _sampling(request: ResponsesRequest) -> Sampling:
    body = request.body
    stop = [body.stop] if isinstance(body.stop, str) else body.stop or []
    return Sampling(
        max_tokens=0 if request.prefill else body.max_output_tokens,
        min_tokens=body.min_tokens,
        temperature=body.temperature,
        top_p=body.top_p,
        top_k=body.top_k,
        min_p=body.min_p,
        seed=body.seed,
        presence_penalty=body.presence_penalty,
        frequency_penalty=body.frequency_penalty,
        repetition_penalty=body.repetition_penalty,
        logprobs=(body.top_logprobs or 0) if request.includes(LOGPROBS) else None,
        stop=stop,
        ignore_eos=bool(body.ignore_eos),
        stop_token_ids=body.stop_token_ids or [],
        include_stop=bool(body.include_stop_str_in_output),
        logit_bias=_bias(body.logit_bias),
    )


def _bias(given_bias: dict[str, float] | None) -> dict[int, float]:
    try:
        return {int(token): value for token, value in (given_bias or {}).items()}
    except ValueError:
        raise Invalid(
            "Invalid key in 'logit_bias': keys must be token ids.", param="logit_bias", code="invalid_value"
        ) from None


def _format(text: wire.TextConfig) -> OutputFormat | None:
    wanted = text.format
    if wanted is None or wanted.type == "text":
        return None
    if wanted.type == "json_object":
        return OutputFormat("json_object")
    if wanted.schema is None:
        raise missing_parameter("text.format.schema")
    if not wanted.name:
        raise missing_parameter("text.format.name")
    return OutputFormat("json_schema", schema=wanted.schema, name=wanted.name, strict=wanted.strict)


def _to_summarize(conversation: Conversation) -> Conversation:
    """The same prompt as far as it goes, tools included, and then the word to sum it up: the prefix stays cached."""
    return msgspec.structs.replace(
        conversation,
        turns=[*conversation.turns, Turn("user", [Text(SUMMARIZE)])],
        tool_choice=ToolChoice("none"),
        format=None,
        # What would leave no summary is not for it: a prompt to be prefilled only, and where an answer is to stop.
        sampling=msgspec.structs.replace(
            conversation.sampling, max_tokens=conversation.sampling.max_tokens or None, stop=[], stop_token_ids=[]
        ),
    )


def _session(request: ResponsesRequest, headers: Mapping[str, str]) -> str | None:
    for name in _SESSION_HEADERS:
        if headers.get(name):
            return headers[name]
    return request.body.prompt_cache_key
