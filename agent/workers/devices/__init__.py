"""What an agent knows of its host's GPUs and CPUs, and what it makes of that."""
