"""The logic under simulated schedules, and the simulator itself against a real server."""
