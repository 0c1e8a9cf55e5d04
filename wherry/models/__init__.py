"""What does a user write, and what can be set?"""
