"""torchft's lighthouse for the workers of a replica group, carried to the coordinator."""
