"""Who may speak to a coordinator, and how each side knows the other: what both sides share."""
