"""Which of these words fits a photo? CLIP, which no label was trained into (from a hub).

wherry serve app.py
curl 127.0.0.1:8000/classify -F photo=@photo.jpg -F 'labels=["a cat", "a dog", "a bridge"]'
"""

import os

import torch
from transformers import CLIPModel, CLIPProcessor

import wherry

CHECKPOINT = os.environ.get("CLIP", "openai/clip-vit-base-patch32")  # a hub's name, or a folder


class Classify(wherry.Model):
    route = "/classify"
    max_batch_size = 16

    def load(self, device: wherry.Device) -> None:
        self.network = CLIPModel.from_pretrained(CHECKPOINT).eval().to(str(device))
        self.processor = CLIPProcessor.from_pretrained(CHECKPOINT)

    @torch.inference_mode()
    def execute(self, photo: list[wherry.Image], labels: list[list[str]]) -> list[dict[str, float]]:
        words = sorted({word for row in labels for word in row})  # of all callers, each once
        inputs = self.processor(text=words, images=photo, return_tensors="pt", padding=True)
        scores = self.network(**inputs.to(self.network.device)).logits_per_image
        found = []
        for row, names in zip(scores, labels, strict=True):
            shares = row[[words.index(name) for name in names]].softmax(0)
            found.append(dict(zip(names, shares.round(decimals=3).tolist(), strict=True)))
        return found


classify = Classify()
