"""`prompt` in its four forms, as the raw prompts that it holds."""

from collections.abc import Sequence

from schemas.conversation import RawPrompt
from schemas.errors import Invalid
from schemas.frames import pack_ids
from services.frontend.dialects.completions import wire

MAX_CHOICES = 1024
"""Of one request, over all its prompts. Each is a turn of its own."""


def prompts(body: wire.Body) -> list[RawPrompt]:
    """One for each prompt; None is the empty text. Raises Invalid where there is none, and for a list of both kinds."""
    special = body.add_special_tokens is not False
    given = body.prompt
    if given is None or isinstance(given, str):
        return [RawPrompt(given or "", add_special_tokens=special)]
    if not given:
        raise Invalid("Invalid 'prompt': empty array. Expected at least one prompt.", param="prompt")
    ids = [item for item in given if isinstance(item, int)]
    if len(ids) == len(given):
        return [_tokens(ids)]
    if ids:
        raise Invalid("Invalid 'prompt': token ids and prompts cannot be mixed.", param="prompt", code="invalid_type")
    return [
        RawPrompt(item, add_special_tokens=special) if isinstance(item, str) else _tokens(item)
        for item in given
        if not isinstance(item, int)
    ]


def echoed(found: Sequence[RawPrompt], body: wire.Body) -> list[str]:
    """What stands before each prompt's answer: its own text, or nothing. Raises Invalid where that is not known."""
    if not body.echo:
        return [""] * len(found)
    texts = [prompt.text for prompt in found if prompt.text is not None]
    if len(texts) < len(found):
        raise Invalid("'echo' needs a prompt of text.", param="echo", code="unsupported_value")
    if body.logprobs:
        raise Invalid("'echo' with 'logprobs': those of a prompt are not known.", param="logprobs")
    return texts


def _tokens(ids: list[int]) -> RawPrompt:
    if not ids:
        raise Invalid("Invalid 'prompt': empty array. Expected at least one token.", param="prompt")
    return RawPrompt(token_ids=pack_ids(ids))
