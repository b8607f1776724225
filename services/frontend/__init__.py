"""HTTP: requests of three APIs in, streams and documents out. Knows no template, token or model family."""
