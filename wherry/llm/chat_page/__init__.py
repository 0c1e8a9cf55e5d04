"""What does a browser show at `/chat`?"""
