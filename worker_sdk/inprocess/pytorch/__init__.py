"""What a restart does to torch, where the program has imported it."""
