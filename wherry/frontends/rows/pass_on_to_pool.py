"""How does a front with several owners answer a request that is not for a model?

What describes models it knows itself. Of the rest: what asks goes to one owner after the other,
until one answers well; what counts goes to all, and is merged; what changes something goes to all,
and the first failure is the answer.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final, Protocol

import msgspec

from wherry.frontends.dashboard.paths import EVENTS, NUMBERS, replica_of
from wherry.frontends.http.exchange import Exchange
from wherry.frontends.http.route import Handler, Route
from wherry.frontends.rows.merged import merged_metrics, merged_statistics, pool_metrics
from wherry.frontends.rows.pass_on import PassOn
from wherry.frontends.rows.to_owner import ask_of, no_owner
from wherry.remote.link import OwnerLink
from wherry.remote.members import ReplicaStatus
from wherry.remote.messages import Told
from wherry.runtime.runtime import Runtime
from wherry.values.errors import InvalidRequest

#: Seconds that an owner has to answer a question.
ANSWER: Final = 1.0

#: Paths of which the front knows the answer for all owners.
_OWN_PATHS: Final = frozenset(("/v2/repository/index", "/"))


class Pool(Protocol):
    """The owners of a front. In its loop."""

    def links(self) -> Sequence[OwnerLink]:
        """Those that can be asked, the ready ones first."""

    def choose(self) -> OwnerLink | None: ...
    def replicas(self) -> Sequence[ReplicaStatus]: ...


@dataclass(slots=True)
class OwnerAnswer:
    """The whole answer of one owner."""

    status: int = 0
    content_type: str = ""
    headers: Sequence[tuple[str, str]] = ()
    body: bytearray = field(default_factory=bytearray)

    @property
    def is_good(self) -> bool:
        return 200 <= self.status < 400


class PassOnToPool(PassOn):
    """Passes requests on to the owners of a pool."""

    knows_health = True

    def __init__(self, pool: Pool, runtime: Runtime) -> None:
        super().__init__(pool.choose)
        self._pool = pool
        self._runtime = runtime

    def route(self, path: str, route: Route) -> Route:
        group = route.group
        if path in (NUMBERS, EVENTS):
            passes = self._pass_to if path == NUMBERS else self._pass_events_to
            own = route.handlers["GET"]
            return Route({"GET": partial(self._of_one, own, passes)}, group, route.open)
        is_own = group in ("inference", "health") or path in _OWN_PATHS
        if is_own or (group == "metadata" and path != "/v2"):
            return route
        handlers = {method: self._handler(path, group, method) for method in route.handlers}
        return Route(handlers, group, route.open)

    def replicas(self) -> Sequence[ReplicaStatus]:
        return self._pool.replicas()

    def _handler(self, path: str, group: str, method: str) -> Handler:
        if group == "metrics":
            return self._metrics
        if group == "statistics":
            return self._explain if path.endswith("/batching") else self._statistics
        return self._first if method == "GET" else self._change

    # Handlers

    def _of_one(
        self, own: Handler, passes: Callable[[OwnerLink, Exchange], None], exchange: Exchange
    ) -> None:
        """Have the owner answer that the query names, or the front itself."""
        replica = replica_of(exchange.request.query)
        if not replica:
            own(exchange)
            return
        link = next((one for one in self._pool.links() if one.name == replica), None)
        if link is None:
            known = ", ".join(one.name for one in self._pool.links()) or "none"
            raise InvalidRequest(f"replica {replica[:200]!r} is not connected; known are: {known}")
        passes(link, exchange)

    def _pass_events_to(self, link: OwnerLink, exchange: Exchange) -> None:
        self._events(exchange, link)

    def _first(self, exchange: Exchange, then: Callable[[OwnerAnswer], None] | None = None) -> None:
        """Answer as the first owner does that answers well."""
        waiting, failed = list(self._pool.links()), list[OwnerAnswer]()

        def next_one(told: OwnerAnswer | None = None) -> None:
            if told is not None and told.is_good:
                (then or partial(_respond, exchange))(told)
                return
            if told is not None:
                failed.append(told)
            if waiting:
                self._ask(waiting.pop(0), exchange, ANSWER, next_one)
            else:
                _fail(exchange, failed)

        next_one()

    def _statistics(self, exchange: Exchange) -> None:
        def done(answers: Mapping[str, OwnerAnswer | None]) -> None:
            good = [one for one in answers.values() if one is not None and one.is_good]
            if good:
                good[0].body = bytearray(merged_statistics([bytes(one.body) for one in good]))
                _respond(exchange, good[0])
            else:
                _fail(exchange, [one for one in answers.values() if one is not None])

        self._ask_all(exchange, ANSWER, done)

    def _metrics(self, exchange: Exchange) -> None:
        def done(answers: Mapping[str, OwnerAnswer | None]) -> None:
            good = {name: one for name, one in answers.items() if one is not None and one.is_good}
            texts = {name: one.body.decode() for name, one in good.items()}
            content_type = next((one.content_type for one in good.values()), "text/plain")
            ours = pool_metrics(self._pool.replicas(), self._waits())
            openmetrics = content_type.startswith("application/openmetrics-text")
            body = ours + merged_metrics(texts, openmetrics=openmetrics)
            exchange.respond(200, body.encode(), content_type=content_type)

        self._ask_all(exchange, ANSWER, done)

    def _explain(self, exchange: Exchange) -> None:
        """Answer as an owner does that has the model, and tell of the pool."""
        model = exchange.request.head.path.split("/")[3]

        def then(told: OwnerAnswer) -> None:
            about = {one.address: one for one in self._pool.replicas()}
            owners = self._waits().get(model, ())
            replicas = [
                {"name": one.name, "version": one.version, "device": one.device, **owner}
                for owner in owners
                if (one := about.get(owner["replica"])) is not None
            ]
            answer = {**msgspec.json.decode(told.body), "replicas": replicas}
            told.body = bytearray(msgspec.json.encode(answer))
            _respond(exchange, told)

        self._first(exchange, then)

    def _change(self, exchange: Exchange) -> None:
        """Have all owners do it, which may take its time."""

        def done(answers: Mapping[str, OwnerAnswer | None]) -> None:
            told = [one for one in answers.values() if one is not None]
            bad = [one for one in told if not one.is_good]
            if bad or len(told) < len(answers) or not told:
                _fail(exchange, bad)
            else:
                _respond(exchange, told[0])

        self._ask_all(exchange, None, done)

    def _waits(self) -> Mapping[str, Sequence[Mapping[str, Any]]]:
        """The owners of each model, as `Router.explain` tells them."""
        models = self._runtime.models()
        return {one.name: one.runner.explain().get("replicas", ()) for one in models}

    # Asking

    def _ask_all(
        self,
        exchange: Exchange,
        timeout: float | None,
        done: Callable[[Mapping[str, OwnerAnswer | None]], None],
    ) -> None:
        """Call `done` with the answer of each owner by its address; None: it did not answer."""
        links = list(self._pool.links())
        answers: dict[str, OwnerAnswer | None] = {}

        def told(link: OwnerLink, whole: OwnerAnswer | None) -> None:
            answers[link.name] = whole
            if len(answers) == len(links):
                done({one.name: answers[one.name] for one in links})

        for link in links:
            self._ask(link, exchange, timeout, partial(told, link))
        if not links:
            done({})

    def _ask(
        self,
        link: OwnerLink,
        exchange: Exchange,
        timeout: float | None,
        done: Callable[[OwnerAnswer | None], None],
    ) -> None:
        """Call `done` once, with the whole answer of one owner."""
        whole, ended = OwnerAnswer(), False

        def told(part: Told | None) -> None:
            nonlocal ended
            if ended:
                return
            if part is None:
                ended = True
                done(None)
                return
            if not whole.status:
                whole.status, whole.content_type = part.status, part.content_type
                whole.headers = part.headers
            whole.body += part.body
            if part.ends:
                ended = True
                done(whole)

        def too_late() -> None:
            link.forget(number)
            told(None)

        number = link.ask(partial(ask_of, exchange), told, len(exchange.request.body))
        if timeout is not None and not ended:
            asyncio.get_running_loop().call_later(timeout, too_late)


def _respond(exchange: Exchange, whole: OwnerAnswer) -> None:
    exchange.respond(
        whole.status, bytes(whole.body), content_type=whole.content_type, headers=whole.headers
    )


def _fail(exchange: Exchange, failed: Sequence[OwnerAnswer]) -> None:
    """Answer with the first failure; without one there is no owner."""
    if failed:
        _respond(exchange, failed[0])
    else:
        no_owner(exchange)
