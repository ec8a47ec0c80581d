"""What an operator edits or installs: settings files, profiles, the residency plan. Data only."""
