"""The process of an agent: its loop, its signals and its files."""
