"""`python -m gmt` is the command `gmt`."""

from gmt.cli import main

main()
