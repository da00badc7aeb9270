"""Errors that a user can mend."""


class UserError(Exception):
  """Says in one line what is wrong, where, and what to do; exit code 2."""
