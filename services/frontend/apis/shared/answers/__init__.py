"""Answers of several APIs: rendering a turn, and making a document of a stream. Pure."""
