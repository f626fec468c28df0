"""What happens on one machine: workers, their output and their timers."""
