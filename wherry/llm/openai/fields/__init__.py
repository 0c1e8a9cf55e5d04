"""What may stand in a request to each of OpenAI's routes?"""
