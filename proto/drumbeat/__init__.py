"""The drumbeat wire protocol: protobuf messages and gRPC stubs, generated from the files beside it."""
