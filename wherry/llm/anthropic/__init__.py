"""How do Anthropic's clients talk to a model that chats?"""
