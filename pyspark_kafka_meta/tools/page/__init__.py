"""`kafkameta page`: what the demo's terminal shows, in a browser, and buttons to play the scenes with."""
