"""The JSON of Completions as typed Structs: requests, answers and the choices of chunks."""

from typing import Annotated, Literal, TypeAlias

from msgspec import UNSET, Meta, Struct, UnsetType

from services.frontend.apis.shared.openai.chunks import Logprobs, UsageAnswer
from services.frontend.apis.shared.sampling_fields import OpenAIFields

TokenId: TypeAlias = Annotated[int, Meta(ge=0, le=2**32 - 1)]


class CompletionsBody(OpenAIFields, kw_only=True):
    """The request. `prompt`: one text, one list of token ids, or a list of texts and of lists of
    token ids."""

    prompt: str | list[str | TokenId | list[TokenId]] | None = None
    suffix: str | None = None
    echo: bool | None = None
    best_of: Annotated[int, Meta(ge=0)] | None = None
    logprobs: Annotated[int, Meta(ge=0, le=20)] | None = None
    add_special_tokens: bool | None = None


CompletionsFinishReason: TypeAlias = Literal["stop", "length"]


class CompletionsChunkChoice(Struct):
    """A piece of one of the answers."""

    index: int
    text: str
    logprobs: Logprobs | None = None
    finish_reason: CompletionsFinishReason | None = None
    prompt_token_ids: list[int] | UnsetType = UNSET
    token_ids: list[int] | UnsetType = UNSET
    stop_reason: str | UnsetType | None = UNSET


class Choice(CompletionsChunkChoice):
    """One of the answers."""

    logprobs: Logprobs | None
    finish_reason: CompletionsFinishReason


class CompletionsAnswer(Struct):
    id: str
    object: Literal["text_completion"]
    created: int
    model: str
    system_fingerprint: str | None
    choices: list[Choice]
    usage: UsageAnswer
