"""The one error a user sees: a sentence that says what is wrong, where, and how to mend it."""


class OppoError(Exception):
    """Bad input or an impossible request. The command line prints the message and exits with code 2."""


class HaltError(OppoError):
    """The disk refuses, or a process was ended from outside: not the fault of what was being run, and not to
    be taken for it."""
