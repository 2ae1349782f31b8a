"""Recorders of training frameworks: each hangs on what its framework offers and tells a ``Recorder``
(``oppo_sim.traces.recorder``) what it sees. Importing this package imports no framework."""
