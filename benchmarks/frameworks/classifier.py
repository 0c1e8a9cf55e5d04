"""A text classifier of scikit-learn, the same in each framework: is a review good or bad?"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any

GOOD = ("great", "lovely", "works well", "a joy", "fast", "never failed me", "worth it", "superb")
BAD = ("awful", "broke", "a waste", "slow", "failed twice", "not worth it", "poor", "dreadful")
THINGS = ("the film", "this kettle", "my phone", "the hotel", "their service", "the book", "it all")


@cache
def model() -> Any:
    """Trained here, in a second, from sentences of a few words."""
    from sklearn.feature_extraction.text import TfidfVectorizer
    from sklearn.linear_model import LogisticRegression
    from sklearn.pipeline import make_pipeline

    texts, labels = [], []
    for label, words in (("good", GOOD), ("bad", BAD)):
        for word in words:
            for other in words:
                texts += [f"{thing} was {word}, and {other}" for thing in THINGS]
                labels += [label] * len(THINGS)
    found = make_pipeline(
        TfidfVectorizer(ngram_range=(1, 2)), LogisticRegression(max_iter=500, random_state=0)
    )
    return found.fit(texts, labels)


def classified(texts: Sequence[str]) -> list[str]:
    return [str(label) for label in model().predict(texts)]
