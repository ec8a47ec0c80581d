"""`python -m tandem`."""

from tandem.cli import main

main()
