"""How good are the turns of models on a device on which not all of them fit? Simulated."""
