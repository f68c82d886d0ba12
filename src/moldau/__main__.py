"""`python -m moldau`, the same as the `moldau` command."""

from moldau.cli import main

main()
