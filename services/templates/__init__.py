"""Adapts conversations to chat templates and renders them. Pure."""
