"""What does a browser show at `/`, and which numbers does it get?"""
