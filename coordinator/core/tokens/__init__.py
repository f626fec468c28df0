"""Which tokens exist, whom they let in, and when they end."""
