"""Hosted tools: web search and fetch, run by the frontend through an operator's provider."""
