"""The HTTP port: the page, what it reads, metrics."""
