"""The process around the core: gRPC, queues and the loop that owns it."""
