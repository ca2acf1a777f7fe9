"""`python -m jaxgrpo`: the same as the command `jaxgrpo`."""

import sys

from jaxgrpo.cli import main

if __name__ == "__main__":
    sys.exit(main())
