"""One run: its durable state, its rules and what it wants of each agent."""
