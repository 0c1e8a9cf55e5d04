"""FastAPI, as its tutorial has it: a function in a pool of threads, a row at a time."""

from fastapi import FastAPI
from pydantic import BaseModel

from benchmarks.frameworks.classifier import classified, model

app = FastAPI()
model()


class Review(BaseModel):
    text: str


@app.post("/predict")
def predict(review: Review) -> dict[str, str]:
    return {"label": classified([review.text])[0]}
