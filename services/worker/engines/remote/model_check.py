"""Compares the server's model with the directory that the preprocessor reads.

Prompts are ids, which mean something else to another model: the server would answer them without an
error. So both tokenizers encode one text before the engine serves.
"""

import asyncio

from schemas.errors import Invalid
from services.runtime.config import WorkerConfig
from services.tokenization.tokenizer_files import load_backend
from services.worker.engines.remote.dialect import Dialect, ServerFacts
from services.worker.engines.remote.http import Refused, ServerHttp

SAMPLE = (
    'def f(x): return {"naïve": [1, 22, 333]}  # 漢字 🙂 здравствуйте\n\n\tThe tokens\'re ours.'
)


async def check_model(
    http: ServerHttp, dialect: Dialect, server: ServerFacts, config: WorkerConfig
) -> None:
    """Raises Invalid if the server's tokenizer makes other ids than the model directory's,
    Unreachable if the server does not answer. A server without a tokenizer cannot be compared."""
    try:
        theirs = await dialect.tokenize(http, server, SAMPLE)
    except Refused:
        return
    tokenizer = await asyncio.to_thread(
        load_backend, config.model, trust_remote_code=config.trust_remote_code
    )
    ours = tokenizer.encode(SAMPLE, add_special_tokens=False).ids
    if theirs != ours:
        raise Invalid(
            f"{http.url} serves another model than {config.model}: the tokenizer of "
            f"{server.root or server.model} makes other tokens of a text",
            param="engine_url",
        )
