"""Caches with a bound, for all services."""
