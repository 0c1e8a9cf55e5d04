"""What does the V2 protocol mean, whatever carries it?"""
