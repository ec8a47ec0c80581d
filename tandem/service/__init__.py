"""The engine as a service: its watchdog, its supervisor, its log files, its systemd unit, and holding the box."""
