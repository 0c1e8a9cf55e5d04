"""The V2 protocol over gRPC."""
