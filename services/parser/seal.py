"""`services.runtime.seal`, by the name under which the stages of the parser know it."""

from services.runtime.seal import MAX_TEXT_BYTES, VERSION, Sealer, secret

__all__ = ["MAX_TEXT_BYTES", "VERSION", "Sealer", "secret"]
