"""What operators see of runs: read over the query service, as documents, then as JSON or text."""
