"""What does this machine's GPU give, and does wherry give it on? `make gpu`."""
