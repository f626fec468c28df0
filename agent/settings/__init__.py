"""What an agent can be told, and its command line."""
