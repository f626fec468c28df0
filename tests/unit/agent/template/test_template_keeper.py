"""What the supervisor decides about the template of its workers."""

from typing import Any

import msgspec
import pytest
from msgspec.structs import replace

from drumbeat.agent.model.messages import (
    KillWorkers,
    Preload,
    SignalWorkers,
    StartWorkers,
    StopWorkers,
    TemplateNews,
    TemplateReported,
    WorkerExited,
    WorkersStopped,
    WorkerStart,
)
from drumbeat.agent.workers.supervisor import template_keeper as tk
from drumbeat.agent.workers.supervisor.template_keeper import Carry, TemplateKeeper, Warmth

PRELOAD = Preload(argv=("python", "x.py"), env={}, modules=("torch",), timeout_s=10.0)
LAUNCH = tk.Launch(preload=PRELOAD)
LOADED = tk.Loaded(seconds=1.5, modules=7)
LEFT_OUT = tk.LeftOut(modules=("a",), instead=("b",), why="w")
EXITED = WorkerExited(round_id=0, local_rank=0, pid=1, exit_code=0, is_stopped=False, ended_at=0.0)


def start(round_id: int = 0) -> StartWorkers:
    workers = (WorkerStart(local_rank=0, env={}),)
    return StartWorkers(round_id=round_id, argv=("python", "x.py"), env={}, workers=workers)


def stop(round_id: int = 0) -> StopWorkers:
    return StopWorkers(round_id=round_id, signum=15, timeout_s=1.0)


def usr1(round_id: int = 0) -> SignalWorkers:
    return SignalWorkers(round_id=round_id, signum=10)


class Kept:
    """A keeper whose template loads, and whose invariants are checked after each event."""

    def __init__(self, preload: Preload, *events: tk.Event) -> None:
        self.keeper = TemplateKeeper(preload)
        assert self.keeper.start(now=0.0) == [tk.Launch(preload=preload)]
        for event in events:
            self(event)

    def __call__(self, event: tk.Event, now: float = 0.0) -> list[tk.Effect]:
        effects = self.keeper.handle(event, now=now)
        self.keeper.check_invariants()
        return effects

    def said(self, event: tk.Event, now: float = 0.0) -> list[tuple[TemplateNews, str]]:
        effects = self(event, now)
        return [(each.news, each.text) for each in effects if isinstance(each, TemplateReported)]


def ready(**more: Any) -> Kept:
    return Kept(Preload(argv=("python", "x.py"), env={}, modules=("torch",), **more), LOADED)


def test_starts_wait_for_a_template_that_is_loading_and_keep_their_order() -> None:
    kept = Kept(PRELOAD)
    assert [kept(each) for each in (start(), start(), usr1())] == [[], [], []]
    told = TemplateReported(
        news=TemplateNews.READY, text="preloaded 7 modules in 1.5 s, once for all workers"
    )
    carried = [Carry(command=start(), is_warm=True), Carry(command=usr1())]
    assert kept(LOADED) == [told, *carried]
    assert kept(start(1)) == [Carry(command=start(1), is_warm=True)]


def test_a_stop_takes_a_start_back_that_waits() -> None:
    kept = Kept(PRELOAD, start(3), usr1(3))
    assert kept(stop(2)) == [Carry(command=stop(2))]
    assert kept(stop(3)) == [Carry(command=stop(3))]
    assert [each for each in kept(LOADED) if isinstance(each, Carry)] == []


def test_a_kill_takes_a_start_back_and_says_so() -> None:
    """The worker group answers for the rounds that it knows; this one is none of them."""
    kept = Kept(PRELOAD, start(3))
    assert kept(KillWorkers()) == [Carry(command=KillWorkers()), WorkersStopped(round_id=3)]
    assert kept(KillWorkers()) == [Carry(command=KillWorkers())]


@pytest.mark.parametrize("is_loaded", [False, True])
def test_what_is_unfit_is_given_up_for_good(*, is_loaded: bool) -> None:
    kept = Kept(PRELOAD, LOADED if is_loaded else start())
    text = "workers start without preloading: a thread"
    told = TemplateReported(news=TemplateNews.COLD, text=text)
    held = [] if is_loaded else [Carry(command=start())]
    assert kept(tk.Unfit(why="a thread")) == [tk.End(), told, *held]
    assert kept(start(1)) == [Carry(command=start(1))]
    for late in (tk.Ended(how="ended"), LOADED, tk.Changed(path="a.py"), tk.RoundEnded()):
        assert kept(late) == []


def test_a_template_that_dies_is_replaced_and_holds_nothing_up() -> None:
    kept = Kept(PRELOAD, start())
    effects = kept(tk.Ended(how="was ended by SIGKILL"))
    assert effects[1:] == [Carry(command=start()), tk.End(), LAUNCH]
    assert isinstance(effects[0], TemplateReported)


def test_a_template_that_dies_again_and_again_is_given_up() -> None:
    kept = Kept(PRELOAD)
    news = [kept.said(tk.Ended(how="ended with exit code 1"))[0] for _ in range(tk.DEATHS_MAX)]
    assert [kind for kind, _ in news] == [TemplateNews.ENDED] * 2 + [TemplateNews.COLD]
    assert news[-1][1].endswith("the process that preloads ended with exit code 1, 3 times")


def test_a_round_in_between_makes_up_for_a_death() -> None:
    kept = Kept(PRELOAD)
    for _ in range(2 * tk.DEATHS_MAX):
        kept(LOADED)
        kept(tk.Forked())
        assert LAUNCH in kept(tk.Ended(how="ended"))


def test_a_template_that_loads_for_too_long_is_given_up() -> None:
    kept = Kept(PRELOAD, start())
    assert kept.keeper.deadline == 10.0
    assert kept(tk.DeadlineReached(), 9.9) == []
    end, told, carried = kept(tk.DeadlineReached(), 10.0)
    assert (end, carried) == (tk.End(), Carry(command=start()))
    assert "--preload-timeout, 10 s" in str(told)
    assert kept.keeper.deadline is None


def test_sources_are_checked_between_rounds_and_what_has_changed_is_loaded_anew() -> None:
    kept = ready()
    assert kept(tk.RoundEnded()) == [tk.CheckSources()]
    effects = kept(tk.Changed(path="/src/mine.py"))
    assert [type(each) for each in effects] == [TemplateReported, tk.End, tk.Launch]
    assert kept(tk.RoundEnded()) == []
    assert kept(start(1)) == []


def test_a_template_is_renewed_after_each_round_if_asked_for() -> None:
    kept = ready(is_refreshed=True)
    assert [type(each) for each in kept(tk.RoundEnded())] == [tk.End, tk.Launch]


def test_late_imports_are_looked_for_after_a_while_and_at_the_end_and_told_once() -> None:
    kept = ready()
    kept(tk.Forked(), 5.0)
    assert kept.keeper.deadline == 5.0 + tk.LATE_LOOK_S
    assert kept(tk.DeadlineReached(), 5.0 + tk.LATE_LOOK_S) == [tk.ReadLateImports()]
    assert kept.said(tk.LateImports(modules=(("quick", 0.09),))) == []
    assert kept(EXITED) == [tk.ReadLateImports()]
    assert kept(EXITED) == []
    modules = (("mine", 0.1), ("sk", 0.3), ("sk.data", 0.1), ("tiny", 0.01), ("mine", 0.1))
    [(kind, text)] = kept.said(tk.LateImports(modules=modules))
    assert kind is TemplateNews.LATE_IMPORTS
    assert text == (
        "workers still import sk.data (0.40 s), mine (0.20 s) by themselves: "
        "use --preload torch,sk.data,mine to avoid this"
    )
    kept(tk.Forked(), 100.0)
    assert kept(EXITED) == [tk.ReadLateImports()]
    assert kept(tk.LateImports(modules=modules)) == []


@pytest.mark.parametrize(
    ("message", "expected"),
    [
        ({"type": "ready", "seconds": 1.5, "modules": 7, "notes": []}, LOADED),
        ({"type": "left_out", "modules": ["a"], "instead": ["b"], "why": "w"}, LEFT_OUT),
        ({"type": "note", "text": "slow"}, tk.Noted(text="slow")),
        ({"type": "unfit", "why": "why"}, tk.Unfit(why="why")),
        ({"type": "checked", "path": "a.py"}, tk.Changed(path="a.py")),
    ],
)
def test_messages_of_a_template_are_read(message: dict[str, object], expected: tk.Event) -> None:
    assert msgspec.convert(message, tk.News) == expected


def test_a_template_whose_files_have_not_changed_stays() -> None:
    assert ready()(tk.Changed(path="")) == []


def left_out(*modules: str, why: str = "lib.rank read RANK") -> tk.LeftOut:
    return tk.LeftOut(modules=modules, instead=("heavy",), why=why)


def test_a_module_is_left_out_by_another_template_while_starts_wait() -> None:
    kept = Kept(PRELOAD, start())
    again = tk.Launch(preload=PRELOAD, left_out=left_out("lib", "lib.rank"))
    assert kept(left_out("lib", "lib.rank")) == [tk.End(), again]
    assert kept.keeper.deadline == 10.0
    more = left_out("lib", "lib.rank", "user", why="")
    assert kept(more) == [tk.End(), tk.Launch(preload=PRELOAD, left_out=more)]
    [told, ready, carried] = kept(LOADED)
    text = "lib and 2 modules beside not preloaded, but imported by each worker: lib.rank read RANK"
    assert told == TemplateReported(news=TemplateNews.LEFT_OUT, text=text)
    assert isinstance(ready, TemplateReported)
    assert carried == Carry(command=start(), is_warm=True)


def test_what_is_left_out_stays_so_and_is_told_once_until_a_file_changes() -> None:
    kept = Kept(PRELOAD, left_out("lib"), LOADED, tk.Forked())
    again = tk.Launch(preload=PRELOAD, left_out=left_out("lib"))
    assert kept(tk.Ended(how="ended"))[-1] == again
    assert [kind for kind, _ in kept.said(LOADED)] == [TemplateNews.READY]
    assert kept(tk.Changed(path="lib.py"))[-1] == LAUNCH


def test_a_module_may_turn_out_at_a_start_to_be_one_that_is_left_out() -> None:
    kept = ready()
    effects = kept(left_out("lib"))
    assert [type(each) for each in effects] == [tk.End, tk.Launch]
    assert kept(start()) == []


def test_leaving_out_comes_to_an_end() -> None:
    kept = Kept(PRELOAD, start())
    for number in range(tk.PASSES_MAX - 1):
        assert isinstance(kept(left_out(f"m{number}", why=""))[-1], tk.Launch)
    assert kept(left_out("last"))[-1] == Carry(command=start())
    assert kept.keeper.warmth is Warmth.COLD


def test_no_advice_names_what_is_left_out() -> None:
    kept = Kept(PRELOAD, left_out("lib"), LOADED, tk.Forked())
    assert kept.said(tk.LateImports(modules=(("lib", 9.0), ("lib.data", 1.0)))) == []
    [(_, text)] = kept.said(tk.LateImports(modules=(("lib", 9.0), ("sk", 1.0))))
    assert "lib" not in text


def test_a_variable_that_is_set_too_late_is_named_once() -> None:
    kept = ready()
    event = tk.LateImports(modules=(), settings=(("HF_HOME", "hub"), ("A", "b.c")))
    [(kind, text)] = kept.said(event)
    assert kind is TemplateNews.LATE_SETTINGS
    assert text == (
        "the program sets HF_HOME (read by hub), A (read by b.c) after that was preloaded, so it "
        "may have no effect: set it where the agent is started"
    )
    assert kept.said(event) == []


def test_what_workers_share_is_told_once() -> None:
    kept = Kept(PRELOAD)
    loaded = tk.Loaded(seconds=1.5, modules=7, notes=("a drew a UUID", "a drew a UUID"))
    assert [kind for kind, _ in kept.said(loaded)] == [TemplateNews.SHARED, TemplateNews.READY]
    assert kept.said(tk.Noted(text="slow")) == [(TemplateNews.SHARED, "slow")]
    assert kept.said(tk.Noted(text="slow")) == []


def test_a_template_starts_only_workers_of_the_program_that_it_was_made_for() -> None:
    preflight = replace(start(), argv=("check",))
    kept = Kept(PRELOAD, preflight)
    assert Carry(command=preflight, is_warm=False) in kept(LOADED)
    assert kept(preflight) == [Carry(command=preflight, is_warm=False)]
    assert kept(start(1)) == [Carry(command=start(1), is_warm=True)]
