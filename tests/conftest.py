"""What holds for all tests: which need an engine, and that no test fails for being slow on a busy machine."""

import os
import shutil
import signal
from importlib.util import find_spec

NEEDS = {"real": "torch", "on_ray": "ray"}  # tests/real_vllm and tests/real_trl look after themselves

# Which engine a run takes must not depend on how soon a compiler beside is done (tests/test_compiling.py).
os.environ.setdefault("OPPO_ENGINE", "compiled")

# What is printed is as wide as in a pipe, not as the terminal of whoever runs the tests.
os.environ.pop("COLUMNS", None)
os.unsetenv("COLUMNS")  # readline, which pytest imports, sets it past os.environ, for children

# A shell that starts the tests in the background has Ctrl-C ignored, and children inherit that; here it must
# be as at a terminal.
signal.signal(signal.SIGINT, signal.default_int_handler)

# An engine's tests are collected where it is installed; CI installs each and demands it.
collect_ignore = [folder for folder, package in NEEDS.items() if find_spec(package) is None]
if "on_ray" in collect_ignore:
    collect_ignore.append("real/test_placement_ray.py")
if None in (shutil.which("chromium"), shutil.which("chromedriver"), find_spec("selenium")):
    collect_ignore.append("browser")

if find_spec("hypothesis") is not None:  # the engines' own environments may lack it
    from hypothesis import HealthCheck, settings

    # In CI the same examples every time: a landing must not hang on a draw.
    settings.register_profile(
        "steady", deadline=None, suppress_health_check=[HealthCheck.too_slow], derandomize="CI" in os.environ
    )
    settings.load_profile("steady")


def pytest_report_header() -> list[str]:
    missing = {
        **NEEDS,
        "real/test_placement_ray.py": "ray",
        "browser": "chromium with chromedriver and selenium",
    }
    return [f"tests/{folder}: not collected, {missing[folder]} is not installed" for folder in collect_ignore]
