"""`python -m laco`, the same as `laco`. Next: `cli/__init__.py`."""

from laco.cli import main

main()
