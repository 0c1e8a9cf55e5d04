"""Which types may hold the bytes of a message?"""

Buffer = bytes | bytearray | memoryview
