"""Fixtures of the preprocessor's tests."""

from tests.kit.clock import loop_clock

__all__ = ["loop_clock"]
