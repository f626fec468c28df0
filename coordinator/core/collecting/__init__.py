"""What the core asks agents for, and gathers: stacks and output."""
