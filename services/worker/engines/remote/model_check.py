"""Compares the server's model with the directory that the preprocessor reads.

Prompts are ids, which mean something else to another model: the server would answer them without an
error. So both tokenizers encode one text before the engine serves.
"""

import asyncio
import re
from pathlib import Path

from schemas.errors import Invalid
from services.runtime.config.stages import WorkerConfig
from services.tokenization.model_files import ModelFacts, read_facts
from services.tokenization.tokenizer_files import load_backend
from services.worker.engines.remote.dialect import Dialect, ServerFacts
from services.worker.engines.remote.http import HttpRefusal, ServerHttp

SAMPLE = (
    'def f(x): return {"naïve": [1, 22, 333]}  # 漢字 🙂 здравствуйте\n\n\tThe tokens\'re ours.'
)
MODEL_MATCH = "model_match"
"""Lacking where the server may have another model of the same family, with the same tokenizer."""
_NO_SUCH_PATH = frozenset((404, 405, 501))
_HUB_ID = re.compile(r"\w[\w.-]*/([\w.-]+)")


async def check_model(
    http: ServerHttp, dialect: Dialect, server: ServerFacts, config: WorkerConfig
) -> dict[str, str]:
    """Compares the tokenizers, except with a server that has none. Returns the reason for
    `MODEL_MATCH` as in `ServerFacts.lacking`; empty: nothing suggests another model.

    Raises Invalid if the server's tokenizer makes other ids than the model directory's, Unreachable
    if the server does not answer, HttpRefusal if it does not encode a text now.
    """
    theirs = await _tokenize(http, dialect, server)
    if theirs is not None and theirs != await asyncio.to_thread(_encode, config):
        raise Invalid(
            f"{http.url} serves another model than {config.model}: the tokenizer of "
            f"{server.root or server.model} makes other tokens of a text",
            param="engine_url",
        )
    facts = await asyncio.to_thread(read_facts, config.model)
    reason = compare_names(server.root, config.model) or _compare_windows(server, facts)
    return {} if reason is None else {MODEL_MATCH: reason}


async def _tokenize(http: ServerHttp, dialect: Dialect, server: ServerFacts) -> list[int] | None:
    """The server's ids of the sample; None: it does not encode texts."""
    try:
        return await dialect.tokenize(http, server, SAMPLE)
    except HttpRefusal as refusal:
        if refusal.status in _NO_SUCH_PATH:
            return None
        raise


def _encode(config: WorkerConfig) -> list[int]:
    tokenizer = load_backend(config.model, trust_remote_code=config.trust_remote_code)
    ids: list[int] = tokenizer.encode(SAMPLE, add_special_tokens=False).ids
    return ids


def compare_names(root: str, model: str) -> str | None:
    """Why the names of two models of the hub differ clearly; None: they do not, or one is a
    directory. A name that begins with the other is taken for a quantization."""
    found = _HUB_ID.fullmatch(root), _HUB_ID.fullmatch(model)
    if found[0] is None or found[1] is None or Path(model).exists():
        return None
    theirs, ours = (match[1].casefold() for match in found if match is not None)
    if theirs.startswith(ours) or ours.startswith(theirs):
        return None
    return f"the inference server has loaded {root}, and --model is {model}"


def _compare_windows(server: ServerFacts, facts: ModelFacts) -> str | None:
    window = facts.window
    if window is None or server.max_model_len is None or server.max_model_len <= window:
        return None
    return (
        f"the inference server's context window of {server.max_model_len} tokens is larger than "
        f"the {window} of --model"
    )
