"""The compiled fast path: the synchronous schedules of ``oppo_sim.model`` as one kernel (docs/fast.md)."""
