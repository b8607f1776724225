"""Chunks and error texts of OpenAI's APIs."""
