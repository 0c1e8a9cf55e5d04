"""The V2 protocol over gRPC: codec, application, transport, each apart."""
