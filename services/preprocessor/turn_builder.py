"""Makes prepared turns: the request that a worker gets, and within it the parse context for the
parser. Pure."""

import math
from typing import Literal

import msgspec

from schemas.conversation import Conversation
from schemas.events import PromptComparison
from schemas.ledger import LedgerContext
from schemas.requests import GenerateRequest, ParseContext, TurnRequest
from schemas.session import tenant_key
from schemas.token_ids import pack_ids
from services.families.family import VERBATIM
from services.preprocessor.guide import TurnGuide
from services.preprocessor.model.model_setup import ModelSetup
from services.preprocessor.output_settings import OutputSettings
from services.preprocessor.prepared_turn import PreparedTurn
from services.preprocessor.prompt.prompt_maker import Prompt
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
    ledger = _ledger_context(prompt, request.conversation)
    context = _parse_context(
        request, prompt, output, setup, guide, ledger=ledger, comparison=comparison
    )
    for_worker = _for_worker(request, prompt, output, guide, context)
    return PreparedTurn(
        request=request,
        prompt=prompt,
        for_worker=for_worker,
        block_key_ids=with_images(for_worker.prompt, prompt.images),
        ledger=ledger,
        deadline=deadline,
    )


def _for_worker(
    request: TurnRequest,
    prompt: Prompt,
    output: OutputSettings,
    guide: TurnGuide,
    context: ParseContext,
) -> GenerateRequest:
    """`PreparedTurn.for_worker`."""
    conversation = request.conversation
    client, hints = conversation.client, conversation.hints
    rendered = prompt.rendered
    return GenerateRequest(
        turn=request.turn,
        attempt=request.attempt,
        model=context.model,
        prompt=pack_ids(prompt.ids),
        parser="",
        frontend=request.frontend,
        sampling=output.sampling,
        stop_ids=output.stop_ids,
        context=msgspec.Raw(_with_tools(_encode(context), rendered.tools.parser_json)),
        resume=request.resume,
        priority=priority(conversation),
        retain_s=hints.retain_s,
        tenant=(client.tenant or "") if hints.retain_s else "",
        session=tenant_key(conversation, client.session),
        guided=msgspec.Raw(_encode(rendered.enforced_format)),
        grammar=guide.grammar,
        optional_grammar=guide.optional_grammar,
        thought_budget=guide.thought_budget,
        trace=request.trace,
        reused=prompt.encoded.reused,
        recall=prompt.encoded.outcome.value,
        tool_tokens=rendered.tools.tokens,
        images=prompt.images,
        adapter=conversation.adapter,
        any_weights=hints.any_weights,
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
