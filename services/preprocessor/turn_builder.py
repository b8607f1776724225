"""Makes the prepared turn: what its worker gets, with the parse context for the parser. Pure."""

import math
from typing import Literal

import msgspec

from schemas.conversation import Conversation
from schemas.events import PromptComparison
from schemas.ledger import LedgerContext
from schemas.requests import ParseContext, TurnRequest
from schemas.token_ids import pack_ids
from services.families.family import VERBATIM
from services.preprocessor.guide import TurnGuide
from services.preprocessor.model import ModelSetup
from services.preprocessor.output_settings import OutputSettings
from services.preprocessor.prepared_turn import PreparedTurn
from services.preprocessor.prompt import Prompt
from services.tokenization.block_keys import with_images

MAX_PRIORITY = 2.0**31
BACKGROUND_PRIORITY = -1.0
"""The priority of a background turn, if neither its client nor its key sets one."""

_encode = msgspec.json.Encoder().encode


def build_turn(
    request: TurnRequest,
    prompt: Prompt,
    output: OutputSettings,
    setup: ModelSetup,
    guide: TurnGuide,
    *,
    comparison: PromptComparison | None = None,
    deadline: float = math.inf,
) -> PreparedTurn:
    """The turn of a request with its prompt. `comparison`: as in `Prepared`; `deadline`: as in
    `PreparedTurn`."""
    conversation = request.conversation
    packed_ids = pack_ids(prompt.ids)
    ledger = _ledger_context(prompt, conversation)
    context = _parse_context(
        request, prompt, output, setup, guide, ledger=ledger, comparison=comparison
    )
    return PreparedTurn(
        request=request,
        prompt=prompt,
        output=output,
        guide=guide,
        packed_ids=packed_ids,
        block_key_ids=with_images(packed_ids, prompt.images),
        context=msgspec.Raw(_with_tools(_encode(context), prompt.rendered.tools.parser_json)),
        output_format=msgspec.Raw(_encode(prompt.rendered.enforced_format)),
        priority=priority(conversation),
        ledger=ledger,
        deadline=deadline,
    )


def _parse_context(
    request: TurnRequest,
    prompt: Prompt,
    output: OutputSettings,
    setup: ModelSetup,
    guide: TurnGuide,
    *,
    ledger: LedgerContext | None,
    comparison: PromptComparison | None,
) -> ParseContext:
    """The parse context for the parser shard, without the tools."""
    conversation = request.conversation
    sampling = conversation.sampling
    # The output after a prompt of `/v1/completions` is text.
    family = VERBATIM if conversation.prompt is not None else setup.family
    return ParseContext(
        model=setup.card.name,
        family=family.name,
        frontend=request.frontend,
        prompt_tokens=len(prompt.ids),
        max_tokens=output.max_tokens,
        in_reasoning=prompt.rendered.in_reasoning,
        prefix=prompt.rendered.prefix,
        stop=[stop for stop in sampling.stop if stop],
        include_stop=sampling.include_stop,
        calls=_calls(conversation, prompt),
        allowed=prompt.rendered.allowed_tools,
        check_calls=guide.check_calls,
        logprobs=sampling.logprobs,
        prompt_ids=pack_ids(prompt.ids) if sampling.return_token_ids else b"",
        count_thoughts=conversation.thinking.count_tokens,
        window_limited=output.window_limited,
        broken_call=request.broken_call,
        tenant=conversation.client.tenant,
        ledger=ledger,
        comparison=comparison,
        images=prompt.images if sampling.return_token_ids else [],
        trace=request.trace,
    )


def priority(conversation: Conversation) -> float:
    """The turn's priority in an engine's queue; a greater one goes first."""
    hints = conversation.hints
    value = 0.0
    if hints.priority is not None:
        value = hints.priority
    elif hints.latency_sensitivity is not None:
        value = hints.latency_sensitivity
    elif conversation.client.kind == "background":
        value = BACKGROUND_PRIORITY
    return max(-MAX_PRIORITY, min(MAX_PRIORITY, value))


def _with_tools(context: bytes, tools: bytes) -> bytes:
    """Adds tools to an encoded context: they are most of it, and are encoded once for a session."""
    if tools == b"[]":
        return context
    return b'%b,"tools":%b}' % (context[:-1], tools)


def _calls(conversation: Conversation, prompt: Prompt) -> Literal["parallel", "single", "none"]:
    """How the parser treats calls. Their markup in an output with an enforced format is content."""
    choice = conversation.tool_choice
    if choice.mode == "none" or prompt.rendered.enforced_format is not None:
        return "none"
    return "parallel" if choice.parallel else "single"


def _ledger_context(prompt: Prompt, conversation: Conversation) -> LedgerContext | None:
    """The prompt's part of the turn's ledger entry. None for a turn that may end where the template
    does not close it: its entry could not be used."""
    sampling = conversation.sampling
    if sampling.stop_token_ids or sampling.ignore_eos:
        return None
    return prompt.encoded.context
