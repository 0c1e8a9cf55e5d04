"""A model that waits at the test's gate while it loads."""

import wherry
from tests.integration.life_models import pass_gate


class Heavy(wherry.Model):
    def load(self, device: wherry.Device) -> None:
        pass_gate()

    def execute(self, text: list[str]) -> list[str]:
        return text
