"""Engines that decode through the token interface of a server that already runs."""
