"""How do Anthropic's clients use a model that chats?"""
