"""Rollouts: runs of an agent as the policy of a training, and the samples that they give
(docs/rollouts.md). Pure."""
