"""Programs that copy a topic to another, exactly once where they can, which `python -m benchmarks.frameworks` runs.

    python PROGRAM BOOTSTRAP_SERVERS SOURCE TARGET COMMIT_MS

They run until they are killed, on two cores, with default settings, and commit about each `COMMIT_MS`.
"""
