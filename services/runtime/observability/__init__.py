"""Logs, metrics, traces and memory settings of one process."""
