"""Nobody waits for the compiler: SimPy begins at once, and the kernel takes over when it has been compiled."""

import fcntl
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from oppo_sim.errors import OppoError
from oppo_sim.fast import choose, compiled_run, compiling
from oppo_sim.fast.choose import run_columns, run_summary
from oppo_sim.fast.compiling import LOCK, READY, Chooser
from oppo_sim.runs import execute
from oppo_sim.runs.execute import Executor, Runner
from oppo_sim.runs.request import request_of
from oppo_sim.scenario.load import load_scenario
from tests.cli_runs import compile_first
from tests.fast_setups import shipped

SCENARIO = "paper-stackexchange-7b"


class Started(list[None]):
    """Counts how often a compiler was started beside."""

    def __call__(self) -> None:
        self.append(None)


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> Started:
    """A process that has loaded no kernel; what it starts is only counted."""
    started = Started()
    monkeypatch.delenv("OPPO_ENGINE", raising=False)
    monkeypatch.setattr(compiled_run, "_loaded", [])
    monkeypatch.setattr(choose, "_chooser", Chooser())
    monkeypatch.setattr(compiling, "compile_beside", started)
    return started


def test_small_work_runs_at_once_and_starts_no_compiler(
    started: Started, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(compiling, "is_compiled", lambda: False)
    monkeypatch.setattr(compiling, "COMPILING_S", 60.0)  # small also where the machine is busy
    assert run_columns(shipped(SCENARIO, "oppo", 12)).engine == "simpy"
    assert run_summary(shipped(SCENARIO, "sequential", 12))[1] == "simpy"
    assert not started


def test_small_work_does_not_even_load_a_kernel_that_is_there(
    started: Started, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(compiling, "is_compiled", lambda: True)
    assert run_columns(shipped(SCENARIO, "oppo", 12)).engine == "simpy"
    assert compiled_run._loaded == []


def test_much_work_starts_one_compiler_and_goes_over_in_the_middle_of_a_run(
    started: Started, monkeypatch: pytest.MonkeyPatch
) -> None:
    compile_first()
    compiled_run._loaded.clear()
    looks: list[bool] = []

    def ready_after_a_while() -> bool:
        looks.append(len(looks) > 5)
        return looks[-1]

    monkeypatch.setattr(compiling, "is_compiled", ready_after_a_while)
    monkeypatch.setattr(compiling, "LOOK_S", 0.0)
    monkeypatch.setattr(compiling, "COMPILING_S", 0.05)
    setup = shipped(SCENARIO, "oppo", 200)
    found = run_columns(setup)
    assert found.engine == "compiled"
    assert len(started) == 1
    assert found.frame().equals(run_columns(setup, engine="compiled").frame())


def test_many_small_runs_add_up(started: Started, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compiling, "is_compiled", lambda: False)
    chooser = Chooser()
    for _ in range(10):
        assert not chooser.wants_kernel(0.1)
        chooser.add(0.3)
    assert len(started) == 1
    monkeypatch.setattr(compiling, "is_compiled", lambda: True)
    assert chooser.wants_kernel(0.1)


def test_a_process_beside_leaves_the_work_to_one_that_is_at_it(tmp_path: Path) -> None:
    environment = {**os.environ, "OPPO_CACHE_DIR": str(tmp_path)}
    ask = "from oppo_sim.fast.compiling import cache_folder; print(cache_folder())"
    folder = Path(_python(["-c", ask], environment).strip())
    folder.mkdir()
    with (folder / LOCK).open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        _python(["-m", "oppo_sim.fast"], environment)
    assert not (folder / READY).exists()
    assert [path.name for path in folder.iterdir()] == [LOCK]


def test_the_compiler_is_of_this_package_whatever_the_current_folder_holds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A user who installs from a checkout and works in it has another ``oppo_sim`` in the current folder."""
    compile_first()
    (tmp_path / "oppo_sim" / "fast").mkdir(parents=True)
    (tmp_path / "oppo_sim" / "__init__.py").write_text("")
    (tmp_path / "oppo_sim" / "fast" / "__init__.py").write_text("")
    (tmp_path / "oppo_sim" / "fast" / "__main__.py").write_text("open('another', 'w').close()")
    monkeypatch.chdir(tmp_path)
    process = compiling.compile_beside()
    assert process is not None
    assert process.wait() == 0
    assert not (tmp_path / "another").exists()


RUN_ONE = """
import oppo_sim
from oppo_sim.fast import compiled_run
from oppo_sim.fast.choose import run_summary
from oppo_sim.scenario.build import build_setup
from oppo_sim.scenario.schema import Scenario
from tests.cli_runs import TINY

run_summary(build_setup(Scenario.model_validate(TINY)), engine="compiled")
stats = compiled_run._loaded[0].advance.stats
print(oppo_sim.__file__, sum(stats.cache_hits.values()), sum(stats.cache_misses.values()))
"""


def test_another_installation_takes_what_is_compiled(tmp_path: Path) -> None:
    compile_first()
    package = Path(compiling.__file__).parents[1]
    shutil.copytree(package, tmp_path / "oppo_sim", ignore=shutil.ignore_patterns("__pycache__"))
    paths = os.pathsep.join([str(tmp_path), str(package.parent)])
    file, hits, misses = _python(["-P", "-c", RUN_ONE], {**os.environ, "PYTHONPATH": paths}).split()
    assert Path(file).parents[1] == tmp_path
    assert (hits, misses) == ("1", "0")
    # What is compiled of other sources is not taken.
    ask = "from oppo_sim.fast.compiling import cache_folder; print(cache_folder())"
    with (tmp_path / "oppo_sim" / "fast" / "rows.py").open("a") as rows:
        rows.write("# changed\n")
    changed = _python(["-P", "-c", ask], {**os.environ, "PYTHONPATH": paths})
    assert changed.strip() != str(compiling.cache_folder())


def test_one_that_has_a_core_ends_the_compiler_beside(tmp_path: Path) -> None:
    environment = {**os.environ, "OPPO_CACHE_DIR": str(tmp_path)}
    hold = (
        "from time import sleep; from oppo_sim.fast.compiling import compiling_alone\n"
        "with compiling_alone(beside={beside}): print('held', flush=True); sleep(60)"
    )
    end = "from oppo_sim.fast.compiling import end_beside; end_beside()"
    for beside, code in ((True, -signal.SIGTERM), (False, None)):
        command = [sys.executable, "-c", hold.format(beside=beside)]
        with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE) as holder:
            assert holder.stdout is not None
            assert holder.stdout.readline() == b"held\n"
            _python(["-c", end], environment)
            try:
                if beside:
                    assert holder.wait(30) == code
                else:
                    with pytest.raises(subprocess.TimeoutExpired):
                        holder.wait(0.5)
            finally:
                holder.kill()


def test_a_process_that_compiles_first_changes_no_result(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    compile_first()
    requests = [request_of(load_scenario(SCENARIO, ["steps=12"]), seed=seed) for seed in range(6)]
    with Runner(Executor("serial")) as runner:
        alone = {r.key: r.totals for done in runner.run(requests) for _, r in done}
    monkeypatch.setattr(execute, "COMPILER_CORE_SECONDS", 0.0)
    monkeypatch.setattr(execute, "WORTHWHILE_SECONDS", 0.0)
    monkeypatch.setattr(choose, "lacks_kernel", lambda: True)
    with Runner(Executor("processes", os.cpu_count())) as runner:
        beside = {r.key: r.totals for done in runner.run(requests) for _, r in done}
    assert beside == alone


FEW_RUNS = """
import sys
from oppo_sim.runs import execute
from oppo_sim.runs.execute import Executor, Runner
from oppo_sim.runs.request import request_of
from oppo_sim.scenario.load import load_scenario

execute.Runner._in_processes = None  # would be a TypeError
requests = [request_of(load_scenario("h200-single", ["steps=160"]), seed=seed) for seed in range(30)]
execute.WORTHWHILE_SECONDS = float(sys.argv[1])
with Runner(Executor("processes", 2)) as runner:
    print(sum(len(done) for done in runner.run(requests)))
"""


def test_runs_that_the_kernel_makes_at_once_are_not_handed_to_processes() -> None:
    """30 runs on SimPy would take twenty seconds or more; loaded, the kernel makes all in one, on a busy
    machine in a few."""
    compile_first()
    assert _python(["-c", FEW_RUNS, "12"], dict(os.environ)) == "30\n"
    with pytest.raises(subprocess.CalledProcessError):  # the check can fail
        _python(["-c", FEW_RUNS, "0"], dict(os.environ))


def test_a_folder_that_cannot_be_written_is_replaced_by_one_that_can(tmp_path: Path) -> None:
    taken = tmp_path / "file"
    taken.write_text("")
    ask = "from oppo_sim.fast.compiling import cache_folder; print(cache_folder())"
    folder = _python(
        ["-c", ask], {**os.environ, "OPPO_CACHE_DIR": str(taken / "below"), "TMPDIR": str(tmp_path)}
    )
    assert Path(folder.strip()).parent.parent == tmp_path


def test_the_variable_names_an_engine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPPO_ENGINE", "simpy")
    assert run_columns(shipped(SCENARIO, "oppo", 12)).engine == "simpy"
    monkeypatch.setenv("OPPO_ENGINE", "gpu")
    with pytest.raises(OppoError, match="OPPO_ENGINE 'gpu' is unknown: choose auto, simpy or compiled"):
        run_columns(shipped(SCENARIO, "oppo", 12))


def _python(arguments: list[str], environment: dict[str, str]) -> str:
    done = subprocess.run(
        [sys.executable, *arguments], capture_output=True, text=True, env=environment, check=True
    )
    assert done.stderr == ""
    return done.stdout
