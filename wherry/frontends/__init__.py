"""How do requests come in from outside? One folder for each protocol."""
