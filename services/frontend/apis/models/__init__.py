"""Serves lists of the models, for the SDKs of every API and for Codex."""
