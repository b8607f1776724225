"""Probes, metrics and the OpenAPI document."""
