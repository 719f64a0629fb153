"""`python -m laco`, the same as `laco`. Next: `cli.py`."""

from laco.cli import main

main()
