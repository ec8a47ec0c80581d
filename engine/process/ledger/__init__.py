"""The ledger: one row a request that ended, in SQLite, with counts and times and never a word of it."""
