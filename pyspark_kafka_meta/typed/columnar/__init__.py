"""What the formats share: parts of encoded columns."""
