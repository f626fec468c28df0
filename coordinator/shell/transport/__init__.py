"""What is between gRPC and the services: bounds, the way in, who serves a call."""
