"""Pure. The methods that operators call: a row each, for gRPC, HTTP, the command line and docs.

``proto/drumbeat/v1/{query,control}.proto`` say what a method takes and answers. What it does is the
function of its name in ``ControlService``, ``QueryService`` or ``ClusterService``. This table says
the rest: who may call it, where it is on HTTP, and which verbs of the command line use it.
"""

from __future__ import annotations

from collections.abc import Mapping
from collections.abc import Set as AbstractSet
from enum import Enum
from functools import partial
from typing import Any, NamedTuple

from drumbeat.access.token import Role
from drumbeat.command.settings import Setting, named
from drumbeat.coordinator.api import verb_options as options

RUN_PATH = "{run_id}"  # the run in a path
CALL_TIMEOUT_S = 10.0  # a coordinator answers within ms; one that restarts is back within seconds
_STEP_DOWN_TIMEOUT_S = 130.0  # the longest lease of a leader may have to end, and the next one's


class Scope(Enum):
    """What a method is about. A caller that is for one run may only ask about that run."""

    RUN = "run"
    CLUSTER = "cluster"


class Verb(NamedTuple):
    """A command ``coordinator NAME``; the fields of its request are its arguments and options."""

    name: str
    help: str
    examples: tuple[str, ...]
    arguments: tuple[str, ...] = ()  # the fields
    is_optional: bool = False  # whether the argument may be left out
    options: Mapping[str, Setting] = {}
    own_options: Mapping[str, Setting] = {}  # which are no fields
    text: str = ""  # what to print, with the keys of the document, where it is not the outcome
    timeout_s: float = CALL_TIMEOUT_S
    is_per_group: bool = False  # of a job it shows each replica group, one after the other
    hint: str = ""  # what to do if the coordinator refuses
    full_hint: str = ""  # what to do if a limit is reached
    section: str = "Looking"  # of the help of `coordinator`

    @property
    def settings(self) -> dict[str, Setting]:
        """The options, with their flags."""
        return named({**self.options, **self.own_options})


class Operation(NamedTuple):
    """One method. The role admin may call all of them; calls of Control are audited."""

    service: str
    method: str
    scope: Scope
    paths: tuple[str, ...] = ()
    verbs: tuple[Verb, ...] = ()
    roles: AbstractSet[Role] = frozenset()

    @property
    def full_name(self) -> str:
        """The path of the method in gRPC."""
        return f"/drumbeat.v1.{self.service}Service/{self.method}"


def _query(method: str, scope: Scope, paths: tuple[str, ...], *verbs: Verb) -> Operation:
    return Operation("Query", method, scope, paths, verbs, frozenset({Role.VIEW}))


def _control(
    section: str, scope: Scope, method: str, *verb: Any, path: str = "", **more: Any
) -> Operation:
    verbs = (Verb(*verb, **more)._replace(section=section),)
    return Operation("Control", method, scope, (path,) if path else (), verbs)


_RUN = f"/api/runs/{RUN_PATH}"
_STEERING, _ACCESS, _CLUSTER = "Steering", "Access", "High availability"
_steering = partial(_control, _STEERING, Scope.RUN)
_access = partial(_control, _ACCESS, Scope.CLUSTER)
_STEERED = {"reason": options.REASON, "grace": options.GRACE}

STATUS = Verb(
    "status",
    """Show all runs, or one of them.

    Of all runs: how each is and why, those first that need attention. For one run: how it is and
    why, its latest failure and what its failures have in common, its agents and workers, the ranks
    that are behind, and the latest events.
    """,
    (
        "coordinator status",
        "coordinator status --phase failed --sort age",
        "coordinator status mt5",
        "coordinator status mt5 -o json | jq '.agents[] | select(.silence_s > 5) | .name'",
    ),
    ("run_id",),
    is_optional=True,
    options={"phase": options.PHASE, "sort": options.SORT},
)
WATCH = Verb(
    "watch",
    """Show one run as `status` does, live until it has ended.

    The display is renewed at each event, at most once a second. Into a pipe a line with the time is
    written when something is new, and once a minute. If the coordinator restarts, the command
    reconnects.
    """,
    ("coordinator watch mt5", "coordinator watch mt5 -o json | jq -r .behind"),
    ("run_id",),
)
WHY = Verb(
    "why",
    """Explain in sentences why a run is as it is.

    What failed or is missing, the root cause and its evidence, what was done, the cost, and what to
    try. Workers of a run that trains are asked in which collectives they wait; they go on.
    """,
    ("coordinator why mt5",),
    ("run_id",),
    is_per_group=True,
)
EVENTS = Verb(
    "events",
    """Show what was decided on a run, and why.

    The latest run with this id is shown. With -o json each event is a line.
    """,
    (
        "coordinator events mt5",
        "coordinator events mt5 --since 1h",
        "coordinator events mt5 --follow -o json",
    ),
    ("run_id",),
    is_per_group=True,
    options={"follow": options.FOLLOW, "since": options.SINCE},
)
STACKS = Verb(
    "stacks",
    """Show the Python stacks of a run's workers, grouped by equal ones.

    Workers do not notice it, and a stopped worker stays stopped. A worker has stacks to show once
    it has used the SDK, e.g. called worker_sdk.heartbeat. Workers that cannot answer are named with
    the reason.
    """,
    (
        "coordinator stacks mt5",
        "coordinator stacks mt5 --rank 17",
        "coordinator stacks mt5 --rank 17 --signal",
        "coordinator stacks mt5 -o json | jq '.groups[-1].ranks'",
    ),
    ("run_id",),
    is_per_group=True,
    options={"rank": options.RANK, "signal": options.SIGNAL},
)
LOGS = Verb(
    "logs",
    """Show the output of a run's workers, from all hosts, as their agents have it.

    Each line begins with its rank. A reader that is too slow loses lines and is told how many; no
    worker waits for a reader. Ranks without output are named with the reason. Of a run that has
    ended, and of earlier rounds, the end of the output of some ranks is shown, and where all is.
    """,
    (
        "coordinator logs mt5",
        "coordinator logs mt5 --rank 17 --tail 200",
        "coordinator logs mt5 --level error",
        "coordinator logs mt5 --round 3 --grep NCCL",
        "coordinator logs mt5 --follow",
        "coordinator logs mt5 --follow -o json | jq -r 'select(.stream == \"stderr\") | .line'",
    ),
    ("run_id",),
    is_per_group=True,
    options={
        "rank": options.RANK._replace(help=f"{options.RANK.help[:-1]}; at most 1000."),
        "follow": options.FOLLOW,
        "tail": options.TAIL,
        "round": options.ROUND,
        "grep": options.GREP,
        "level": options.LEVEL,
        "timestamps": options.TIMESTAMPS,
    },
)
GOODPUT = Verb(
    "goodput",
    """Show what the time of a run went into, over all its rounds.

    How much of the time was training, and what the rest was lost to: waiting, starting, repeated
    steps, hangs, stops; by cause, and by the host that caused the loss. With --all: the GPU time of
    all runs, how much of it was training, and failures, by owner or week.
    """,
    (
        "coordinator goodput mt5",
        "coordinator goodput mt5 -o json | jq .effective_ratio",
        "coordinator goodput mt5 --segments",
        "coordinator goodput --all --since 4w --by week",
    ),
    ("run_id",),
    is_optional=True,
    options={
        "segments": options.SEGMENTS,
        "all": options.ALL,
        "by": options.BY,
        "since": options.SINCE._replace(help="With --all: only the last DURATION, e.g. 4w."),
    },
)
EVIDENCE = Verb(
    "evidence",
    """Write all that is known of a run to one archive, for a bug report or a colleague.

    Status, events, failure report, stacks, step times, goodput, settings and the last lines of
    output, without secrets as far as drumbeat knows them. README.txt in it names what is missing
    and why. It takes 30 s at most.
    """,
    ("coordinator evidence mt5", "coordinator evidence mt5 -o mt5.tar.gz --force"),
    ("run_id",),
    options={"file": options.ARCHIVE, "force": options.FORCE},
)
VERDICT = Verb(
    "verdict",
    """Print in one word how a run ended, for scripts.

    succeeded, worker_failed, stopped and so on, as `cause` of `status -o json`. A run that has not
    ended has no verdict: exit code 2. A token with the role join is enough if it is for this run.
    """,
    (
        "coordinator verdict mt5",
        "coordinator verdict mt5 --coordinator head:29400 --token-file join.token",
    ),
    ("run_id",),
    text="{cause}",
)
PAGE = Verb(
    "page",
    """Print a link to the page, of all runs or of one.

    A browser that opens the link within five minutes is let in, once, and stays in for half a day.
    The link is as secret as a token. The coordinator has to serve the page, with --http-port.
    """,
    ("coordinator page", "coordinator page mt5 --role view"),
    ("run_id",),
    is_optional=True,
    options={"role": options.PAGE_ROLE},
    text="{url}",
)

HOST = Verb(
    "host",
    """Show one host over all runs.

    Its agents with their health, devices and what the GPUs do, the drains that hold for it, the
    failures that hit it, and the time that was lost for it. NAME is that of a host or of an agent.
    """,
    ("coordinator host gpu7", "coordinator host gpu7 -o json | jq '.runs[].lost_s'"),
    ("name",),
)

NOTIFICATIONS = Verb(
    "notifications",
    "List what is wrong now (runs, drains, hosts), and the notifications that were sent lately.",
    ("coordinator notifications", "coordinator notifications -o json | jq -r .firing[].run_id"),
)
AUDIT = Verb(
    "audit",
    "List who called what of this coordinator lately, and which callers were refused.",
    ("coordinator audit", "coordinator audit -o json | jq '.entries[].text'"),
    section=_ACCESS,
)
MEMBERS = Verb(
    "members",
    """List the coordinators of a cluster, and which of them leads.

    The first one that answers is asked, whether it leads or not.
    """,
    ("coordinator members --coordinator head1,head2,head3",),
    section=_CLUSTER,
)

OPERATIONS = (
    _query("GetRun", Scope.RUN, ()),
    _query("GetJob", Scope.RUN, (f"{_RUN}/groups",)),
    _query("ListRuns", Scope.CLUSTER, ("/api/me", "/api/runs", "/api/live", "/metrics")),
    _query("GetOverview", Scope.RUN, (_RUN,), STATUS, WATCH, EVIDENCE),
    _query("ListAgents", Scope.RUN, (f"{_RUN}/agents", f"{_RUN}/ranks", f"{_RUN}/drains")),
    _query("ListEvents", Scope.RUN, (f"{_RUN}/events",), EVENTS),
    _query("WatchEvents", Scope.RUN, (f"{_RUN}/live",)),
    # An agent shows the whole report.
    _query("GetReport", Scope.RUN, (f"{_RUN}/report",), VERDICT)._replace(
        roles={Role.VIEW, Role.JOIN}
    ),
    _query("GetHost", Scope.CLUSTER, ("/api/hosts/{name}",), HOST),
    _query("GetStepTimes", Scope.RUN, (f"{_RUN}/step-times",)),
    _query("GetStacks", Scope.RUN, (f"{_RUN}/stacks",), STACKS),
    _query("DiagnoseHang", Scope.RUN, (f"{_RUN}/hang",), WHY),
    _query("WatchLogs", Scope.RUN, (f"{_RUN}/logs",), LOGS),
    _query("GetGoodput", Scope.RUN, (f"{_RUN}/goodput",), GOODPUT),
    _query("GetRehearsal", Scope.RUN, (f"{_RUN}/rehearsal",)),
    _query("GetPageLink", Scope.CLUSTER, (), PAGE),
    _steering(
        "StopRun",
        "stop",
        """End a run in order.

        Training may save first; then its workers are stopped as at a restart. Its agents end
        with exit code 4 and name who stopped the run and why. Harmless if repeated, and for a
        run that has ended.
        """,
        (
            "coordinator stop mt5",
            'coordinator stop mt5 --reason "wrong data set" --grace 30s',
        ),
        ("run_id",),
        options=_STEERED,
        path=f"{_RUN}/stop",
    ),
    _steering(
        "RestartRun",
        "restart",
        """Begin another round of a run now, with the agents that are there.

        Training may save first. Workers go on from their latest checkpoint. The restart does
        not count against --max-restarts.
        """,
        (
            "coordinator restart mt5",
            'coordinator restart mt5 --reason "new driver on gpu3"',
        ),
        ("run_id",),
        options=_STEERED,
        path=f"{_RUN}/restart",
    ),
    _steering(
        "Checkpoint",
        "checkpoint",
        """Have training save now, at one step on all ranks, and go on.

        Training has to ask when to save, with worker_sdk.should_checkpoint; if it does not,
        nothing happens. The events of the run say when all ranks have saved.
        """,
        ('coordinator checkpoint mt5 --reason "before the network is changed"',),
        ("run_id",),
        options={
            **_STEERED,
            "grace": options.GRACE._replace(help="How long saving may take."),
        },
        path=f"{_RUN}/checkpoint",
    ),
    _steering(
        "AddNote",
        "note",
        """Add a note to the events of a run, running or ended.

        TEXT is one line. `events`, `why` and the page show it with your name; nothing else
        follows from it.
        """,
        ('coordinator note mt5 "learning rate halved after step 1200"',),
        ("run_id", "text"),
        path=f"{_RUN}/notes",
    ),
    _steering(
        "Rehearse",
        "rehearse",
        """Inject faults into a run, to see whether it recovers from them.

        The seed decides the kind, host, rank and time of each fault. The next one waits until the
        run trains again. What a fault causes costs no restart and accuses no host. The command
        shows each fault, then a report; Ctrl-C ends the rehearsal. The coordinator has to run with
        --allow-rehearsals. Exit code 1: the run did not recover.
        """,
        (
            "coordinator rehearse mt5 --every 10m --faults worker,agent,host-pause",
            "coordinator rehearse mt5 --now --at-most 1 --faults worker --seed 7",
            "coordinator rehearse mt5 --stop",
            "coordinator rehearse mt5 --report -o json | jq .verdict",
        ),
        ("run_id",),
        options=options.REHEARSAL,
        own_options=options.REHEARSAL_SHOWN,
    ),
    _steering(
        "DrainAgent",
        "drain",
        """Make agents leave their runs, and keep them out of rounds.

        NAME is the name of an agent or of a host. Training may save first; then its workers are
        stopped, a standby or a smaller round goes on, and no restart is counted; a run that has
        too few agents left waits for others. The agents end with exit code 0. Agents of that
        name or host that are started later stand by until `undrain`.
        """,
        (
            'coordinator drain gpu7 --reason "memory errors"',
            "coordinator drain gpu7 --run-id mt5 --grace 2m",
        ),
        ("name",),
        options={"run_id": options.ONLY_RUN, **_STEERED},
        path="/api/drains",
    ),
    _steering(
        "UndrainAgent",
        "undrain",
        """Let agents take part in rounds again.

        NAME and --run-id are those of the drain. Agents that stand by for it join their run at
        once.
        """,
        ("coordinator undrain gpu7",),
        ("name",),
        options={"run_id": options.ONLY_RUN, "reason": options.REASON},
        path="/api/undrains",
    ),
    _control(
        _STEERING,
        Scope.CLUSTER,
        "ListDrains",
        "drains",
        "List the agents and hosts that are kept out of rounds, since when, by whom and why.",
        ("coordinator drains",),
    ),
    _steering(
        "ForgetRun",
        "forget",
        """Remove a run that has ended, and earlier runs that had its id.

        The verdict, the events and the kept output of the run are gone then. A run that lives is
        refused: stop the run first.
        """,
        ("coordinator forget mt5",),
        ("run_id",),
    ),
    _steering(
        "ResetLimits",
        "reset-limits",
        """Forget the learned limits of a run.

        Sections and heartbeats whose timeout is "auto" have no limit from then on, until the
        limit is learned again. Use it after a change that makes a run slower.
        """,
        (
            "coordinator reset-limits --run-id mt5",
            "coordinator reset-limits --run-id mt5 --token-file operator.token",
        ),
        options={"run_id": options.RUN_ID},
        text="coordinator: run {run_id}: learned limits forgotten: {forgotten}",
        hint="--run-id names the run",
    ),
    _access(
        "CreateToken",
        "token create",
        """Make a token and print it, alone on standard output.

        The token is shown this once: the coordinator keeps a hash of it. A caller with the token
        has its role, so keep it in a file for its owner alone, and pass that file with
        --token-file, or the token as DRUMBEAT_TOKEN. The id of the token, which `token list`
        shows, is no secret. When a token expires, agents that joined with it keep training and
        may come back; when a token is revoked, they end.
        """,
        (
            "coordinator token create --role join --run-id exp1 --ttl 12h",
            "coordinator token create --role view > viewer.token",
            (
                "ssh head coordinator token create --role join | "
                "ssh gpu7 'umask 077; cat > join.token'"
            ),
        ),
        options={
            "role": options.ROLE,
            "run_id": options.ONLY_RUN._replace(
                help="The only run that the token is for, with the role join.",
                shown_default="any run",
            ),
            "ttl": options.TTL,
        },
        text="{token}",
        full_hint="revoke tokens that are not needed any more; `coordinator token list` shows them",
    ),
    _access(
        "ListTokens",
        "token list",
        """List all tokens, the oldest first.

        Tokens that have lately expired or were revoked are listed too. Secrets are not shown.
        """,
        ("coordinator token list --coordinator head:29400 --token-file operator.token",),
    ),
    _access(
        "RevokeToken",
        "token revoke",
        """Revoke a token, and end what was opened with it.

        Agents that joined with the token end, and so do their workers, unless their
        --token-file has another token by now. Harmless if repeated.
        """,
        ("coordinator token revoke k3v9qr2m",),
        ("token_id",),
        text="coordinator: {role} token {token_id} is revoked",
        hint="`coordinator token list` shows the ids",
    ),
    _access(
        "GetAuthority",
        "authority show",
        """List the certificate authorities that are served.

        The newest comes first: new tokens pin it.
        """,
        ("coordinator authority show",),
    ),
    _access(
        "RotateAuthority",
        "authority rotate",
        """Replace the certificate authority; older ones are served, too.

        No agent leaves its round: connected agents learn of the new authority. New tokens pin
        it.
        """,
        ("coordinator authority rotate",),
        full_hint="give all who have a token a new one, then `coordinator authority retire`",
    ),
    _access(
        "RetireAuthority",
        "authority retire",
        """Serve the newest certificate authority alone.

        Older tokens open nothing new then. Open connections stay open, and agents that were
        connected since the authority was replaced may come back.
        """,
        ("coordinator authority retire",),
    ),
    _query("ListAudit", Scope.CLUSTER, ("/api/audit",), AUDIT)._replace(roles=frozenset()),
    _query("ListNotifications", Scope.CLUSTER, ("/api/notifications",), NOTIFICATIONS),
    _query("ListCoordinators", Scope.CLUSTER, (), MEMBERS),
    _control(
        _CLUSTER,
        Scope.CLUSTER,
        "StepDown",
        "step-down",
        """Have another coordinator of the cluster lead instead.

        Workers go on, and agents follow at once. Refused if there is no other coordinator.
        """,
        ('coordinator step-down --reason "new kernel on head1"',),
        options={
            "reason": options.REASON._replace(help="The reason, for the logs of the coordinators.")
        },
        text="coordinator: {leader} leads",
        timeout_s=_STEP_DOWN_TIMEOUT_S,
    ),
)

BY_METHOD = {row.method: row for row in OPERATIONS}
BY_FULL_NAME = {row.full_name: row for row in OPERATIONS}
BY_PATH = {path: row for row in OPERATIONS for path in row.paths}
VERBS = {verb.name: (row, verb) for row in OPERATIONS for verb in row.verbs}
