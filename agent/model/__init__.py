"""Values that the agent's core and its shells share."""
