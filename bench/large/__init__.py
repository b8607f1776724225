"""What a large deployment costs: routing, heartbeats and frames of 100,000 streams, by the code that routes them."""
