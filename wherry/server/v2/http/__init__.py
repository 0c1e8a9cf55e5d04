"""The V2 protocol over HTTP."""
