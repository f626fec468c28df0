"""What the SDK asks of the interpreter: signals, stacks, crashes."""
