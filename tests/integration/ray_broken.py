"""A model that cannot be loaded, for the Ray tests."""

import wherry


class Broken(wherry.Model):
    def load(self, device: wherry.Device) -> None:
        raise OSError("no weights")

    def execute(self, text: list[str]) -> list[str]:
        return text
