"""Runs the whole pipeline on one machine."""
