"""Protobuf messages, checked, to the coordinator's values and back."""
