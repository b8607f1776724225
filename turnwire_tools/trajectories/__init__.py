"""turnwire trajectories: sessions as training samples of token ids (docs/trajectories.md)."""
