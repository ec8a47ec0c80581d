"""What the process keeps outside the engine: sockets, locks, state directory, keys, log and ledger."""
