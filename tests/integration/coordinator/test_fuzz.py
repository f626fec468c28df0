"""What no client sends, on every call and as bytes, while a run goes on.

``DRUMBEAT_FUZZ_S`` says for how long, ``DRUMBEAT_FUZZ_SEED`` with which seed.
"""

import asyncio
import os
import secrets

import grpc
import pytest

from drumbeat.access.client import Credentials, credentials
from drumbeat.v1 import control_pb2, control_pb2_grpc
from tests.support.channels import AsUser, channel_to
from tests.support.fuzzing import Fuzzer, methods
from tests.support.siege import Siege
from tests.support.wire import DEADLINE_S

LASTING_S = float(os.environ.get("DRUMBEAT_FUZZ_S", "6"))
SEED = int(os.environ.get("DRUMBEAT_FUZZ_SEED", str(secrets.randbits(32))))
# What the coordinator takes for all it may remember of so many runs and calls, however long.
TAKEN_MB = 200
ROLES = {"join": control_pb2.ROLE_JOIN, "view": control_pb2.ROLE_VIEW}


def callers_of(siege: Siege, used: Credentials) -> dict[str, grpc.aio.Metadata]:
    """Return the metadata of calls of each kind of caller."""
    assert used.token is not None, "of the coordinator's user"
    texts = {"admin": used.token.text(), "wrong": f"{used.token.text()[:-1]}x", "garbage": "x" * 99}
    with channel_to(siege.address) as channel:
        stub = control_pb2_grpc.ControlServiceStub(channel)
        for name, role in ROLES.items():
            request = control_pb2.CreateTokenRequest(role=role)
            texts[name] = stub.CreateToken(request, timeout=DEADLINE_S).text
        request = control_pb2.CreateTokenRequest(role=control_pb2.ROLE_JOIN, run_id="fuzzed-1")
        texts["bound"] = stub.CreateToken(request, timeout=DEADLINE_S).text
    found = {
        name: grpc.aio.Metadata(("authorization", f"Bearer {text}")) for name, text in texts.items()
    }
    return {**found, "none": grpc.aio.Metadata()}


def is_allowed(method: str, caller: str) -> bool:
    """Whether this test outlives it: an admin may rotate its tokens and authorities away."""
    return caller != "admin" or "Authority" not in method


@pytest.mark.slow
@pytest.mark.timeout(LASTING_S + 200)
@pytest.mark.parametrize("frontends", ["0", "2"])
async def test_no_message_and_no_bytes_disturb_a_run(frontends: str) -> None:
    print(f"DRUMBEAT_FUZZ_SEED={SEED}")
    with Siege("--frontends", frontends) as siege:
        used = credentials(AsUser(), siege.address)
        callers = await asyncio.to_thread(callers_of, siege, used)
        secret = used.channel
        assert secret is not None, "TLS"

        def channel() -> grpc.aio.Channel:
            options = [*used.options, ("grpc.use_local_subchannel_pool", 1)]
            return grpc.aio.secure_channel(siege.address, secret, options)

        siege.witnessed()
        before = siege.holdings()
        fuzzer = Fuzzer(SEED, siege.door, channel, callers, is_allowed=is_allowed)
        await fuzzer.run(LASTING_S)
        await asyncio.to_thread(siege.check_run)
        siege.check_log()
        assert not fuzzer.faults
        assert {method for method, _ in fuzzer.ends} == {*methods()}
        assert {grpc.StatusCode.OK, grpc.StatusCode.UNAUTHENTICATED} <= {
            status for _, status in fuzzer.ends
        }
        assert fuzzer.connections
        await asyncio.to_thread(siege.wait_for_descriptors, before.descriptors + 2)
        assert siege.holdings().memory_mb < before.memory_mb + TAKEN_MB
