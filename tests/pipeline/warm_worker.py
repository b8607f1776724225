"""A worker whose scripts have another output at the temperature of a second try: what follows
`[[warm]]`. `python -m tests.pipeline.warm_worker worker FLAGS`."""

import sys

from services.cli.serve import serve
from services.preprocessor.output_settings import SECOND_TEMPERATURE
from services.worker.engine import EngineRequest
from turnwire_tools.script import player
from turnwire_tools.script.output_source import OutputSource

_script_for = OutputSource._script_for


def _warm_script_for(
    source: OutputSource, prompt: str, request: EngineRequest, seen: str
) -> player.Script:
    text = source._output_in_request(prompt)
    if text is None:
        return _script_for(source, prompt, request, seen)
    cold, _, warm = text.partition("[[warm]]")
    is_warm = bool(warm) and request.sampling.temperature == SECOND_TEMPERATURE
    return player.parse_inline(warm if is_warm else cold)


if __name__ == "__main__":
    OutputSource._script_for = _warm_script_for  # type: ignore[assignment,method-assign]
    sys.exit(serve(sys.argv[1:]))
