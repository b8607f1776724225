"""The connection to NATS: subscriptions, requests, login."""
