"""How far will a disease go in a year? Rows of a table, answered by gradient-boosted trees.

wherry serve app.py
curl 127.0.0.1:8000/predict -d '{"age": 59, "bmi": 32.1, "blood_pressure": 101,
    "triglycerides": 4.86, "glucose": 87}'
"""

from dataclasses import astuple, dataclass
from typing import TypedDict

import numpy as np
import xgboost
from sklearn.datasets import load_diabetes

import wherry

COLUMNS = {"age": 0, "bmi": 2, "blood_pressure": 3, "triglycerides": 8, "glucose": 9}


@dataclass
class Patient:
    age: float
    bmi: float
    blood_pressure: float
    triglycerides: float  # logarithm
    glucose: float


class Forecast(TypedDict):
    progression: float  # 25 to 346 in the data
    because: dict[str, float]  # what each column adds to the mean, or takes from it


class Predict(wherry.Model):
    """XGBoost, trained here on scikit-learn's 442 patients; yours comes from a file."""

    route = "/predict"
    max_batch_size = 256
    examples = ({"patient": Patient(59, 32.1, 101, 4.86, 87)},)

    def load(self, device: wherry.Device) -> None:
        data = load_diabetes(scaled=False)
        table = data.data[:, list(COLUMNS.values())]
        options = {"max_depth": 3, "eta": 0.1, "nthread": 1, "seed": 1}
        self.trees = xgboost.train(options, xgboost.DMatrix(table, data.target), 60)

    def execute(self, patient: list[Patient]) -> list[Forecast]:
        table = np.array([astuple(one) for one in patient], np.float32)
        shares = self.trees.predict(xgboost.DMatrix(table), pred_contribs=True)
        return [
            {
                "progression": round(float(row.sum()), 1),
                "because": {
                    column: round(float(share), 1)
                    for column, share in zip(COLUMNS, row[:-1], strict=True)
                },
            }
            for row in shares
        ]


predict = Predict()
