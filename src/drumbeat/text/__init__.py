"""Text as users write and read it: addresses, durations, lines, and what a value breaks."""
