"""Who calls the coordinator, and what they may do: tokens, certificates, roles."""
