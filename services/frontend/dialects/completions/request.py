"""A Completions request as `Conversation`s: one for each choice, `n` for each prompt."""

from collections.abc import Mapping, Sequence

import msgspec
from msgspec import Struct

from schemas.conversation import Client, Conversation, RawPrompt
from schemas.errors import Invalid
from services.frontend.dialects.base import Collector, Renderer, Reply
from services.frontend.dialects.completions import wire
from services.frontend.dialects.completions.prompts import MAX_CHOICES, echoed, prompts
from services.frontend.dialects.completions.response import CompletionsCollector
from services.frontend.dialects.completions.shape import Shape
from services.frontend.dialects.completions.stream import CompletionsStream
from services.frontend.dialects.decode import decode_body
from services.frontend.dialects.hints import hints
from services.frontend.dialects.openai_wording import explainer
from services.frontend.dialects.sampling_fields import output_format, sampling, seed_of_choice

MAX_TOKENS = 16
"""The API's own default."""

_decoder = msgspec.json.Decoder(wire.Body)
_explain = explainer({})


class CompletionsAsk(Struct, frozen=True):
    """One understood request."""

    conversation: Conversation
    """Without its prompt."""
    prompts: list[RawPrompt]
    each: int
    """Choices of one prompt."""
    stream: bool
    notes: list[str]
    shape: Shape

    @property
    def conversations(self) -> Sequence[Conversation]:
        """One for each choice: those of the first prompt, those of the second, … Each choice of a prompt has another
        seed, where one is given."""
        return [self._choice(prompt, choice) for prompt in self.prompts for choice in range(self.each)]

    def renderer(self, reply: Reply) -> Renderer:
        """The streamed answer."""
        return CompletionsStream(reply, self.shape)

    def collector(self, reply: Reply) -> Collector:
        """The answer in one piece."""
        return CompletionsCollector(reply, self.shape)

    def _choice(self, prompt: RawPrompt, choice: int) -> Conversation:
        decoding = self.conversation.sampling
        if decoding.seed is not None:
            decoding = msgspec.structs.replace(decoding, seed=seed_of_choice(decoding.seed, choice))
        return msgspec.structs.replace(self.conversation, prompt=prompt, sampling=decoding)


def parse(body: bytes, headers: Mapping[str, str], fingerprint: str | None = None) -> CompletionsAsk:
    """Understands the request. Raises Invalid in the native wording."""
    request = decode_body(_decoder.decode, body, _explain)
    found, each = prompts(request), request.n or 1
    _check(request, len(found) * each)
    limit = MAX_TOKENS if request.max_tokens is None else request.max_tokens
    conversation = Conversation(
        request.model,
        [],
        sampling=sampling(request, max_tokens=limit, logprobs=request.logprobs),
        format=output_format(request, None),
        client=Client(user_agent=headers.get("user-agent")),
        hints=hints(request.nvext, priority=request.priority, cache_salt=request.cache_salt),
    )
    texts = echoed(found, request)
    options = request.stream_options
    shape = Shape(
        echoes=[text for text in texts for _ in range(each)],
        prompts=len(found),
        logprobs=request.logprobs is not None,
        include_usage=bool(options and options.include_usage),
        continuous_usage=bool(options and options.include_usage and options.continuous_usage_stats),
        fingerprint=fingerprint,
    )
    return CompletionsAsk(conversation, found, each, bool(request.stream), _notes(request), shape)


def _check(request: wire.Body, choices: int) -> None:
    if choices > MAX_CHOICES:
        raise Invalid(f"Too many choices: {choices} of at most {MAX_CHOICES} in one request.", param="prompt")
    if request.best_of and request.best_of != (request.n or 1):
        message = "'best_of' other than 'n' is not supported by this server."
        raise Invalid(message, param="best_of", code="unsupported_value")


def _notes(request: wire.Body) -> list[str]:
    # Few models are trained to fill a gap, and each in its own form: who needs it writes that form into the prompt.
    return ["suffix"] if request.suffix else []
