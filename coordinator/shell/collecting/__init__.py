"""What agents are asked for on behalf of readers: stacks and output of workers."""
