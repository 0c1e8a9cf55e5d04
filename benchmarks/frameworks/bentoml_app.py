"""BentoML: a batchable function of up to 64 rows, which finds its waits by itself."""

import bentoml

from benchmarks.frameworks.classifier import classified, model


@bentoml.service(workers=1)
class Batched:
    def __init__(self) -> None:
        model()

    @bentoml.api(batchable=True, max_batch_size=64)
    def predict(self, texts: list[str]) -> list[str]:
        return classified(texts)


@bentoml.service(workers=1)
class Reviews:
    batched = bentoml.depends(Batched)

    @bentoml.api
    async def predict(self, text: str) -> dict[str, str]:
        (label,) = await self.batched.to_async.predict([text])
        return {"label": label}
