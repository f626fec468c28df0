"""What the time of a run went into, found out in another way than the product does."""
