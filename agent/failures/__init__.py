"""How a worker failed, collected, explained and reported."""
