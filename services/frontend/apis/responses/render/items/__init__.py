"""Renders the output items of a Response, each kind in a module of its own."""
