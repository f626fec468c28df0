"""The output of workers: its files, pipes and consoles."""
