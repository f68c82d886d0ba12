"""`python -m moldau.cli`, the same as `moldau`."""

from moldau.cli import main

main()
