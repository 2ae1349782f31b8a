"""Tests of the real engines are collected where the engines are installed: ``[torch]`` for tests/real, ``[vllm]`` for tests/real_vllm."""

from importlib.util import find_spec

NEEDS = {"real": "torch", "real_vllm": "vllm"}

collect_ignore = [folder for folder, package in NEEDS.items() if find_spec(package) is None]


def pytest_report_header() -> list[str]:
    return [f"tests/{folder}: not collected, {NEEDS[folder]} is not installed" for folder in collect_ignore]
