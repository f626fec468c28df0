"""Shell. Finds workers that hang: timers, heartbeats, and signs of life."""
