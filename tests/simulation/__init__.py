"""A whole cluster in virtual time: the real cores, a simulated network and simulated processes."""
