"""How do OpenAI's chat, completions, embeddings and models become requests, and back?"""
