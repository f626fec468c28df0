"""How much memory the workers of this host use, and how much they may use."""
