"""Where workers stand, which of them lag, and the limits learned from that."""
