"""Which of several coordinators leads, and what they share."""
