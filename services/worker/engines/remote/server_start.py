"""Finds the inference server of an engine, and its properties."""

import asyncio

from schemas.errors import EngineFailed, Invalid
from services.runtime.config.base import read_key
from services.runtime.config.stages import WorkerConfig
from services.tokenization.model_files import ModelFacts
from services.worker.engine import EngineInfo
from services.worker.engines.remote.dialect import Dialect, ServerFacts
from services.worker.engines.remote.http import HttpRefusal, ServerHttp, Unreachable, Untrusted
from services.worker.engines.remote.model_check import check_model
from services.worker.features import FEATURES

START_S = 60.0
"""How long a start waits for a server that does not answer yet."""
RETRY_S = 0.5
_LOADING = frozenset((502, 503, 504))
"""Statuses of a server that is starting, or of a proxy before it."""
_LONGEST_WINDOW = 1 << 20
"""Context window of a model and a server that name none."""


def open_http(config: WorkerConfig) -> ServerHttp:
    """Opens the client of the configured server. Raises Invalid if there is not exactly one."""
    if len(config.engine_urls) != 1:
        raise Invalid("name one inference server with --engine-url", param="engine_url")
    file = config.engine_api_key_file
    return ServerHttp(config.engine_urls[0], None if file is None else read_key(file))


async def examine_server(dialect: Dialect, config: WorkerConfig) -> ServerFacts:
    """Asks the server once, without decoding. Raises TurnwireError if it does not answer, has no
    token interface or another model."""
    http = open_http(config)
    try:
        server = await dialect.describe(http)
        await check_model(http, dialect, server, config)
        return server
    except (HttpRefusal, Unreachable) as error:
        raise start_failure(http, error) from error
    finally:
        await http.close()


async def wait_for_server(http: ServerHttp, dialect: Dialect) -> ServerFacts:
    """Waits until the server answers. Raises Unreachable, HttpRefusal, Invalid."""
    end = asyncio.get_running_loop().time() + START_S
    while True:
        try:
            return await dialect.describe(http)
        except Untrusted:
            raise
        except (Unreachable, HttpRefusal) as error:
            loads = isinstance(error, Unreachable) or error.status in _LOADING
            if not loads or asyncio.get_running_loop().time() > end:
                raise
        await asyncio.sleep(RETRY_S)


def engine_info(
    dialect: Dialect, server: ServerFacts, model: ModelFacts, config: WorkerConfig
) -> EngineInfo:
    """Returns the properties of an engine over the server."""
    limits = (server.max_model_len, config.max_model_len, model.window)
    window = min(filter(None, limits), default=_LONGEST_WINDOW)
    return EngineInfo(
        name=dialect.name,
        version=server.version,
        max_model_len=window,
        slots=server.slots or config.slots,
        block_tokens=server.block_tokens if "prefix_cache" not in server.lacking else None,
        kv_tokens=server.kv_tokens,
        eos_ids=model.eos_ids,
        features=FEATURES - server.lacking.keys(),
        vocab_size=model.vocab_size,
        lacking=server.lacking,
        shares_queued=dialect.shares_queued,
        recomputed_blocks=server.recomputed_blocks,
    )


def start_failure(http: ServerHttp, error: HttpRefusal | Unreachable) -> EngineFailed:
    """Makes the error of an engine that cannot start."""
    if isinstance(error, Unreachable):
        return EngineFailed(f"no inference server answers at {http.url}: {error}")
    if error.status == 401:
        return EngineFailed(f"{http.url} wants another key (--engine-api-key-file): {error}")
    return EngineFailed(f"{http.url} is another kind of server, or refuses to serve: {error}")
