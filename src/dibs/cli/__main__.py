"""`python -m dibs.cli`: the same as `dibs`."""

from dibs.cli import main

main()
