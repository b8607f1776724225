"""What aiohttp's server has to say of a connection. Whoever reaches the port can send what is no HTTP: that is one line
each time, not a traceback at level `error`.
"""

import logging
from typing import Any

from aiohttp.http_exceptions import HttpProcessingError


class HttpLog(logging.LoggerAdapter[logging.Logger]):
    """A logger for `web.AppRunner`."""

    def __init__(self) -> None:
        super().__init__(logging.getLogger("aiohttp.server"))

    def exception(self, msg: object, *args: object, exc_info: Any = True, **options: Any) -> None:
        """As `Logger.exception`; where the exception is the client's broken HTTP, at level `info` and without trace."""
        if isinstance(exc_info, HttpProcessingError):
            reason = " ".join(exc_info.message.split())[:200]
            self.info("malformed HTTP from %s: %s", args[0] if args else "?", reason)
        else:
            super().exception(msg, *args, exc_info=exc_info, **options)
