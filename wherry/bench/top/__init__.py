"""What does a server do now? `wherry top`."""
