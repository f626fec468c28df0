"""What is durable, and how it becomes so."""
