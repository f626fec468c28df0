"""The keeper of the template under any sequence of events."""

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from drumbeat.agent.model.messages import (
    KillWorkers,
    Preload,
    StartWorkers,
    StopWorkers,
    WorkersStopped,
    WorkerStart,
)
from drumbeat.agent.workers.supervisor import template_keeper as tk
from drumbeat.agent.workers.supervisor.template_keeper import TemplateKeeper, Warmth
from tests.support.orders import orders

PRELOAD = Preload(argv=("x",), env={}, modules=("m",), timeout_s=5.0)
WORKERS = (WorkerStart(local_rank=0, env={}),)
NEWS = st.sampled_from(
    [
        tk.Loaded(seconds=0.1, modules=1),
        tk.LeftOut(modules=("m",), instead=(), why="a variable"),
        tk.Unfit(why="a thread"),
        tk.Changed(path="a.py"),
        tk.Ended(how="ended"),
        tk.RoundEnded(),
        tk.LateImports(modules=(("m", 1.0),)),
    ]
)


class TemplateMachine(RuleBasedStateMachine):
    """A start is carried out once, or taken back by a stop, whatever becomes of templates."""

    def __init__(self) -> None:
        super().__init__()
        self.keeper = TemplateKeeper(PRELOAD)
        self.now = 0.0
        self.templates = len(self.keeper.start(now=0.0))
        self.wanted: set[int] = set()
        self.started: list[int] = []
        self.latest = -1

    def feed(self, event: tk.Event) -> None:
        for effect in self.keeper.handle(event, now=self.now):
            match effect:
                case tk.Launch():
                    self.templates += 1
                case tk.End():
                    self.templates = 0
                case tk.Carry(command=StartWorkers(round_id=round_id), is_warm=is_warm):
                    self.started.append(round_id)
                    self.wanted.discard(round_id)
                    assert not is_warm or self.templates == 1, "there is none to fork from"
                    if is_warm:
                        self.keeper.handle(tk.Forked(), now=self.now)
                case WorkersStopped(round_id=round_id):
                    assert round_id not in self.started, "it is the group that answers for it"

    @rule()
    def start(self) -> None:
        self.latest += 1
        self.wanted.add(self.latest)
        self.feed(self.start_of(self.latest))

    @precondition(lambda self: self.wanted)
    @rule()
    def start_again(self) -> None:
        self.feed(self.start_of(max(self.wanted)))

    @rule(is_kill=st.booleans())
    def stop(self, *, is_kill: bool) -> None:
        self.wanted.clear()
        stop = StopWorkers(round_id=self.latest, signum=15, timeout_s=0.0)
        self.feed(KillWorkers() if is_kill else stop)

    @rule(event=NEWS)
    def hear(self, event: tk.Event) -> None:
        if isinstance(event, tk.Ended):
            self.templates = 0
        self.feed(event)

    @rule(seconds=st.floats(0.0, 100.0))
    def wait(self, seconds: float) -> None:
        self.now += seconds
        if self.keeper.deadline is not None and self.now >= self.keeper.deadline:
            self.feed(tk.DeadlineReached())

    @invariant()
    def it_is_sound(self) -> None:
        self.keeper.check_invariants()
        assert len(set(self.started)) == len(self.started), "a round was started twice"
        assert self.templates <= 1
        assert not self.wanted or self.keeper.warmth is Warmth.LOADING, "a start was forgotten"

    @staticmethod
    def start_of(round_id: int) -> StartWorkers:
        return StartWorkers(round_id=round_id, argv=("x",), env={}, workers=WORKERS)


TestTemplateMachine = TemplateMachine.TestCase
TestTemplateMachine.settings = orders(60, steps=25)
