"""Starting, watching and ending engines: preflight, supervisor, log files, systemd unit, holding the box."""
