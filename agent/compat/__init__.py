"""What looks like torch: its options, its multiprocessing interface, its file timers."""
