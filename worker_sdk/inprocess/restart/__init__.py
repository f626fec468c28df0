"""One call of a wrapped function: its iterations, and how the main thread leaves them."""
