"""Which loaded model is meant, and how is it called and changed?"""
