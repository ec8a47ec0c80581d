"""One file for each command: its flags, and what it prints. `tandem.cli` imports a file when its command runs."""
