"""What a person types: the commands, settings, service supervision, bench, doctor."""
