"""Training logs: reading them, and the frameworks' settings they were made with."""

from jaxgrpo.logs.read import read_run as read_run
from jaxgrpo.logs.read import read_runs as read_runs
from jaxgrpo.logs.run import Run as Run
