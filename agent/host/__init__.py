"""What the agent has on its host: a private directory, a thread for files, cgroups, memory."""
