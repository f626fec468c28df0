"""Which failure a run names, whatever arrives when."""

from drumbeat.coordinator.core import effects as fx
from drumbeat.model import GroupState
from tests.support.world import a_record, a_running_story, a_story


def test_a_record_of_an_earlier_life_of_the_run_id_explains_nothing() -> None:
    """Its agent was in no round of this run, though the numbers are the same."""
    story = a_running_story(2)
    story.record("a", incarnation="stranger.1", sequence=1, round_id=0, age_s=100.0)
    assert [effect.result for effect in story.of(fx.Answer)] == [False]
    story.record("b", age_s=1.0)
    story.fail("b")
    story.obey_all()
    assert [record.host for record in story.verdict("a").report.root_causes] == ["b"]


def test_a_reason_names_the_culprit_whose_record_is_under_way() -> None:
    story = a_running_story(3, restarts_max=1)
    failure = a_record(sequence=1, incarnation="b.1", host="b", rank=1, message="ValueError: boom")
    story.beat("b", GroupState.FAILED, workers_alive=0, sequence=1, failure=failure)
    assert story.state().reason.startswith("round 0 failed: rank 1 on b (exit code 1")


def test_a_reason_names_the_earliest_of_those_whose_records_are_under_way() -> None:
    """After a failure without a coordinator the first agent that is back may be a victim's."""
    story = a_running_story(3, restarts_max=1)
    story.advance(10.0)
    story.restart()
    story.advance(1.0)
    for name, rank, age_s in (("c", 2, 3.0), ("a", 0, 3.1), ("b", 1, 7.0)):
        agent = story.agents[name]
        agent.state, agent.workers_alive, agent.sequence = GroupState.FAILED, 0, 1
        agent.failure = a_record(
            incarnation=agent.identity.incarnation, host=name, rank=rank, age_s=age_s
        )
        story.back(name)
    assert story.state().reason.startswith("round 0 failed: rank 1 on b (exit code 1")


def test_a_verdict_names_what_its_record_did_not_live_to_tell() -> None:
    story = a_running_story(2)
    failure = a_record(sequence=1, incarnation="b.1", host="b", rank=1, message="ValueError: boom")
    story.beat("b", GroupState.FAILED, workers_alive=0, sequence=1, failure=failure)
    story.obey_all()
    story.advance(600.0)
    (cause,) = story.verdict("a").report.root_causes
    assert (cause.worker.rank, cause.message) == (1, "ValueError: boom")


def test_workers_that_were_done_before_the_failure_are_no_victims() -> None:
    story = a_story(2)
    story.join("a", local_world_size=4)
    story.join("b", local_world_size=4)
    story.obey_all()
    story.beat("a", workers_alive=1, workers_done=3)
    story.record("b")
    story.beat("b", GroupState.FAILED, workers_alive=0, workers_done=1)
    story.obey_all()
    report = story.verdict("a").report
    assert (report.victims_count, report.world_size) == (3, 8)
