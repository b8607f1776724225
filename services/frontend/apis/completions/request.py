"""Parses a Completions request into `Conversation`s, `n` for each prompt."""

from collections.abc import Sequence

from msgspec.structs import replace
from typing_extensions import override

from schemas.conversation import Conversation, RawPrompt
from schemas.errors import Invalid
from schemas.token_ids import pack_ids
from services.frontend.apis.completions import wire
from services.frontend.apis.completions.render import (
    CompletionsCollector,
    CompletionsShape,
    completions_stream,
)
from services.frontend.apis.shared.client import Headers, with_client
from services.frontend.apis.shared.decode import body_decoder, decode_body
from services.frontend.apis.shared.openai.chunks import PING
from services.frontend.apis.shared.openai.wording import (
    Explainer,
    empty_array,
    unknown_parameter,
)
from services.frontend.apis.shared.sampling_fields import (
    for_choice,
    guided_format,
    openai_hints,
    openai_sampling,
)
from services.frontend.turns.interfaces import (
    ApiDialect,
    Collector,
    ParsedRequest,
    Renderer,
    RenderInfo,
)

DIALECT = ApiDialect("completions", PING)

MAX_TOKENS = 16
"""The default of the native API."""

_decode = body_decoder(wire.CompletionsBody, unknown_parameter)
_explain = Explainer({})

MAX_CHOICES = 1024
"""Choices of one request, over all its prompts; each choice is a turn."""


class CompletionsRequest(ParsedRequest, frozen=True, kw_only=True):
    """A parsed request. Its `conversation` has no prompt."""

    prompts: list[RawPrompt]
    shape: CompletionsShape

    @property
    @override
    def conversations(self) -> Sequence[Conversation]:
        """One for each choice, by prompt; a `seed` is varied by choice."""
        conversations: list[Conversation] = []
        for prompt in self.prompts:
            for choice in range(self.choices):
                conversation = for_choice(self.conversation, choice)
                conversations.append(replace(conversation, prompt=prompt))
        return conversations

    @override
    def renderer(self, answer: RenderInfo) -> Renderer:
        return completions_stream(answer, self.shape)

    @override
    def collector(self, answer: RenderInfo) -> Collector:
        return CompletionsCollector(completions_stream(answer, self.shape.for_document()))


def prompts(body: wire.CompletionsBody) -> list[RawPrompt]:
    """The prompts in the field's four forms; None is the empty text. Raises Invalid for an empty or
    mixed list."""
    special = body.add_special_tokens is not False
    prompt = body.prompt
    if prompt is None or isinstance(prompt, str):
        return [RawPrompt(prompt or "", add_special_tokens=special)]
    if not prompt:
        raise empty_array("prompt")
    ids = [item for item in prompt if isinstance(item, int)]
    if len(ids) == len(prompt):
        return [_tokens(ids, "prompt")]
    if ids:
        raise Invalid(
            "Invalid 'prompt': token ids and prompts cannot be mixed.",
            param="prompt",
            code="invalid_type",
        )
    raw_prompts: list[RawPrompt] = []
    for index, item in enumerate(prompt):
        if isinstance(item, str):
            raw_prompts.append(RawPrompt(item, add_special_tokens=special))
        elif isinstance(item, list):
            raw_prompts.append(_tokens(item, f"prompt[{index}]"))
    return raw_prompts


def echo_texts(raw_prompts: Sequence[RawPrompt], body: wire.CompletionsBody) -> list[str]:
    """The text before each prompt's answer: with `echo` the prompt, else "". Raises Invalid for a
    prompt of token ids."""
    if not body.echo:
        return [""] * len(raw_prompts)
    texts = [prompt.text for prompt in raw_prompts if prompt.text is not None]
    if len(texts) < len(raw_prompts):
        raise Invalid("'echo' needs a prompt of text.", param="echo", code="unsupported_value")
    if body.logprobs:
        raise Invalid("'echo' with 'logprobs': those of a prompt are not known.", param="logprobs")
    return texts


def _tokens(ids: list[int], field_path: str) -> RawPrompt:
    if not ids:
        raise empty_array(field_path)
    return RawPrompt(token_ids=pack_ids(ids))


class Completions:
    """Reads requests of Completions. Pure; one instance serves every request."""

    def __init__(self, fingerprint: str | None = None) -> None:
        self._fingerprint = fingerprint

    def parse(self, body: bytes, headers: Headers) -> CompletionsRequest:
        """Parses POST /v1/completions. Raises Invalid in the native wording."""
        request = decode_body(_decode, body, _explain)
        raw_prompts = prompts(request)
        choices = request.n or 1
        _check_choices(request, len(raw_prompts), choices)
        limit = MAX_TOKENS if request.max_tokens is None else request.max_tokens
        conversation = Conversation(
            request.model,
            [],
            sampling=openai_sampling(request, max_tokens=limit, logprobs=request.logprobs),
            format=guided_format(request),
            hints=openai_hints(request),
        )
        conversation = with_client(conversation, headers, request.session)
        # Few models are trained to fill a gap, each in its own format, which a client can write
        # into the prompt.
        notes = ["suffix"] if request.suffix else []
        shape = self._shape(request, raw_prompts, choices)
        return CompletionsRequest(
            conversation=conversation,
            prompts=raw_prompts,
            choices=choices,
            stream=bool(request.stream),
            notes=notes,
            shape=shape,
        )

    def _shape(
        self, request: wire.CompletionsBody, raw_prompts: Sequence[RawPrompt], choices: int
    ) -> CompletionsShape:
        echoes: list[str] = []
        for text in echo_texts(raw_prompts, request):
            echoes += [text] * choices
        return CompletionsShape(
            echoes=echoes,
            prompts=len(raw_prompts),
            logprobs=request.logprobs is not None and not request.return_token_ids,
            include_usage=request.includes_usage,
            continuous_usage=request.continuous_usage,
            fingerprint=self._fingerprint,
        )


def _check_choices(request: wire.CompletionsBody, prompts: int, choices: int) -> None:
    """Raises Invalid for too many choices, or a choice among several."""
    if prompts * choices > MAX_CHOICES:
        message = f"Too many choices: {prompts * choices} of at most {MAX_CHOICES} in one request."
        raise Invalid(message, param="prompt")
    if request.best_of and request.best_of != choices:
        message = "'best_of' other than 'n' is not supported by this server."
        raise Invalid(message, param="best_of", code="unsupported_value")
