"""What a world is made of: the coordinator, hosts, and the network between them."""
