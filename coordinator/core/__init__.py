"""Pure decisions of the coordinator, about all runs it holds."""
