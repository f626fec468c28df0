"""Pure. The named limits of a coordinator's shell: of what waits, of what is sent."""

from msgspec import Struct


class Limits(Struct, frozen=True, kw_only=True):
    """Bounds of what waits and of what is sent; the core has its own, in its ``Policy``."""

    message_bytes_max: int = 1024 * 1024  # of one incoming message; gRPC refuses larger ones
    # A traceback and the end of the error output fit; within them a message is cut by its agent.
    failure_record_bytes_max: int = 256 * 1024
    failure_message_bytes_max: int = 64 * 1024
    # Of the failure records that wait for the core; streams of more are not read.
    failure_queue_bytes_max: int = 64 * 1024 * 1024
    # Sessions and events that wait for the core; streams that would add more are refused.
    # A session is one of them however much it says: of its beats the latest waits.
    event_queue_max: int = 100_000
    # Calls of one caller that are under way; those of more are refused. Twice what the largest
    # run has, for all its agents may share a token and be connected twice while they come back.
    streams_per_caller_max: int = 100_000
    # Workers of one caller's agents, beyond the first few of each agent; the sessions of more are
    # refused. The coordinator keeps up to 3 KB for each worker.
    workers_free_per_session: int = 8
    workers_per_caller_max: int = 100_000
    # Calls of which the caller is not asked for, as of probes of health. One more ends the oldest:
    # a probe is over at once, so that who holds many calls keeps no probe away.
    anonymous_calls_max: int = 1_000
    # Streams of events under way, and those of one caller; one more is refused. For each a flag is
    # kept and nothing else.
    watches_max: int = 1_000
    watches_per_caller_max: int = 250
    # Readers of workers' output at once, of all runs; one more is refused.
    log_readers_max: int = 16
    log_readers_per_caller_max: int = 8
    # The end of workers' output that is kept of a round: so many bytes of each stream (less than an
    # agent brings at once), of so many ranks, those that tell most. What agents bring beyond the
    # third is not taken. Rounds that are read at once, of all runs; of more nothing is kept.
    log_tail_bytes_max: int = 31 * 1024
    log_tail_ranks_max: int = 64
    log_tails_round_bytes_max: int = 6 * 1024 * 1024
    log_tails_reading_max: int = 16
    # Of all rounds of one run, and of all runs, on disk; the oldest rounds are dropped.
    log_tails_run_bytes_max: int = 16 * 1024 * 1024
    log_tails_bytes_max: int = 256 * 1024 * 1024
    # Questions for stacks at once, of all runs; one more is refused.
    stack_questions_max: int = 4
    stack_questions_per_caller_max: int = 2
    # For each message of an answer. A caller that takes nothing in this time is refused the rest.
    send_timeout_s: float = 20.0
    # What one of them is given; agents then read no further, and what they keep no longer is lost
    # to this reader, which is told how many lines. A message counts as 4 KiB at least.
    log_bytes_per_s_max: int = 4 * 1024 * 1024
    # A new stream that has not said Hello by then is ended, and any other call without its message.
    hello_timeout_s: float = 10.0
    # Before it is known who is there. More connections than a run has agents; fewer if the
    # process may not open as many files. One more is closed at once, and its agent tries again.
    connections_max: int = 24_000
    # For TLS and the first frame of HTTP/2, then the connection is closed. 10,000 agents that
    # come at once need 8 s of a core; gRPC's clients give up after 20 s themselves.
    handshake_timeout_s: float = 20.0
    # A connection without a call is told to close after one to two times this; its client opens
    # another one when it calls. Agents always have a call.
    idle_timeout_s: float = 60.0
    # Calls of one connection at once. Clients keep more to themselves; of those that do not,
    # gRPC's core refuses them in no time of ours, whether reset at once or not.
    calls_per_connection_max: int = 100
    # Taken from a connection at once; what is sent faster than it is read waits in the kernel.
    # Unbounded, it was 80 MB a connection.
    read_bytes_max: int = 64 * 1024
    # Connections of HTTP, those of TLS that does not stand yet among them. One more ends the oldest
    # of those whose caller is not known, else the oldest of a caller that has more than its share.
    http_connections_max: int = 1_000
    # A caller's share; its calls under way beyond that are refused.
    http_connections_per_caller_max: int = 250
    # Handshakes of TLS, which cost 1 ms of the event loop each, and requests whose caller is not
    # known; so many more at once. More of them wait in their connections, and agents for none.
    http_handshakes_per_s: float = 100.0
    http_strangers_per_s: float = 200.0
    http_at_once_max: int = 200
    # For TLS, and then for each next request: its headers have to be there.
    http_request_timeout_s: float = 20.0
    # For the answer of any but a stream, with all the time that its reader takes.
    http_answer_timeout_s: float = 60.0
    # Of the first line of a request and of each header, and of what it brings besides.
    http_line_bytes_max: int = 8 * 1024
    http_body_bytes_max: int = 16 * 1024
    # Streams of the page under way; one more is refused. For each the latest of each kind waits.
    page_streams_max: int = 256
    page_streams_per_caller_max: int = 64
    # A reader of one that takes nothing in this time is left.
    page_send_timeout_s: float = 20.0
    # How long a link lets a browser in, and the browser stays in.
    page_code_life_s: float = 300.0
    page_session_life_s: float = 12 * 3600.0
    # Runs that metrics tell one by one; those of more they tell together.
    metrics_runs_max: int = 100
