"""The package's own errors: what a user can put right, said in one line."""


class JaxgrpoError(ValueError):
    """Base of the errors that a user can put right; its message is one line that says how."""


class ReadError(JaxgrpoError):
    """A log or configuration file could not be read; the message names the file and the line or field."""


class FitError(JaxgrpoError):
    """A run cannot support the fit that was asked for; the message says why."""


class ForecastError(JaxgrpoError):
    """A run cannot be forecast as asked."""


class TuneError(JaxgrpoError):
    """Settings cannot be recommended as asked; the message says what to change."""


class SimulationError(JaxgrpoError):
    """An ensemble cannot be simulated or stored as asked."""
