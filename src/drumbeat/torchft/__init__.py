"""The part of torchft's protocol that the agent of a replica group serves to its workers."""
