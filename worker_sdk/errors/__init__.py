"""How a worker records the error that ends it."""
