"""Shell. One call of a wrapped function: its iterations, until all workers complete one."""

import contextlib
import gc
import itertools
import logging
import os
import sys
import threading
import traceback
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from queue import Empty, SimpleQueue
from time import monotonic
from typing import Any

from drumbeat.worker.v1 import iteration_pb2, worker_pb2
from worker_sdk.errors import bounded, describe
from worker_sdk.inprocess import errors, process_groups, ranks
from worker_sdk.inprocess.arguments import call_with, with_instance
from worker_sdk.inprocess.hooks import flattened
from worker_sdk.inprocess.restart import machine
from worker_sdk.inprocess.restart.call_wrapper import AgentLink, CallWrapper, Current, Plan
from worker_sdk.inprocess.restart.interrupt import Atomic, Interrupter
from worker_sdk.inprocess.restart.machine import Act, Enter, Left, Notice, Order, Send, Word
from worker_sdk.inprocess.restart.progress import Ticker
from worker_sdk.inprocess.state import Mode, initial_state, local_rank, set_environment
from worker_sdk.interpreter.main_thread import main_stack
from worker_sdk.interpreter.signal_wakeup import Mailbox

log = logging.getLogger("worker_sdk")

Kind = iteration_pb2.InterruptionKind

# Less than a failure record holds: the whole message must pass a limit of 64 KiB.
MESSAGE_BYTES_MAX, TRACEBACK_BYTES_MAX = 4 * 1024, 48 * 1024
COLLECTIONS_MAX = 3  # one may make more garbage; a program that always does must not hold us up
CHAIN_MAX = 64  # exceptions whose frames are emptied: one, what it came from, and so on

TRIES_TOLD = 8  # after so many, some 2 s, it is told why the main thread does not leave
_LEFT_BEHIND = "the others go on without this worker after barrier_timeout (docs/inprocess.md)"

_OUR_FOLDER = f"{Path(__file__).parent}{os.sep}"


class Monitor:
    """The thread that hears of interruptions, and brings the main thread out of them.

    It owns the iteration that the call is in. What happens reaches it through one queue, its
    answers the main thread through another: a thread may be interrupted while it writes to either.
    Made and closed by the main thread. ``abort`` is called on this thread.
    """

    def __init__(self, link: AgentLink, abort: Callable[[], None], *, cleanup_s: float) -> None:
        self._link = link
        self._abort = abort
        self._iteration = machine.WorkerIteration(cleanup_s)
        self._events: SimpleQueue[machine.Event] = SimpleQueue()
        self._answers: Mailbox[Order] = Mailbox()
        self.tell = put = self._events.put
        """Tell an event; for any thread."""
        self._interrupter = Interrupter(lambda: put(Notice.RAISED), lambda: put(Notice.DROPPED))
        self.run_interruptibly = self._interrupter.run
        self.atomic = Atomic(self._interrupter.interrupt)
        self._tries = 0  # to interrupt the main thread in this iteration
        self._thread = threading.Thread(target=self._run, name="worker_sdk monitor", daemon=True)

    def start(self) -> None:
        """Begin to hear orders."""
        self._thread.start()
        self._link.attachment.on_order(self._hear)

    def close(self) -> None:
        """End the thread; harmless if it was not started."""
        self._link.attachment.on_order(None)
        if self._thread.ident is not None:
            self.tell(Left(is_final=True))
            self._thread.join()
        self._answers.close()
        self._interrupter.close()

    def ask(self, event: Enter | Left) -> Order:
        """Tell what the main thread does, and wait for the answer; raises if no iteration follows.

        Once that is an interruption, all is aborted, and nothing will be raised any more.
        """
        self.tell(event)
        answer = self._answers.get()
        if answer.word is Word.LOST:
            raise errors.RestartError("the agent takes no more part in restarts of this worker")
        if answer.word is Word.ABORT:
            raise errors.RestartAbort(answer.reason)
        return answer

    def _hear(self, order: worker_pb2.WorkerOrder | None) -> None:
        if order is None:
            self.tell(Order(-1, Word.LOST))
        elif (name := order.WhichOneof("kind")) is not None:  # else it is newer than this code
            content = getattr(order, name)
            reason = getattr(content, "reason", "") or f"the agent orders: {name}"
            begin = order.begin if name == "begin" else None
            self.tell(Order(order.iteration, Word(name), reason, begin))

    def _run(self) -> None:
        while self._iteration.phase is not machine.Phase.OVER:
            self._handle_next()  # what it tells of lives no longer than that

    def _handle_next(self) -> None:
        deadline = self._iteration.deadline
        try:
            left_s = None if deadline is None else max(deadline - monotonic(), 0)
            event = self._events.get(timeout=left_s)
        except Empty:
            event = Notice.DEADLINE
        for effect in self._iteration.handle(event, now=monotonic()):
            self._execute(effect)

    def _execute(self, effect: machine.Effect) -> None:
        match effect:
            case Send(step, iteration, content):
                fields: Any = {step: content}
                message = worker_pb2.WorkerStep(iteration=iteration, **fields)
                getattr(message, step).SetInParent()
                self._link.send_step(message)
            case Order():
                self._answers.put(effect)
            case Act.RAISE:
                self._interrupter.reason = self._iteration.reason
                self._tries += 1
                if self._tries == TRIES_TOLD and (why := self._interrupter.obstacle()):
                    log.warning("the main thread can't be interrupted: %s; %s", why, _LEFT_BEHIND)
                self._interrupter.send()
            case Act.LOCK:
                self.atomic.lock.acquire()
                self.tell(Notice.LOCKED)
            case Act.UNLOCK:
                self._tries = 0
                self._interrupter.reason = None
                self.atomic.lock.release()
            case Act.ABORT:
                try:
                    self._abort()
                except BaseException:  # whatever it is, this thread must go on
                    log.exception("abort failed; the restart goes on")


class Call:
    """The iterations of one call under an agent; made and run by the main thread."""

    def __init__(self, plan: Plan, link: AgentLink, function: partial[Any]) -> None:
        if threading.current_thread() is not threading.main_thread():
            raise RuntimeError("a wrapped function can only be called in the main thread")
        distributed = process_groups.distributed()
        if distributed is not None and distributed.is_initialized():
            raise RuntimeError(
                "torch.distributed is initialized already: initialize it in the wrapped function,"
                " which is restarted with other ranks"
            )
        link.begin()
        self._plan, self._link, self._function = plan, link, function
        self._local_rank = local_rank() or 0
        self._first = initial_state()
        self._spec = spec(plan, self._first.world_size)
        groups = (rule for rule in plan.rules if isinstance(rule, ranks.FilterCountGroupedByKey))
        self._group_rule = next(groups, None)
        self._aborts_torch = any(
            isinstance(part, process_groups.AbortTorchDistributed) for part in flattened(plan.abort)
        )
        self._remains: list[BaseException] = []
        """What the function raised here in the iteration that was interrupted."""
        self._monitor = Monitor(link, self._abort, cleanup_s=plan.timing["soft_timeout"])
        self._ticker = Ticker(plan.timing, link.limits, self._on_silence)
        self._call = CallWrapper(self._first, self._monitor.atomic)

    def run(self) -> Any:
        """Return what the function returned in the iteration that all completed."""
        Current.call = self._call
        try:
            self._monitor.start()
            self._ticker.start()
            with older_objects_left_out():
                for count in itertools.count():
                    group = self._group_rule.group_of(self._call.state) if self._group_rule else ""
                    entered = worker_pb2.Entered(spec=self._spec, group=group)
                    self._link.iteration += 1
                    # It may be interrupted before it begins.
                    begin = self._monitor.ask(Enter(self._link.iteration - 1, entered)).content
                    if isinstance(begin, worker_pb2.WorkerBegin):
                        is_completed, value = self._run_iteration(begin, count)
                        if is_completed:
                            return value
                    free(self._remains)
        except BaseException as error:
            self._end(error)
            raise
        finally:
            Current.call = None
            process_groups.let_go()
            self._ticker.close()
            self._monitor.close()

    def _run_iteration(self, begin: worker_pb2.WorkerBegin, count: int) -> tuple[bool, Any]:
        """Return whether all completed it, and what the function returned here."""
        process_groups.let_go()  # all are here
        is_active = begin.HasField("active_rank")
        state = replace(
            self._first,
            rank=begin.rank,
            world_size=begin.world_size,
            active_rank=begin.active_rank if is_active else None,
            active_world_size=begin.active_world_size,
            iteration=count,
            mode=Mode.ACTIVE if is_active else Mode.INACTIVE,
        )
        state = ranks.filtered(state, self._plan.local_filter)
        set_environment(state, begin)
        self._call._state = state  # noqa: SLF001 - it is ours
        self._ticker.run(is_judging=True)
        awaited = process_groups.store_awaited_in_python
        with awaited() if self._aborts_torch else contextlib.nullcontext():
            value, error = self._monitor.run_interruptibly(self._body)
        self._ticker.pause()
        left = Left()
        if error is not None:
            _drop_our_frames(error)
            if not isinstance(error, Exception | errors.RankShouldRestart):
                raise error
            cause = interruption(self._local_rank, Kind.INTERRUPTION_KIND_EXCEPTION, error)
            left = Left(cause.message, worker_pb2.Interrupted(interruption=cause))
        answer = self._monitor.ask(left)
        if answer.word is Word.COMPLETE:
            return True, value
        log.info("iteration %d is interrupted: %s", count, answer.reason)
        self._link.limits.clear()
        self._ticker.run(is_judging=False)
        self._clean_up(error if isinstance(error, Exception) else None)
        self._ticker.pause()
        if error is not None:
            self._remains.append(error)
        return False, None

    def _body(self) -> Any:
        self._plan.prepare(self._call.state)
        if self._call.state.mode is not Mode.ACTIVE:
            return None  # a spare: it waits with those that completed
        return with_instance(self._function, self._call)()

    def _abort(self) -> None:
        call_with(self._plan.abort, self._call.state, None)

    def _on_silence(self) -> None:
        """The soft timeout is over; on the ticker's thread, while the main thread can't leave."""
        # Where the main thread is, without our own frames around the user's.
        frames = itertools.takewhile(
            lambda frame: not frame.filename.startswith(_OUR_FOLDER), main_stack()
        )
        stack = "".join(traceback.format_list(list(frames)[::-1]))
        text = "no progress within the soft timeout"
        cause = interruption(self._local_rank, Kind.INTERRUPTION_KIND_SOFT_TIMEOUT, text, stack)
        content = worker_pb2.Interrupted(interruption=cause)
        self._monitor.tell(Order(self._link.iteration - 1, Word.INTERRUPT, text, content))

    def _clean_up(self, error: Exception | None) -> None:
        """Run the hooks that come after an interruption; one that fails ends this worker."""
        if self._aborts_torch:
            process_groups.settle()
        state, plan = replace(self._call.state, fn_exception=error), self._plan
        for name, hook in (("finalize", plan.finalize), ("health check", plan.health_check)):
            try:
                call_with(hook, state, error)
            except Exception as failure:
                if failure.__cause__ is None and failure is not error:
                    failure.__cause__ = error
                raise errors.HealthCheckError(f"{name} failed: {failure}") from failure

    def _end(self, error: BaseException) -> None:
        """Tell that this worker takes no part any more."""
        _drop_our_frames(error)
        match error:
            case errors.HealthCheckError():  # the function's own would have interrupted
                kind = Kind.INTERRUPTION_KIND_UNHEALTHY
            case Exception():
                kind = Kind.INTERRUPTION_KIND_EXCEPTION
            case SystemExit(code=None | 0):
                kind = Kind.INTERRUPTION_KIND_EXITED
            case _:
                kind = Kind.INTERRUPTION_KIND_BASE_EXCEPTION
        ended = worker_pb2.Terminated(interruption=interruption(self._local_rank, kind, error))
        step = worker_pb2.WorkerStep(iteration=max(self._link.iteration - 1, 0), terminated=ended)
        self._link.send_step(step, is_last=True)


def free(remains: list[BaseException]) -> None:
    """Free what these exceptions left behind, and forget them; then all other garbage.

    Communicators end when they are freed. Frames come first: the collector takes the queues of a
    loader in a cycle apart before it is freed, which then can't tell its worker processes, and
    waits 5 s for each of them.
    """
    # `_MultiProcessingDataLoaderIter._shutdown_workers` of torch 2.13 looks it up when it waits:
    # worker processes still busy after 5 ms are ended, their batch is not waited for.
    name = "MP_STATUS_CHECK_INTERVAL"
    with process_groups.replaced("torch.utils.data._utils", name, lambda _: 0.005):
        while remains:
            error: BaseException | None = remains.pop()
            for _ in range(CHAIN_MAX):
                if error is not None:
                    traceback.clear_frames(error.__traceback__)
                    error = error.__cause__ or error.__context__
        error = None
        collect()
    if (multiprocessing := sys.modules.get("multiprocessing")) is not None:
        multiprocessing.active_children()  # takes note of those that have ended


def collect() -> None:
    """Free what is in cycles that nothing refers to."""
    for _ in range(COLLECTIONS_MAX):
        if not gc.collect():
            return


@contextlib.contextmanager
def older_objects_left_out() -> Iterator[None]:
    """Have collections pass over what is there now: with torch 170,000 objects, 0.1 s each time.

    Cycles of it that become garbage are freed afterwards. Not if the program does so itself.
    """
    is_ours = not gc.get_freeze_count()
    if is_ours:
        collect()  # of what is garbage already nothing is kept
        gc.freeze()
    try:
        yield
    finally:
        if is_ours:
            gc.unfreeze()


def _drop_our_frames(error: BaseException) -> None:
    """Let the traceback of what the user's code raised begin with the user's code."""
    trace = error.__traceback__
    while trace is not None and trace.tb_frame.f_code.co_filename.startswith(_OUR_FOLDER):
        trace = trace.tb_next
    if trace is not None:
        error.__traceback__ = trace


def interruption(
    local_rank: int, kind: Kind.ValueType, cause: BaseException | str, stack: str = ""
) -> iteration_pb2.Interruption:
    """Return what went wrong, as texts that fit on the wire."""
    message = cause
    if isinstance(message, BaseException):
        inner = describe(message)["message"]
        message, stack = inner["message"], inner["extraInfo"]["py_callstack"]
    return iteration_pb2.Interruption(
        local_rank=local_rank,
        kind=kind,
        message=bounded(message, MESSAGE_BYTES_MAX),
        traceback=bounded(stack, TRACEBACK_BYTES_MAX),
    )


def spec(plan: Plan, world_size: int) -> iteration_pb2.InprocessSpec:
    """Return what all workers must agree on; no group is larger than ``world_size``."""
    message = iteration_pb2.InprocessSpec(
        world_size_min=plan.limits.min_world_size,
        active_world_size_min=plan.limits.min_active_world_size,
        iterations_max=plan.limits.max_iterations or 0,
    )
    for name in ("last_call_wait", "barrier_timeout", "completion_timeout"):
        getattr(message, name).FromNanoseconds(round(plan.timing[name] * 1e9))
    for rule in plan.rules:
        match rule:  # others have no effect
            case ranks.ShiftRanks():
                message.rules.add(shift=iteration_pb2.ShiftRanks())
            case ranks.FillGaps():
                message.rules.add(fill=iteration_pb2.FillGaps())
            case ranks.MaxActiveWorldSize(max_active_world_size=int(most)):
                message.rules.add(active_max=most)
            case ranks.ActiveWorldSizeDivisibleBy(divisor=divisor):
                message.rules.add(active_divisor=divisor)
            case ranks.FilterCountGroupedByKey():
                sizes = iteration_pb2.GroupSizes(allowed=rule.allowed_sizes(world_size))
                message.rules.add(groups=sizes)
    return message
