"""Metrics of its own, and lines in the log."""

import logging

import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    @staticmethod
    def auto_complete_config(config):
        config.add_input({"name": "X", "data_type": "TYPE_FP32", "dims": [1]})
        config.add_output({"name": "COUNT", "data_type": "TYPE_FP32", "dims": [1]})
        return config

    def initialize(self, args):
        counters = pb_utils.MetricFamily(
            name="seen_requests", description="What was seen", kind=pb_utils.MetricFamily.COUNTER
        )
        gauges = pb_utils.MetricFamily(
            name="last_value", description="The last value", kind=pb_utils.MetricFamily.GAUGE
        )
        histograms = pb_utils.MetricFamily(
            name="values", description="All values", kind=pb_utils.MetricFamily.HISTOGRAM
        )
        self.families = [counters, gauges, histograms]  # they must live as long as their metrics
        self.seen = counters.Metric(labels={"model": args["model_name"], "way": "in"})
        self.last = gauges.Metric(labels={})
        self.values = histograms.Metric(labels={}, buckets=[1.0, 10.0])

    def execute(self, requests):
        import numpy as np

        responses = []
        for request in requests:
            x = float(request.inputs()[0].as_numpy()[0])
            self.seen.increment(1)
            self.last.set(x)
            self.values.observe(x)
            pb_utils.Logger.log_warn(f"seen {x}")
            logging.getLogger("its.own").warning("also seen %s", x)
            count = np.array([self.seen.value()], np.float32)
            responses.append(pb_utils.InferenceResponse([pb_utils.Tensor("COUNT", count)]))
        return responses
