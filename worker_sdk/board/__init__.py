"""The page of memory that a worker shares with its agent."""
