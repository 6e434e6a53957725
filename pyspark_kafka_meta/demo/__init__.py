"""`kafkameta demo`: scenes of client metadata, played on a live stream with two executors."""
