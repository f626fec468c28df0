import os
from pathlib import Path

import pytest

from drumbeat.agent.multiprocessing import DefaultLogsSpecs, LogsDest, LogsSpecs, Std


def envs(count: int, **common: str) -> dict[int, dict[str, str]]:
    return {rank: dict(common) for rank in range(count)}


def test_a_specification_without_reify_cannot_be_made() -> None:
    with pytest.raises(TypeError):
        LogsSpecs()  # type: ignore[abstract]


def test_each_worker_has_a_folder_and_an_error_file(tmp_path: Path) -> None:
    given = envs(2, TORCHELASTIC_RUN_ID="run/1", TORCHELASTIC_RESTART_COUNT="3")
    specs = DefaultLogsSpecs(
        str(tmp_path / "deep" / "er"), redirects={0: Std.OUT}, tee={1: Std.ERR}
    )
    dest = specs.reify(given)
    (run_dir,) = (tmp_path / "deep" / "er").iterdir()
    attempt = run_dir / "attempt_3"
    assert run_dir.name.startswith("run_1_")
    assert dest == LogsDest(
        stdouts={0: str(attempt / "0/stdout.log"), 1: ""},
        stderrs={0: "", 1: str(attempt / "1/stderr.log")},
        tee_stdouts={},
        tee_stderrs={1: str(attempt / "1/stderr.log")},
        error_files={rank: str(attempt / f"{rank}/error.json") for rank in range(2)},
        filtered_stdout=str(attempt / "filtered_stdout.log"),
        filtered_stderr=str(attempt / "filtered_stderr.log"),
    )
    assert [given[rank]["TORCHELASTIC_ERROR_FILE"] for rank in range(2)] == [
        dest.error_files[rank] for rank in range(2)
    ]
    assert all(Path(path).parent.is_dir() for path in dest.error_files.values())
    assert specs.root_log_dir == str(tmp_path / "deep" / "er")


def test_the_round_names_the_attempt_where_it_is_known(tmp_path: Path) -> None:
    """Two rounds may share a restart count, and must not share a folder."""
    specs = DefaultLogsSpecs(str(tmp_path), redirects=Std.OUT)
    seen = {
        specs.reify(envs(1, DRUMBEAT_ROUND=number, TORCHELASTIC_RESTART_COUNT="0")).stdouts[0]
        for number in ("4", "5")
    }
    assert {Path(path).parts[-3] for path in seen} == {"attempt_4", "attempt_5"}
    assert len({Path(path).parents[2] for path in seen}) == 1


def test_an_attempt_that_is_repeated_starts_empty(tmp_path: Path) -> None:
    specs = DefaultLogsSpecs(str(tmp_path), redirects=Std.OUT)
    Path(specs.reify(envs(1)).stdouts[0]).write_text("old")
    assert not Path(specs.reify(envs(1)).stdouts[0]).exists()


def test_two_specifications_share_a_folder_without_a_clash(tmp_path: Path) -> None:
    dests = [DefaultLogsSpecs(str(tmp_path), redirects=Std.OUT).reify(envs(1)) for _ in range(2)]
    assert dests[0].stdouts[0] != dests[1].stdouts[0]


def test_a_filtered_rank_keeps_its_file_but_not_the_console(tmp_path: Path) -> None:
    specs = DefaultLogsSpecs(str(tmp_path), redirects=Std.NONE, tee=Std.OUT, local_ranks_filter={1})
    dest = specs.reify(envs(2))
    assert dest.stdouts[0].endswith("0/stdout.log")
    assert list(dest.tee_stdouts) == [1]
    assert dest.stderrs == {0: os.devnull, 1: ""}


@pytest.mark.parametrize("ranks", [None, set()])
def test_without_a_filter_all_ranks_are_shown(tmp_path: Path, ranks: set[int] | None) -> None:
    dest = DefaultLogsSpecs(str(tmp_path), tee=Std.ALL, local_ranks_filter=ranks).reify(envs(2))
    assert sorted(dest.tee_stdouts) == sorted(dest.tee_stderrs) == [0, 1]


def test_the_null_device_means_no_files() -> None:
    given = envs(1)
    dest = DefaultLogsSpecs(os.devnull, redirects=Std.ALL, tee=Std.ALL).reify(given)
    assert dest.stdouts == dest.stderrs == {0: ""}
    assert dest.tee_stdouts == dest.tee_stderrs == dest.error_files == {0: os.devnull}
    assert dest.filtered_stdout == dest.filtered_stderr == os.devnull
    assert given[0]["TORCHELASTIC_ERROR_FILE"] == ""


def test_without_a_folder_a_private_one_is_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    root = Path(DefaultLogsSpecs().root_log_dir)
    assert root.parent == tmp_path
    assert root.stat().st_mode & 0o077 == 0


def test_a_file_in_place_of_the_folder_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(NotADirectoryError, match="is a file, must be a directory"):
        DefaultLogsSpecs(str(tmp_path / "file"))


def test_equal_means_the_same_settings(tmp_path: Path) -> None:
    one, same = (DefaultLogsSpecs(str(tmp_path), tee={0: Std.ALL}) for _ in range(2))
    assert one == same
    assert one != DefaultLogsSpecs(str(tmp_path))
    assert one != "specs"
    assert "tee={0: <Std.ALL: 3>}" in repr(one)
