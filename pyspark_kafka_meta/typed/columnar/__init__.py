"""What the formats share: parts of encoded columns, and of their decoders."""
