"""The page: who is let in over HTTP, and what is read there, over real TLS."""

import asyncio
import re
import secrets
import socket
import ssl
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp
import grpc
import pytest

from drumbeat.access.token import Role
from drumbeat.coordinator.access.authority import Authority
from drumbeat.coordinator.access.certificate_roles import parse_roles
from drumbeat.coordinator.access.operator_certificate import OperatorCertificate
from drumbeat.coordinator.core.events import TokenRevoked
from drumbeat.coordinator.limits import Limits
from drumbeat.v1 import common_pb2, control_pb2
from tests.support.certificates import CertificateAuthority
from tests.support.pages import Site, Stream, bearer, site
from tests.support.wire import Client, spec


@pytest.fixture
async def served(tmp_path: Path) -> AsyncIterator[Site]:
    async with site(tmp_path) as made:
        yield made


async def test_a_browser_enters_with_the_code_of_a_link_once(served: Site) -> None:
    browser, link = served.browser(), await served.page.local_link()
    assert (await browser.get("/api/me")).status == 401
    told = await browser.enter(link)
    assert (told.status, told.json) == (200, {"name": "hostuser", "role": "admin"})
    shown = told.headers["Set-Cookie"]
    for part in ("__Host-", "HttpOnly", "Secure", "SameSite=Strict", "Path=/"):
        assert part in shown
    assert (await browser.get("/api/runs")).json["runs"] == []
    again = await served.browser().enter(link)
    assert again.status == 401
    assert "used before" in again.reason


async def test_a_view_token_reads_without_a_cookie(served: Site) -> None:
    headers = bearer(await served.token(Role.VIEW))
    told = await served.browser().get("/api/me", headers=headers)
    assert (told.json["role"], told.json["csrf"]) == ("view", None)
    for path, status in (("runs", 200), ("notifications", 200), ("audit", 403)):
        assert (await served.browser().get(f"/api/{path}", headers=headers)).status == status


async def test_the_page_itself_is_served_to_all_who_reach_the_port(served: Site) -> None:
    browser = served.browser()
    for path, module in (
        ("/", "/runs.js"),
        ("/runs/mt5", "/run/timeline.js"),
        ("/runs/a%2Fb", "/run/timeline.js"),
        ("/runs/ft?job=1", "/job.js"),
    ):
        told = await browser.get(path)
        assert told.status == 200
        assert told.headers["Content-Type"] == "text/html; charset=utf-8"
        assert told.headers["Content-Security-Policy"].startswith("default-src 'self';")
        # All modules are asked for at once, and not each as another one imports it.
        modules = re.findall(r'<link rel="modulepreload" href="([^"]+)">', told.content.decode())
        assert {"/main.js", module, "/base/api.js"} < set(modules)
    for module in modules:
        assert (await browser.get(module)).headers["Content-Type"].startswith("text/javascript")


async def test_a_browser_gets_the_page_where_there_is_none_and_a_program_an_error(
    served: Site,
) -> None:
    browser, html = served.browser(), {"Accept": "text/html,*/*;q=0.8"}
    for path in ("/foo", "/runs", "/runs/mt5/foo", "/index.html"):
        told = await browser.get(path, headers=html)
        assert (told.status, told.headers["Content-Type"]) == (404, "text/html; charset=utf-8")
    for path, headers in (("/foo", {}), ("/api/foo", html)):
        told = await browser.get(path, headers=headers)
        assert (told.status, told.reason) == (404, f"nothing is served at {path}")


async def test_a_command_prints_a_link_that_allows_what_is_asked_for(served: Site) -> None:
    token = await served.token(Role.VIEW)
    link = await served.link(token)
    assert link.startswith(f"{served.origin}/#code=")
    browser = served.browser()
    await browser.enter(link)
    me = (await browser.get("/api/me")).json
    assert (me["name"], me["role"], me["run_id"]) == (token.token_id, "view", None)
    with pytest.raises(grpc.aio.AioRpcError) as refused:
        await served.link(token, role=control_pb2.ROLE_ADMIN)
    assert refused.value.code() is grpc.StatusCode.PERMISSION_DENIED


async def test_a_run_without_a_round_has_no_step_times(tmp_path: Path) -> None:
    async with site(tmp_path, insecure=True) as made, Client(made.port) as client:
        await client.agent(spec=spec(2, 2)).join()
        told = await made.browser().get("/api/runs/run/step-times")
        assert (told.status, told.json["round_id"], told.json["ranks"]) == (200, None, [])
        assert (await made.browser().get("/api/runs/other/step-times")).status == 404


async def test_a_run_is_read_over_http_as_the_command_line_reads_it(tmp_path: Path) -> None:
    async with site(tmp_path, insecure=True) as made, Client(made.port) as client:
        agent = await client.agent().join()
        await agent.run()
        browser = made.browser()
        runs = (await browser.get("/api/runs")).json["runs"]
        assert [(run["run_id"], run["phase"]) for run in runs] == [("run", "running")]
        assert runs[0]["health"] == "healthy"
        overview = (await browser.get("/api/runs/run")).json
        assert overview["agents"][0]["workers"][0]["rank"] == 0
        events = (await browser.get("/api/runs/run/events?after=1")).json["events"]
        assert [event["kind"] for event in events] == ["round_started"]
        agents = (await browser.get("/api/runs/run/agents")).json
        assert [each["name"] for each in agents["agents"]] == ["alice"]
        assert (await browser.get("/api/runs/run/ranks")).json["names"] == ["alice"]
        goodput = (await browser.get("/api/runs/run/goodput?segments=1")).json
        assert goodput["segments"][0]["part"] == "starting"
        assert (await browser.get("/api/runs/run/step-times")).json["round_id"] == 0
        assert (await browser.get("/api/runs/run/report")).status == 404
        assert (await browser.get("/api/runs/run?generation=2")).status == 404
        for query in ("generation=-1", "generation=x", "generation=9999999999999"):
            told = await browser.get(f"/api/runs/run?{query}")
            assert (told.status, "generation" in told.reason) == (400, True)


async def test_a_stream_begins_with_the_whole_and_tells_what_follows(tmp_path: Path) -> None:
    async with site(tmp_path, insecure=True) as made, Client(made.port) as client:
        purpose = {"spec": spec(agents_min=2, agents_max=2)}
        await client.agent(**purpose).join()
        async with made.browser().open("GET", "/api/runs/run/live") as response:
            stream = Stream(response)
            kinds = dict[str, Any]()
            while kinds.keys() != {"run", "events", "goodput", "ranks"}:
                kind, data = await stream.next()
                kinds[kind] = data
            assert [each["kind"] for each in kinds["events"]["events"]] == ["agent_admitted"]
            await client.agent(name="bob", **purpose).join()
            told = await stream.next_of("events")
            assert [each["kind"] for each in told["events"]] == ["agent_admitted", "round_started"]
            number = stream.number
            # One of before that may have been on its way.
            while (await stream.next_of("run"))["phase"] != "running":
                pass
        headers = {"Last-Event-ID": number}
        async with made.browser().open("GET", "/api/runs/run/live", headers=headers) as response:
            assert (await Stream(response).next_of("events"))["events"] == []
        headers = {"Last-Event-ID": f"2.{number.partition('.')[2]}"}  # of another run of this id
        async with made.browser().open("GET", "/api/runs/run/live", headers=headers) as response:
            assert (await Stream(response).next_of("events"))["events"] != []


async def test_actions_are_for_admins_and_their_page_alone(served: Site) -> None:
    admin, path = await served.entered(), "/api/runs/run/stop"
    assert (await admin.post(path, {"reason": "x"})).status == 404
    assert (await admin.get(path)).status == 400
    csrf = admin.headers.pop("X-Drumbeat-CSRF")
    assert (await admin.post(path, {})).status == 403
    for headers in (
        {"X-Drumbeat-CSRF": csrf, "Origin": "https://elsewhere.example"},
        {"X-Drumbeat-CSRF": csrf, "Origin": "null"},
        {"X-Drumbeat-CSRF": csrf, "Sec-Fetch-Site": "cross-site"},
        {"X-Drumbeat-CSRF": csrf[:-1]},
    ):
        assert (await admin.post(path, {}, headers=headers)).status == 403
    viewer = bearer(await served.token(Role.VIEW))
    assert (await served.browser().post(path, {}, headers=viewer)).status == 403
    token = bearer(await served.token(Role.ADMIN))
    assert (await served.browser().get("/api/audit", headers=token)).status == 200
    told = await served.browser().ask("POST", "/api/drains", json={"name": "gpu7"}, headers=token)
    assert (told.status, told.json["is_new"], told.json["agents_count"]) == (200, True, 0)
    wrong: list[object] = [{"name": 7}, {"nam": "gpu7"}, [], {"name": "gpu7", "grace_s": -1}]
    for body in wrong:
        told = await served.browser().ask("POST", "/api/drains", json=body, headers=token)
        assert told.status == 400


async def test_a_drain_in_all_runs_is_listed_as_such_and_lifted_without_a_run(
    tmp_path: Path,
) -> None:
    async with site(tmp_path, insecure=True) as made, Client(made.port) as client:
        await client.agent().join()
        browser = made.browser()
        browser.headers["X-Drumbeat-CSRF"] = (await browser.get("/api/me")).json["csrf"]
        assert (await browser.post("/api/drains", {"name": "gpu7"})).json["is_new"]
        (drain,) = (await browser.get("/api/runs/run/drains")).json["drains"]
        assert (drain["name"], drain["run_id"]) == ("gpu7", None)
        told = (await browser.post("/api/undrains", {"name": "gpu7", "run_id": "run"})).json
        assert (told["is_new"], "in all runs" in told["outcome"]) == (False, True)
        assert (await browser.post("/api/undrains", {"name": "gpu7"})).json["is_new"]
        assert (await browser.get("/api/runs/run/drains")).json["drains"] == []


async def test_a_link_for_one_run_shows_no_other(tmp_path: Path) -> None:
    async with site(tmp_path) as made:
        token = await made.token(Role.JOIN)
        async with made.client(token) as client:
            for run_id in ("run", "other"):
                await client.agent(run_id=run_id).join()
            link = await made.link(await made.token(Role.VIEW), run_id="run")
            assert "/runs/run#code=" in link
            browser = made.browser()
            await browser.enter(link)
            assert [run["run_id"] for run in (await browser.get("/api/runs")).json["runs"]] == [
                "run"
            ]
            async with browser.open("GET", "/api/live") as response:
                runs = (await Stream(response).next_of("runs"))["runs"]
                assert [run["run_id"] for run in runs] == ["run"]
            assert (await browser.get("/api/runs/run")).status == 200
            assert (await browser.get("/api/runs/other")).status == 403
            assert (await browser.get("/api/runs/other/live")).status == 403


async def test_a_stream_ends_with_the_token_that_it_was_opened_with(served: Site) -> None:
    token, other = await served.token(Role.VIEW), await served.token(Role.VIEW)
    link = await served.link(token)
    browser = served.browser()
    await browser.enter(link)
    async with (
        browser.open("GET", "/api/live") as of_cookie,
        served.browser().open("GET", "/api/live", headers=bearer(token)) as of_token,
        served.browser().open("GET", "/api/live", headers=bearer(other)) as of_other,
    ):
        streams = [Stream(of_cookie), Stream(of_token)]
        for stream in (*streams, Stream(of_other)):
            await stream.next_of("runs")
        await served.revoke(token)
        for stream in streams:
            assert "was revoked" in (await stream.next_of("ended"))["error"]["reason"]
        assert not of_other.content.at_eof()
    assert (await browser.get("/api/me")).status == 401


async def test_a_session_of_the_local_user_ends_when_the_token_of_its_link_is_revoked(
    served: Site,
) -> None:
    one, other = await served.entered(), await served.entered()
    first, _ = listed = [*served.driver.tokens.tokens.values()]
    assert [(token.role, token.created_by) for token in listed] == [("admin", "hostuser")] * 2
    async with one.open("GET", "/api/live") as of_one, other.open("GET", "/api/live") as of_other:
        streams = Stream(of_one), Stream(of_other)
        for stream in streams:
            await stream.next_of("runs")
        revoked = TokenRevoked(request_id=-secrets.randbits(40), token_id=first.token_id)
        await served.driver.change_token(revoked)
        assert "was revoked" in (await streams[0].next_of("ended"))["error"]["reason"]
        assert not of_other.content.at_eof()
    assert [(await each.get("/api/me")).status for each in (one, other)] == [401, 200]
    assert (await other.get("/api/me")).json["name"] == "hostuser"


async def test_a_stream_ends_when_its_token_expires(served: Site) -> None:
    token = await served.token(Role.VIEW, ttl_s=1.5)  # a busy machine takes long to open both
    browser = served.browser()
    await browser.enter(await served.link(token))
    async with browser.open("GET", "/api/live") as response:
        told = await Stream(response).next_of("ended")
    assert told["error"]["status"] == "UNAUTHENTICATED"
    assert (await browser.get("/api/me")).status == 401


async def test_a_handshake_shows_what_grpc_shows_from_then_on(tmp_path: Path) -> None:
    async with site(tmp_path) as made:
        assert isinstance(made.identity, Authority)
        old, browser = made.browser(), await made.entered()
        made.identity.rotate()
        assert (await old.get("/")).status == 200, "the one before is vouched for"
        new = made.browser()
        assert (await new.get("/")).status == 200
        new.cookie = browser.cookie
        assert (await new.get("/api/me")).status == 401, "its key signed nothing of before"
        made.identity.retire()
        await made.forget_connections()
        with pytest.raises(aiohttp.ClientConnectorCertificateError):
            await old.get("/")


async def test_clients_with_certificates_of_the_operators_need_no_link(tmp_path: Path) -> None:
    authority = CertificateAuthority()
    paths = [*authority.issue().write(tmp_path), str(tmp_path / "ca.crt")]
    (tmp_path / "ca.crt").write_bytes(authority.pem)
    settings: dict[str, Any] = dict(
        zip(("tls_cert", "tls_key", "tls_client_ca"), paths, strict=True)
    )
    roles = parse_roles("view.example=view,admin.example=admin")
    identity = OperatorCertificate(*paths)
    async with site(tmp_path, identity=identity, tls_roles=roles, **settings) as made:
        tls = {}
        for name in ("", "view.example", "admin.example", "other.example"):
            tls[name] = ssl.create_default_context(cadata=authority.pem.decode())
            if name:
                tls[name].load_cert_chain(*authority.issue(name).write(tmp_path, name))
        browser = made.browser()
        for name, status in (("view.example", 200), ("other.example", 401)):
            await made.forget_connections()
            assert (await browser.get("/api/me", ssl=tls[name])).status == status
        await made.forget_connections()
        with pytest.raises(aiohttp.ClientError):
            await browser.get("/", ssl=tls[""])
        path, admin = "/api/drains", tls["admin.example"]
        me = (await browser.get("/api/me", ssl=admin)).json
        assert (me["name"], me["role"]) == ("admin.example", "admin")
        assert (await browser.post(path, {"name": "gpu7"}, ssl=admin)).status == 403
        headers = {"X-Drumbeat-CSRF": me["csrf"]}
        told = await browser.post(path, {"name": "gpu7"}, ssl=admin, headers=headers)
        assert told.status == 200


@pytest.mark.parametrize("host", ["evil.example", "evil.example:80", "127.0.0.1.evil.example", "["])
async def test_without_authentication_a_request_for_a_foreign_name_is_refused(
    tmp_path: Path, host: str
) -> None:
    """A foreign site whose name resolves to the coordinator's address must not act as its page."""
    async with site(tmp_path, insecure=True) as made:
        browser = made.browser()
        headers = {"Host": host, "Origin": f"http://{host}"}
        for path in ("/", "/api/runs", "/api/me"):
            assert (await browser.get(path, headers=headers)).status == 403
        assert (await browser.post("/api/runs/run/stop", {}, headers=headers)).status == 403
        for own in ("localhost", "127.0.0.1:1", "[::1]:8080", socket.gethostname().upper()):
            assert (await browser.get("/api/runs", headers={"Host": own})).status == 200


async def test_a_page_of_another_scheme_changes_nothing(tmp_path: Path, served: Site) -> None:
    admin = await served.entered()
    other = {"Origin": admin.origin.replace("https", "http")}
    assert (await admin.post("/api/runs/run/stop", {"reason": "x"}, headers=other)).status == 403
    async with site(tmp_path / "open", insecure=True) as made:
        browser = made.browser()
        other = {"Origin": browser.origin.replace("http", "https")}
        assert (await browser.post("/api/runs/run/stop", {}, headers=other)).status == 403


async def test_dropped_requests_do_not_delay_the_next_one(tmp_path: Path) -> None:
    limits = Limits(http_strangers_per_s=0.01, http_at_once_max=1)
    async with site(tmp_path, insecure=True, limits=limits) as made:
        page, loop = made.page._site, asyncio.get_running_loop()
        assert page._strangers.take(now=loop.time()) == 0
        waiting = asyncio.create_task(page._wait_for_turn())
        await asyncio.sleep(0)
        waiting.cancel()
        await asyncio.gather(waiting, return_exceptions=True)
        assert page._strangers.take(now=loop.time()) <= 100 + 1e-6  # of which it is a sum


async def test_a_job_is_streamed_with_what_its_groups_did_when(tmp_path: Path) -> None:
    async with site(tmp_path, insecure=True) as made, Client(made.port) as client:
        browser = made.browser()
        of_group = spec()
        of_group.replica_group.CopyFrom(common_pb2.ReplicaGroup(job="ft", count=2, groups_min=1))
        await client.agent(run_id="ft.0", spec=of_group).join()
        listed = (await browser.get("/api/runs")).json
        assert [(run["run_id"], run["job"]) for run in listed["runs"]] == [("ft.0", "ft")]
        assert [job["run_id"] for job in listed["jobs"]] == ["ft"]
        (group,) = (await browser.get("/api/runs/ft/groups?segments=1")).json["groups"]
        assert (group["run_id"], group["index"]) == ("ft.0", 0)
        async with browser.open("GET", "/api/runs/ft/live") as response:
            job = await Stream(response).next_of("job")
        assert job["groups"][0]["goodput"]["segments"]
        assert (await browser.get("/api/runs/fx/live")).status == 404
