"""Caches the parts that the requests of a session repeat, so that they are read, checked and encoded once."""
