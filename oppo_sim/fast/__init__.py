"""The compiled fast path: the schedules of ``oppo_sim.model`` as one kernel (docs/architecture.md)."""
