"""What is in a body that is not tensors: which media type has it, and which values by name?"""
