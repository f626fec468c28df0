"""The coordinator: decides rendezvous, ranks, restarts and the exit barrier, and pushes them."""
