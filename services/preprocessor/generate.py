"""Makes the `GenerateRequest` for a turn's worker, and the grammar that enforces the request's
promises. Pure."""

from typing import Literal

import msgspec
from msgspec.structs import replace

from schemas.conversation import Conversation
from schemas.events import PromptComparison
from schemas.frames import GenerateRequest, ParseContext, ThoughtBudget, TurnRequest
from schemas.ledger import LedgerContext
from schemas.session import tenant_key
from services.families.verbatim import VERBATIM
from services.guides.calls import Unguidable
from services.guides.promises import promises
from services.guides.turn import TurnForm, turn_grammar
from services.preprocessor.model import ModelSetup
from services.preprocessor.prompt import Prompt
from services.preprocessor.render import allowed_tools, enforced_format
from services.preprocessor.routing.router import priority

_encode = msgspec.json.Encoder().encode


def generate_request(
    request: TurnRequest,
    prompt: Prompt,
    packed: bytes,
    setup: ModelSetup,
    grammar: str,
    *,
    thoughts: ThoughtBudget | None = None,
    comparison: PromptComparison | None = None,
) -> GenerateRequest:
    """The request for any worker, without `parser`, `timeout_s` and `cache_salt`, which are set for
    each worker that is tried. `packed`: the prompt's ids (`pack_ids`); `grammar`: the result of
    `turn_guide`; `thoughts`: that of `thought_budget`; `comparison`: as in `Prepared`."""
    conversation = request.conversation
    choice, sampling = conversation.tool_choice, conversation.sampling
    output_format = enforced_format(conversation)
    # A call's markup in an output with an enforced format is content.
    none = choice.mode == "none" or output_format is not None
    calls: Literal["parallel", "single", "none"] = (
        "none" if none else "parallel" if choice.parallel else "single"
    )
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
        count_thoughts=conversation.thinking.count_tokens,
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
        retain_s=conversation.hints.retain_s,
        tenant=(conversation.client.tenant or "") if conversation.hints.retain_s else "",
        session=tenant_key(conversation, conversation.client.session),
        guided=msgspec.Raw(_encode(output_format)),
        grammar=grammar,
        thoughts=thoughts,
        trace=request.trace,
        reused=0 if prompt.found is None else prompt.found.reused,
        recall="" if prompt.found is None else prompt.found.outcome,
        images=prompt.images,
    )


def _with_tools(context: bytes, tools: bytes) -> bytes:
    """Adds tools to an encoded context: they are most of it, and are encoded once for a session."""
    return context if tools == b"[]" else b'%b,"tools":%b}' % (context[:-1], tools)


def ledger_context_of(prompt: Prompt, conversation: Conversation) -> LedgerContext | None:
    """The prompt's part of the turn's ledger entry, for the parser. None for a turn that may end
    where the template does not close it: its entry could not be used."""
    sampling = conversation.sampling
    if prompt.found is None or sampling.stop_token_ids or sampling.ignore_eos:
        return None
    return prompt.found.context


def thought_budget(
    conversation: Conversation, prompt: Prompt, setup: ModelSetup
) -> ThoughtBudget | None:
    """The limit of the turn's reasoning tokens: the client's, else the operator's for its level of
    effort. Without a grammar. None: there is none, or the turn has no thoughts."""
    thinking, tokens = conversation.thinking, conversation.thinking.budget_tokens
    if tokens is None:
        tokens = setup.card.effort_budgets.get(thinking.effort or "")
    formed = (
        conversation.prompt is not None
        or enforced_format(conversation) is not None
        or not prompt.max_tokens
    )
    if tokens is None or setup.thoughts is None or thinking.mode == "disabled" or formed:
        return None
    return replace(setup.thoughts, tokens=tokens, in_reasoning=prompt.in_reasoning)


def turn_guide(
    conversation: Conversation, prompt: Prompt, setup: ModelSetup, *, rest: bool = False
) -> str:
    """The grammar that enforces the request's promises, in some milliseconds of CPU. "": nothing is
    promised, or no grammar can describe the family's calls. `rest`: that of the part of the turn
    after a thought that was ended."""
    if not promises(conversation):
        return ""
    allowed = allowed_tools(conversation)
    form = TurnForm(
        tools=[tool for tool in prompt.tools if not allowed or tool.name in allowed],
        format=conversation.format,
        parallel=conversation.tool_choice.parallel,
        in_reasoning=prompt.in_reasoning and not rest,
        forced=conversation.tool_choice.mode in ("any", "tool") and not rest,
        prefix="" if rest else prompt.prefix,
    )
    try:
        return turn_grammar(form, setup.family, setup.tokenizer.added, prompt.stop_ids)[0]
    except Unguidable:
        return ""
