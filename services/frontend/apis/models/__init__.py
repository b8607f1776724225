"""Lists of served models, for the SDKs of every API and for Codex."""
