"""What steps of a log had to do (features), and the seconds that terms of a cost model give for it."""
