"""The program `turnwire`, which starts, connects and checks the four services. It may import all
packages but the tools."""
