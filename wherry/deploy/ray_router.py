"""Which replica does Ray Serve send a request to?

The one that would answer first. For handles, and for Ray Serve's proxies in Python: its HAProxy
chooses by itself.
"""

from __future__ import annotations

from random import random

from ray.serve.request_router import (
    FIFOMixin,
    MultiplexMixin,
    PendingRequest,
    RequestRouter,
    RunningReplica,
)

from wherry.deploy.on_load import answer_seconds


class FirstAnswer(FIFOMixin, MultiplexMixin, RequestRouter):  # type: ignore[misc] # Ray's have no types
    """Ranks replicas by the wait that they last reported and the requests sent to them since."""

    async def choose_replicas(
        self,
        candidate_replicas: list[RunningReplica],
        pending_request: PendingRequest | None = None,
    ) -> list[list[RunningReplica]]:
        """Each replica alone in its rank: the next one is tried if it has no room. Of those that
        have the request's multiplexed model, if it names one and some have it."""
        if pending_request is not None and pending_request.metadata.multiplexed_model_id:
            ids = self.apply_multiplex_routing(pending_request=pending_request)
            candidate_replicas = [self.curr_replicas[one] for one in ids]
        return [[one] for one in sorted(candidate_replicas, key=self._order)]

    def _order(self, replica: RunningReplica) -> tuple[float, int, float]:
        requests = self.replica_queue_len_cache.get(replica.replica_id) or 0
        return answer_seconds(replica.routing_stats, requests), requests, random()
