"""Simulates large deployments: routing, heartbeats and frames of 100,000 streams, with the code of
the services."""
