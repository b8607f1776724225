"""Makes the `GenerateRequest` for a turn's worker, and the grammar that enforces the request's promises. Pure."""

from typing import Literal

import msgspec

from schemas.conversation import Conversation
from schemas.events import PromptComparison
from schemas.frames import GenerateRequest, ParseContext, TurnRequest
from schemas.ledger import LedgerContext
from services.families.verbatim import VERBATIM
from services.guides.calls import Unguidable
from services.guides.promises import promises
from services.guides.turn import TurnForm, turn_grammar
from services.preprocessor.model import ModelSetup
from services.preprocessor.output_format import enforced_format
from services.preprocessor.prompt import Prompt
from services.preprocessor.render import allowed_tools
from services.preprocessor.routing.router import priority

_encode = msgspec.json.Encoder().encode


def generate_request(
    request: TurnRequest,
    prompt: Prompt,
    packed: bytes,
    setup: ModelSetup,
    grammar: str,
    *,
    comparison: PromptComparison | None = None,
) -> GenerateRequest:
    """The request for any worker, without `parser`, `timeout_s` and `cache_salt`, which are set for each worker that is
    tried. `packed`: the prompt's ids (`pack_ids`); `grammar`: the result of `turn_guide`; `comparison`: as in
    `Prepared`."""
    conversation = request.conversation
    choice, sampling = conversation.tool_choice, conversation.sampling
    output_format = enforced_format(conversation)
    # A call's markup in an output with an enforced format is content.
    none = choice.mode == "none" or output_format is not None
    calls: Literal["parallel", "single", "none"] = "none" if none else "parallel" if choice.parallel else "single"
    context = ParseContext(
        model=setup.card.name,
        family=setup.family.name if conversation.prompt is None else VERBATIM.name,
        frontend=request.frontend,
        prompt_tokens=len(prompt.ids),
        max_tokens=prompt.max_tokens,
        in_reasoning=prompt.in_reasoning,
        prefix=prompt.prefix,
        stop=[stop for stop in sampling.stop if stop],
        include_stop=sampling.include_stop,
        calls=calls,
        allowed=allowed_tools(conversation),
        logprobs=sampling.logprobs,
        prompt_ids=packed if sampling.return_token_ids else b"",
        window_limited=prompt.window_limited,
        tenant=conversation.client.tenant,
        ledger=ledger_context_of(prompt, conversation),
        comparison=comparison,
        trace=request.trace,
    )
    return GenerateRequest(
        turn=request.turn,
        attempt=request.attempt,
        model=setup.card.name,
        prompt=packed,
        parser="",
        frontend=request.frontend,
        sampling=prompt.sampling,
        stop_ids=prompt.stop_ids,
        context=msgspec.Raw(_with_tools(_encode(context), prompt.parser_tools)),
        resume=request.resume,
        priority=priority(conversation),
        guided=msgspec.Raw(_encode(output_format)),
        grammar=grammar,
        trace=request.trace,
        reused=0 if prompt.found is None else prompt.found.reused,
        recall="" if prompt.found is None else prompt.found.outcome,
    )


def _with_tools(context: bytes, tools: bytes) -> bytes:
    """Adds tools to an encoded context: they are most of it, and are encoded once for a session."""
    return context if tools == b"[]" else b'%b,"tools":%b}' % (context[:-1], tools)


def ledger_context_of(prompt: Prompt, conversation: Conversation) -> LedgerContext | None:
    """The prompt's part of the turn's ledger entry, for the parser. None for a turn that may end where the template
    does not close it: its entry could not be used."""
    sampling = conversation.sampling
    if prompt.found is None or sampling.stop_token_ids or sampling.ignore_eos:
        return None
    return prompt.found.context


def turn_guide(conversation: Conversation, prompt: Prompt, setup: ModelSetup) -> str:
    """The grammar that enforces the request's promises, in some milliseconds of CPU. "": nothing is promised, or no
    grammar can describe the family's calls."""
    if not promises(conversation):
        return ""
    allowed = allowed_tools(conversation)
    form = TurnForm(
        tools=[tool for tool in prompt.tools if not allowed or tool.name in allowed],
        format=conversation.format,
        parallel=conversation.tool_choice.parallel,
        in_reasoning=prompt.in_reasoning,
        forced=conversation.tool_choice.mode in ("any", "tool"),
        prefix=prompt.prefix,
    )
    try:
        return turn_grammar(form, setup.family, setup.tokenizer.added, prompt.stop_ids).text
    except Unguidable:
        return ""
