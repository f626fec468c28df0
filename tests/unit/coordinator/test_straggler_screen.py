"""Stragglers on the screen of a run."""

from drumbeat.coordinator.api.documents import overview_document
from drumbeat.coordinator.command.looking.screens import status_screen, text_of
from drumbeat.v1 import query_pb2 as pb
from drumbeat.wire.mapping import duration


def test_those_named_have_their_times_and_the_others_are_counted() -> None:
    run = pb.Run(run_id="mt5", phase=pb.RUN_PHASE_RUNNING, reason="trains")
    slow = [
        pb.Straggler(rank=rank, name=name, step_time=duration(1.8), median=duration(0.25))
        for rank, name in ((3, "gpu0"), (9, "gpu1\x1b[2J"))
    ]
    overview = pb.GetOverviewResponse(run=run, stragglers=slow, stragglers_count=30)
    shown = text_of(status_screen(overview_document(overview)))
    assert (
        "stragglers: rank 3 on gpu0 (1.8s a step, median 250ms), "
        "rank 9 on gpu1\\x1b[2J (1.8s a step, median 250ms) and 28 more\n"
    ) in shown
    del overview.stragglers[:]
    assert "stragglers" not in text_of(status_screen(overview_document(overview)))
