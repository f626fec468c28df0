"""What the coordinator costs with many agents."""
