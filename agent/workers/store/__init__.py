"""The store of a round: what torch's ``TCPStore`` clients find at MASTER_ADDR and MASTER_PORT."""
