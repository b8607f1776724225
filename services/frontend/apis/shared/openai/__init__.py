"""Renders chunks and error texts for several of OpenAI's APIs."""
