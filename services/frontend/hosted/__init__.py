"""Runs hosted tools: web search and fetch through an operator's provider, and searches of tools."""
