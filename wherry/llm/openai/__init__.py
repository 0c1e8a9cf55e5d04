"""How do OpenAI's requests become requests of models, and their responses OpenAI's answers?"""
