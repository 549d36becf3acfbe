"""What a profiled run leaves, in its place for the trace room."""

import pytest

from scripts.common.errors import InputError
from scripts.trace.profile import collect


@pytest.fixture
def run_folder(tmp_path):
    """A run folder with the given files among its records."""

    def make(*names):
        (tmp_path / "records").mkdir()
        for name in names:
            (tmp_path / "records" / name).write_bytes(name.encode())
        return tmp_path

    return make


def test_traces_of_all_ranks_go_to_raw_in_order(run_folder):
    ranks = [f"trace.rank{rank}.json.gz" for rank in (1, 2, 10)]
    folder = run_folder("trace.json.gz", *ranks, "modules.json", "rank0.jsonl")
    (folder / "raw").mkdir()
    (folder / "raw" / "rank3.json.gz").write_bytes(b"of an earlier run")
    traces = collect(folder, "toy")
    assert [path.name for path in traces] == [f"rank{rank}.json.gz" for rank in (0, 1, 2, 10)]
    assert traces[0].read_bytes() == b"trace.json.gz"
    assert (folder / "modules.json").read_bytes() == b"modules.json"
    assert sorted(path.name for path in (folder / "raw").iterdir()) == sorted(path.name for path in traces)


def test_run_without_trace_or_modules_gets_one_line(run_folder):
    folder = run_folder("modules.json")
    with pytest.raises(InputError, match="toy: the profiled run left no trace"):
        collect(folder, "toy")
    (folder / "records" / "trace.json.gz").write_bytes(b"x")
    (folder / "records" / "modules.json").unlink()
    with pytest.raises(InputError, match="no module tree"):
        collect(folder, "toy")
