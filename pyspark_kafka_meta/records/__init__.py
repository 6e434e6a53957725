"""Record batches to Arrow: bytes in, columns out, no I/O."""
