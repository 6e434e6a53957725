"""Tests of the commit protocol."""
