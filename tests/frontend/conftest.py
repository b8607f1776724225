"""Settings and fixtures of the frontend's tests."""

from tests.kit.clock import loop_clock
from tests.kit.strict_states import strict_states

__all__ = ["loop_clock", "strict_states"]
