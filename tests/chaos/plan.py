"""Pure. What a round is: coordinators, hosts, runs and faults, drawn from its seed."""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import StrEnum
from random import Random

CHAOS_S = 5.0
"""How long faults begin; the last of them ends soon after."""
LEAVES_SHARE = 0.4
"""Of rounds, in which a host leaves in order, as when it is preempted."""
HALF_DEAF_SHARE = 0.7
"""Of rounds with workers that ignore SIGTERM: on some hosts alone; others are ready before."""
RESTARTS = 50
"""Of a run that is to end well: more than there are faults."""


class Kind(StrEnum):
    """How the workers of a run start again."""

    PLAIN = "plain"
    REPLICAS = "replicas"
    INPROCESS = "inprocess"
    PRELOAD = "preload"
    TORCH = "torch"


class FaultKind(StrEnum):
    """What happens."""

    CUT = "cut"
    CUT_ONE_WAY = "cut-one-way"
    LINK = "link"
    KILL = "kill"
    STOP = "stop"
    FAIL = "fail"
    OOM = "oom"
    DISK_FULL = "disk-full"
    DISK_SLOW = "disk-slow"
    CLOCK = "clock"
    ROTATE = "rotate"
    UPGRADE = "upgrade"
    STEP_DOWN = "step-down"
    RESTART = "restart"
    MAJORITY = "majority"
    LEAVE = "leave"


_DRAWN_TOGETHER = [kind for kind in FaultKind if kind is not FaultKind.LEAVE]


class Part(StrEnum):
    """Kinds of processes, for ``kill`` and ``stop``."""

    COORDINATOR = "coordinator"
    FRONT_END = "front end"
    AGENT = "agent"
    AGENT_AND_SUPERVISOR = "agent and supervisor"
    """Killed at once, so that nobody ends their workers before the next agent of the host."""
    SUPERVISOR = "supervisor"
    TEMPLATE = "template"
    WORKER = "worker"
    HOST = "host"
    ETCD = "etcd"


@dataclass(frozen=True, slots=True)
class RunPlan:
    """One run. Replica groups are runs of their own, ``RUN.0`` and so on, with an agent each."""

    run_id: str
    kind: Kind
    hosts: tuple[str, ...]
    hosts_min: int
    workers: int
    restarts_max: int
    mode: str

    @property
    def is_doomed(self) -> bool:
        """Whether its faults may end it."""
        return self.restarts_max < RESTARTS


@dataclass(frozen=True, slots=True)
class Fault:
    """One fault; instants are seconds after all runs have begun."""

    at_s: float
    kind: FaultKind
    target: str = ""
    """Name of a host, coordinator, member of etcd or run, as the kind has it."""
    part: Part | None = None
    length_s: float = 0.0
    """How long it lasts; of a process that was killed, until it starts again."""
    amount: float = 0.0
    number: int = 0
    """Which of several, e.g. workers: modulo how many there are by then."""

    def __str__(self) -> str:
        words = [f"{self.at_s:.2f} s: {self.kind}", self.part or "", self.target]
        return " ".join(word for word in words if word) + f" for {self.length_s:.2f} s"


@dataclass(frozen=True, slots=True)
class Plan:
    """One round."""

    seed: int
    coordinators: tuple[str, ...]
    members: tuple[str, ...]
    """Of etcd, on the hosts of these names; none: the journal is on a disk."""
    hosts: tuple[str, ...]
    runs: tuple[RunPlan, ...]
    faults: tuple[Fault, ...]
    frontends: int = 0
    """Of each coordinator."""

    @property
    def has_clocks(self) -> bool:
        """Whether wall clocks of hosts step."""
        return any(fault.kind is FaultKind.CLOCK for fault in self.faults)

    def __str__(self) -> str:
        journal = f"etcd on {len(self.members)}" if self.members else "disk"
        runs = ", ".join(
            f"{run.run_id} on {run.hosts_min}:{len(run.hosts)} hosts x {run.workers}"
            f"{f', {run.restarts_max} restarts' if run.is_doomed else ''}"
            for run in self.runs
        )
        faults = "\n".join(f"  {fault}" for fault in self.faults)
        fronts = f"{len(self.coordinators)} coordinators with {self.frontends} front ends"
        return f"{fronts}, journal: {journal}; {runs}\n{faults}"


def draw(seed: int, only: tuple[str, ...] = (), *, has_etcd: bool = True) -> Plan:
    """Return the round of a seed; ``only`` limits the kinds of runs or of faults."""
    random = Random(f"chaos {seed}")
    is_several = has_etcd and random.random() < 0.5
    coordinators = tuple(f"c{n}" for n in range(random.choice([2, 2, 3]) if is_several else 1))
    members = tuple(f"c{n}" for n in range(3)) if is_several else ()
    hosts = tuple(f"h{n}" for n in range(random.choice([2, 2, 3, 3, 4])))
    kinds = [kind for kind in Kind if kind in only] or [
        Kind.PLAIN, Kind.PLAIN, Kind.REPLICAS, Kind.INPROCESS, Kind.PRELOAD,
    ]  # fmt: skip
    if not only and random.random() < 0.03:
        kinds = [Kind.TORCH]
    count = random.choice([1, 1, 2])
    runs = [_run(random, number, random.choice(kinds), hosts) for number in range(count)]
    wanted = [kind for kind in FaultKind if kind in only] or _DRAWN_TOGETHER
    if Random(f"deaf {seed}").random() < HALF_DEAF_SHARE:
        runs = [replace(run, mode="half-deaf") if run.mode == "deaf" else run for run in runs]
    plan = Plan(seed, coordinators, members, hosts, tuple(runs), ())
    faults = []
    for _ in range(random.choice([1, 2, 3, 4, 6, 8])):
        kind = random.choice(wanted)
        if (fault := _fault(random, kind, plan)) is not None:
            faults.append(fault)
    # Drawn apart, as what follows, so that seeds of before mean the same rounds.
    apart = Random(f"leave {seed}")
    if not only and apart.random() < LEAVES_SHARE:
        faults += [leave] if (leave := _fault(apart, FaultKind.LEAVE, plan)) is not None else []
    faults.sort(key=lambda fault: fault.at_s)
    if frontends := Random(f"front ends {seed}").choice([0, 2]):
        faults = [_before_it(fault) if fault.number % 2 else fault for fault in faults]
    return replace(plan, faults=tuple(faults), frontends=frontends)


def _before_it(fault: Fault) -> Fault:
    """Return a fault of a coordinator as one of its front ends."""
    return replace(fault, part=Part.FRONT_END) if fault.part is Part.COORDINATOR else fault


def _run(random: Random, number: int, kind: Kind, hosts: tuple[str, ...]) -> RunPlan:
    size = min(len(hosts), random.choice([2, 2, 3]))
    chosen = tuple(random.sample(hosts, k=size))
    hosts_min = size if random.random() < 0.5 else random.randint(1, size)
    mode = {Kind.INPROCESS: "wrapped", Kind.TORCH: "torch"}.get(kind, "")
    return RunPlan(
        run_id=f"{kind}{number}",
        kind=kind,
        hosts=chosen,
        hosts_min=1 if kind is Kind.REPLICAS else hosts_min,
        workers=random.choice([1, 1, 2]),
        restarts_max=random.choice([0, 1]) if random.random() < 0.15 else RESTARTS,
        mode=mode or random.choice(["plain", "plain", "plain", "deaf"]),
    )


def _fault(random: Random, kind: FaultKind, plan: Plan) -> Fault | None:
    """Return a fault of a kind; None if this round has nothing that it could hit."""
    at_s = random.uniform(0.0, CHAOS_S)
    length_s = random.choice([0.2, 0.5, 1.0, 2.0, 4.0]) * random.uniform(0.5, 1.5)
    number, amount = random.randrange(100), random.random()
    run = random.choice(plan.runs)
    if kind in (FaultKind.KILL, FaultKind.STOP):
        hit = _process(random, kind, run, plan)
        return Fault(at_s, kind, hit[1], hit[0], length_s, amount, number) if hit else None
    if kind is FaultKind.LEAVE and run.is_doomed:
        return None  # as an agent that is killed
    if kind in (FaultKind.STEP_DOWN, FaultKind.MAJORITY) and len(plan.coordinators) < 2:
        return None
    targets: dict[FaultKind, tuple[str, ...]] = {
        FaultKind.CUT: (*plan.hosts, *plan.coordinators, *plan.members),
        FaultKind.DISK_FULL: (*plan.coordinators, *plan.hosts),
        FaultKind.DISK_SLOW: plan.coordinators,
        FaultKind.UPGRADE: plan.coordinators,
        FaultKind.CLOCK: (*plan.hosts, *plan.coordinators),
        FaultKind.FAIL: tuple(f"{run.run_id}@{host}" for host in run.hosts),
    }
    targets[FaultKind.CUT_ONE_WAY] = targets[FaultKind.LINK] = targets[FaultKind.CUT]
    for same in (FaultKind.OOM, FaultKind.RESTART, FaultKind.LEAVE):
        targets[same] = targets[FaultKind.FAIL]
    target = random.choice(targets.get(kind, ("",)))
    return Fault(at_s, kind, target, None, length_s, amount, number)


def _process(random: Random, kind: FaultKind, run: RunPlan, plan: Plan) -> tuple[Part, str] | None:
    """Return which process is hit.

    Whether an agent that comes again finds its run or begins the next one is a matter of moments
    when the run may end, so those of such runs are spared.
    """
    parts = [Part.COORDINATOR, Part.AGENT, Part.SUPERVISOR, Part.WORKER, Part.HOST]
    parts += [Part.AGENT_AND_SUPERVISOR] * (kind is FaultKind.KILL)
    parts += [Part.ETCD] * bool(plan.members)
    parts += [Part.TEMPLATE] * (run.kind is Kind.PRELOAD)
    part = random.choice(parts)
    if part is Part.COORDINATOR:
        return part, random.choice(plan.coordinators)
    if part is Part.ETCD:
        return part, random.choice(plan.members)
    if part is Part.HOST:
        host = random.choice(plan.hosts)
        is_spared = any(each.is_doomed and host in each.hosts for each in plan.runs)
        return None if is_spared else (part, host)
    target = f"{run.run_id}@{random.choice(run.hosts)}"
    is_agent = part in (Part.AGENT, Part.AGENT_AND_SUPERVISOR)
    return None if is_agent and run.is_doomed else (part, target)
