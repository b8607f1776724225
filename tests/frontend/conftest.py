"""Settings of the frontend's tests."""

from tests.kit.strict_states import strict_states

__all__ = ["strict_states"]
