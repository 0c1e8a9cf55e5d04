"""What does a model repository on disk hold? Pure values and files: nothing here loads a model."""
