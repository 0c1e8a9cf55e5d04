"""Engines of language models beside each other: the same requests over HTTP, in turns."""
