"""Messages of the protocol as values, and values as messages."""
