"""The one error a user sees: a sentence that says what is wrong, where, and how to mend it."""


class OppoError(Exception):
    """Bad input or an impossible request. The command line prints the message and exits with code 2."""
