"""Real runs beside predictions from the calibrated profile: how far seconds, speed-ups and decisions agree
(docs/calibrate.md)."""
