"""Fixtures of the gateway's tests."""

from tests.kit.gateway import stage

__all__ = ["stage"]
