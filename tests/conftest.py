"""What tests of several rooms share."""

import pytest


@pytest.fixture(scope="session", name="tokenizer")
def _tokenizer():
  """The laptop's tokenizer, built once."""
  # Not every room's tests need it, and some run without its dependencies.
  from rstar2_jax.chat import vocabulary  # pylint: disable=g-import-not-at-top
  return vocabulary.build(512)
