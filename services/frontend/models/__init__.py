"""The models that a frontend serves, as the other stages describe them."""
