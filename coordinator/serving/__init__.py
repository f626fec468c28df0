"""``coordinator serve``: on its own, or in a cluster."""
