"""The GPUs and CPUs of a host, and how workers are bound to them."""
