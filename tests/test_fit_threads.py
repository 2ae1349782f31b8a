"""Threads of a fit: one for products of small matrices, and afterwards what the caller had."""

from threadpoolctl import threadpool_info, threadpool_limits

from oppo_sim.fit.inference.sampling import on_one_blas_thread


def blas_threads() -> set[int]:
    return {each["num_threads"] for each in threadpool_info() if each["user_api"] == "blas"}


def test_one_thread_within_and_the_callers_afterwards() -> None:
    with threadpool_limits(limits=2, user_api="blas"):
        assert blas_threads() == {2}
        assert on_one_blas_thread(blas_threads)() == {1}
        assert blas_threads() == {2}
