"""`turnwire`: start, watch and check the four services. The top layer: it may import everything."""
