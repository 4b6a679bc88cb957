"""What several folders of tests share: the two backends under test, child processes, faults, and waiting."""
