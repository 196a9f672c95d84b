"""Play events become plays: pure, the same for the ledger and for the archive."""
