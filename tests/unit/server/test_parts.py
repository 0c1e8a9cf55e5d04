"""How much may clients have a server hold, on this machine?"""

import pytest

from wherry.core.observability.machine import Machine
from wherry.server.connections.limits import Limits, memory_plan
from wherry.server.options import Options, Protocols
from wherry.server.parts import applications
from wherry.server.server import Server
from wherry.testing import GatedModel


def test_limits_that_need_more_memory_than_there_is_are_told_at_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    Server(GatedModel, limits=Limits(max_received_bytes=2**60))
    (record,) = caplog.records
    assert record.message == "a full server would need more memory than there is"
    assert vars(record)["needed_bytes"] > 2**60
    caplog.clear()
    Server(GatedModel)
    assert not caplog.records


def test_default_limits_follow_from_the_memory_of_the_machine() -> None:
    plan = memory_plan(Machine().memory_limit_bytes())
    server = Server(GatedModel)
    assert server.limits == plan.limits
    made = applications(server.control, Options(), plan)
    assert made.common.admission.large.limit == plan.max_queue_bytes
    assert made.common.offload.max_bytes == plan.max_offloaded_bytes


@pytest.mark.parametrize(("said", "name"), [(None, "wherry"), ("mine", "mine")])
def test_the_server_has_the_name_that_the_operator_gives_it(said: str | None, name: str) -> None:
    plan = memory_plan(Machine().memory_limit_bytes())
    options = Options(protocols=Protocols(server_name=said))
    assert applications(Server(GatedModel).control, options, plan).common.name == name
