"""Pure. Numbers that hold for a coordinator and for every run that it holds."""

from __future__ import annotations

from msgspec import Struct

from drumbeat.coordinator.core.run.adaptive_timeouts import LearningRules
from drumbeat.model import Pace


class Policy(Struct, frozen=True, kw_only=True):
    """Limits, graces and the pace of agents. Durations are seconds."""

    base_pace: Pace = Pace(heartbeat_interval_s=1.0, lease_s=5.0, reconnect_delay_max_s=0.25)
    agents_at_base_pace: int = 2_000  # of a run; for more see `Membership.follow`
    # The coordinator is behind if a lease ends while this share of all connected members, and so
    # many of them at least, are suspect; then it stretches the pace, see `Load`.
    behind_share: float = 0.1
    behind_min: int = 100
    stretch_max: int = 8
    stretch_held_s: float = 600.0
    agents_max: int = 20_000  # of a run, standbys included; twice the largest jobs we know of
    # Workers of all agents of a run; an agent with more is refused. Of each it is kept where it
    # stands, up to a kilobyte, so that no agent makes it many by saying that it has thousands.
    workers_max: int = 400_000
    runs_max: int = 1_000  # live runs; a hello of one more is refused
    # Runs that one caller's agents created and that wait for agents; a hello that would create one
    # more is refused. Such a run needs no connection until its join timeout is over.
    runs_waiting_per_caller_max: int = 250
    # The longest join timeout, which is the longest that `agent join` takes; a hello that would
    # create a run with a longer one is refused.
    join_timeout_max_s: float = 30 * 86400.0
    # What is remembered of runs that have ended; the oldest is forgotten first.
    runs_ended_max: int = 1_000
    runs_ended_per_id_max: int = 20
    runs_ended_bytes_max: int = 256 * 1024 * 1024
    # Agents whose failure records are told from repeated ones; those of more are not kept.
    incarnations_heard_max: int = 200_000
    # What the failure records of all runs may take; each may have the least of it, whatever
    # others have. Of a run that has more, those that tell least are only counted.
    failures_bytes_max: int = 256 * 1024 * 1024
    failures_bytes_least: int = 256 * 1024
    failures_bytes_per_run_max: int = 8 * 1024 * 1024
    failures_kept_max: int = 1_000
    history_max: int = 1_000  # decisions kept of a run; the oldest is forgotten first
    # Workers whose place is kept when a round fails. They go into the journal and to every
    # agent: some 100 bytes each.
    standings_shown_max: int = 256
    learning: LearningRules = LearningRules()
    tokens_max: int = 1_000  # valid ones; one more is refused
    # Revoked and expired ones that are remembered; those that ended first are forgotten first.
    tokens_ended_max: int = 1_000
    drains_max: int = 1_000  # those that hold; one more is refused. As many lifted ones are known
    # Jobs with replica groups whose latest quorum is kept; of more, one without live groups is
    # forgotten.
    quorums_kept_max: int = 2_000
    # Of the hosts of all runs, how many may be excluded at once; one may in any case, with 0 none.
    exclude_max_percent: float = 2.0
    allows_rehearsals: bool = False  # operators may have faults injected into runs
    # What was refused of a run: of one caller and for one reason it is noted once in that time.
    refusals_interval_s: float = 60.0
    refusals_heard_max: int = 10_000  # callers and reasons in that time; more are not noted
    # A broken stream may be back for this long: an agent tries three times within 350 ms.
    reconnect_grace_s: float = 0.5
    # The same for members a restarted coordinator remembers or whose token was revoked, and the
    # longest that missed agents delay a decision on a failed group.
    restart_grace_s: float = 15.0
    # Whether this coordinator leads after another one, or after itself: then agents that know
    # several coordinators were cut off moments ago, see `rejoin_s`.
    is_successor: bool = False
    # Agents that know several coordinators notice within this time that theirs is silent, and
    # some notice after half of it.
    silence_noticed_s: float = 4.0
    # With several coordinators, whether agents look for another one if this one is silent for two
    # seconds. Then one that notices a deadline so late gives them as long to come back as one
    # that restarts, also those whose streams break a little later.
    has_others: bool = False
    deaf_s: float = 0.4
    pulse_s: float = 1.0  # the longest time without a deadline that could be noticed late
    forgiving_s: float = 1.0
    # How much longer than the stop timeout a failed run waits for workers and records.
    report_wait_s: float = 10.0
    # How long a drain, a stop, a planned restart and a scale-up wait at most for training that
    # wants to save first; one that does not ask is not waited for.
    checkpoint_grace_s: float = 300.0
    progress_interval_s: float = 2.0  # how often waiting agents are told how it goes
    # Such messages to all agents of a run together; the more agents, the rarer they are for each.
    progress_messages_per_s: int = 500
    # How many members of a run are told of a new state in one turn: others have theirs in between.
    told_per_turn: int = 250
    # A deadline noticed this late means that the coordinator itself stood still; that time
    # counts in no silence, because beats could not be read. Short, because a stop little
    # longer than a lease leaves no more to see.
    stall_s: float = 0.1

    def return_grace_s(self, pace: Pace) -> float:
        """Return how long members have to come back who could not for a while."""
        return max(self.restart_grace_s, 2 * pace.reconnect_delay_max_s)

    def rejoin_s(self, pace: Pace) -> float:
        """Return how long a new leader waits for the next agent after one has come back.

        All agents of a run lost the same leader in the same moment, and ask the same addresses.
        So two of them come back at most as far apart as one notices a silent leader sooner than
        the other, and delays its next attempt longer. A silence shorter than a lease ends no agent.
        """
        return max(pace.lease_s, self.silence_noticed_s + pace.reconnect_delay_max_s)
