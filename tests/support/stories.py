"""What a coordinator might want kept, batch by batch, made of numbers: valid, of all kinds."""

from collections.abc import Iterable
from copy import deepcopy

from drumbeat.access.token import Role
from drumbeat.coordinator.core import effects as fx
from drumbeat.coordinator.core.model import KeptDrain, Verdict, VerdictCause
from drumbeat.coordinator.core.quorum.model import KeptQuorum
from drumbeat.coordinator.core.run import records as rec
from drumbeat.coordinator.core.run.state import key_of
from drumbeat.coordinator.core.tokens.token_table import KeptToken, secret_sha256
from drumbeat.coordinator.journal.etcd.model import Delete, Etcd, IsCreated, Put, Transaction
from drumbeat.coordinator.journal.journal import Journal
from drumbeat.coordinator.journal.keys import Keys
from tests.support.world import a_record, a_spec, an_agent

NAMES = 3
KINDS = 8


class Story:
    """Turns numbers into effects. It knows what came before, whether it was journaled or not."""

    def __init__(self) -> None:
        self.now = 100.0
        self._generations: dict[str, int] = {}
        self._alive: dict[str, str] = {}  # run ids to the keys of those that live
        self._ended: list[str] = []
        self._count = 0

    def batch(self, numbers: Iterable[int]) -> list[fx.Effect]:
        """Return the effects of some numbers."""
        self.now += 1.0
        return [effect for number in numbers for effect in self._effects(number)]

    def _effects(self, number: int) -> list[fx.Effect]:
        self._count += 1
        kind, which = number % KINDS, number // KINDS % NAMES
        run_id = f"run{which}"
        match kind:
            case 0 if run_id in self._alive:
                return self._end(run_id)
            case 1 if self._ended:
                key = self._ended.pop(0)
                forgotten = fx.KeepForgets(calls=(f"call{self._count}",))
                return [fx.Forget(run_id=key), forgotten]
            case 2:
                return [self._token(which)]
            case 3 | 4:
                return [self._drain(which) if kind == 3 else self._quorum(which)]
        if run_id not in self._alive:
            return [self._create(run_id)]
        return [self._persist(self._alive[run_id], self._record())]

    def _create(self, run_id: str) -> fx.Effect:
        generation = self._generations[run_id] = self._generations.get(run_id, 0) + 1
        key = self._alive[run_id] = key_of(run_id, generation)
        created = rec.RunCreated(run_id=run_id, spec=a_spec(1), generation=generation)
        return self._persist(key, created)

    def _record(self) -> rec.Record:
        match self._count % 4:
            case 0:
                return rec.AgentAdmitted(agent=an_agent(f"a{self._count}"), at_s=self.now)
            case 1:
                return rec.FailuresCounted(heard={f"a{self._count}.1": 3}, count=2)
            case 2:
                record = a_record(self._count, traceback="é" * 200, size_bytes=3000)
                return rec.FailureRecorded(record=record)
        return rec.CallNoted(
            kind=rec.CallKind.ACCESS_REFUSED, reason='"', caller="c", at_s=self.now
        )

    def _end(self, run_id: str) -> list[fx.Effect]:
        key = self._alive.pop(run_id)
        verdict = Verdict(cause=VerdictCause.STOPPED, reason="", restart_count=0, round_id=None)
        self._ended.append(key)
        return [self._persist(key, rec.RunEnded(verdict=verdict, at_s=self.now))]

    def _drain(self, which: int) -> fx.Effect:
        drain = KeptDrain(name=f"h/{which}%", reason="é", at_s=self.now)
        return fx.KeepDrain(drain=drain, is_kept=bool(self._count % 3))

    def _quorum(self, which: int) -> fx.Effect:
        members = {0: f"a:{self._count}", 1: "é/%"}
        quorum = KeptQuorum(job=f"job{which}/", quorum_id=self._count, members=members)
        return fx.KeepQuorum(quorum=quorum, is_kept=bool(self._count % 3))

    def _token(self, which: int) -> fx.Effect:
        token_id = f"token{which:03}"
        token = KeptToken(
            token_id=token_id,
            role=Role.JOIN,
            secret_sha256=secret_sha256("s"),
            created_at=float(which),
            revoked_at=self.now if self._count % 2 else None,
        )
        return fx.KeepToken(token_id=token_id, token=token if self._count % 3 else None)

    @staticmethod
    def _persist(key: str, record: rec.Record) -> fx.Effect:
        return fx.Persist(run_id=key, record=record)


def shown(journal: Journal) -> object:
    """Return all that a journal holds, in its order, to be compared."""
    states = deepcopy(list(journal.runs.states.values()))
    tokens = sorted(journal.tokens.tokens.items())
    quorums = sorted(journal.quorums.items())
    return states, tokens, list(journal.drains.items()), quorums, journal.forgets


def a_large_run(agents: int) -> list[fx.Effect]:
    """Return what the start of a run of so many agents brings, all in one batch."""
    long = "x" * 200
    identities = [an_agent(f"host{number:05}-{long}") for number in range(agents)]
    records: list[rec.Record] = [
        rec.RunCreated(run_id="large", spec=a_spec(1, agents)),
        *(rec.AgentAdmitted(agent=agent) for agent in identities),
        rec.RoundStarted(
            round_id=0,
            participants=tuple(agent.incarnation for agent in identities),
            master_addr="10.0.0.1",
            master_port=4000,
            reason="all are there",
        ),
    ]
    return [fx.Persist(run_id="large", record=record) for record in records]


async def lead(etcd: Etcd, keys: Keys, name: bytes = b"me") -> int:
    """Depose who leads, lead, and return the term."""
    await etcd.commit(Transaction(conditions=(), then=(Delete(keys.leader),)))
    made = Transaction(conditions=(IsCreated(keys.leader, 0),), then=(Put(keys.leader, name),))
    return (await etcd.commit(made)).revision
