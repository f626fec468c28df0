"""Files of workers of ``drumbeat.launch``: their errors, and their output."""

import pytest

from tests.support.cluster import Cluster
from tests.support.launches import run

pytestmark = pytest.mark.timeout(300)


@pytest.mark.slow
def test_the_error_file_of_a_worker_is_there_and_recorded_further_out(cluster: Cluster) -> None:
    run(
        cluster,
        """
        from worker_sdk import record

        def work():
            raise ValueError("no such shard")

        os.environ["TORCHELASTIC_ERROR_FILE"] = own = os.path.abspath("own.json")
        for more in ({"log_dir": "logs"}, {}):
            error = failure_of(record(drumbeat.launch(config(1, **more), work)))
            failure = error.failures[0]
            inner = json.load(open(own))["message"]
            assert inner["message"] == "ValueError: no such shard", inner
            assert "in work" in inner["extraInfo"]["py_callstack"]
            assert inner["errorCode"] == 1
            os.unlink(own)
            if more:
                child = json.load(open(failure.error_file))
                assert failure.error_file.startswith(os.path.abspath("logs") + "/")
                assert failure.error_file_data == child
                assert failure.timestamp == int(child["message"]["extraInfo"]["timestamp"])
            else:
                assert failure.error_file == "<N/A>", "files that are not kept"
        """,
    )


@pytest.mark.slow
def test_output_goes_where_the_program_says(cluster: Cluster) -> None:
    process = run(
        cluster,
        """
        from pathlib import Path
        from drumbeat.agent.errors import LogsSpecsUnusable
        from drumbeat.agent.multiprocessing import DefaultLogsSpecs, Std

        def work():
            print(f"line of {os.environ['RANK']}")

        more = dict(log_dir="kept", tee=Std.OUT, local_ranks_filter=[0])
        prefix = dict(log_line_prefix_template="<${rank}>", duplicate_stdout_filters=["of 0"])
        drumbeat.launch(config(**more, **prefix), work)()
        (kept,) = Path("kept").glob("*/attempt_0")
        assert (kept / "1" / "stdout.log").read_text() == "line of 1\\n"
        assert (kept / "filtered_stdout.log").read_text() == "<0>line of 0\\n"

        class Mine(DefaultLogsSpecs):
            def reify(self, envs):
                dest = super().reify(envs)
                dest.stdouts = {rank: f"mine-{rank}" for rank in envs}
                return dest

        drumbeat.launch(config(logs_specs=Mine("of-mine", redirects=Std.ALL)), work)()
        assert Path("mine-1").read_text() == "line of 1\\n"

        class Broken(Mine):
            def __reduce__(self):
                return int, ("no number",)

        try:
            drumbeat.launch(config(logs_specs=Broken("broken")), work)()
        except LogsSpecsUnusable as error:
            assert "the logs specs Broken cannot be used: ValueError: invalid" in str(error)
        else:
            raise AssertionError("it was launched")
        """,
    )
    assert "<0>line of 0" in process.stdout
    assert "line of 1" not in process.stdout
