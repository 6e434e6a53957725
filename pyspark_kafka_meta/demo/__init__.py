"""`kafkameta demo`: the scenes of docs/scenes.md, played before your eyes on a live stream with two executors."""
