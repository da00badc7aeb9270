"""The laptop's tokenizer, built once."""

import pytest

from rstar2_jax.chat import vocabulary


@pytest.fixture(scope="session", name="tokenizer")
def _tokenizer():
  return vocabulary.build(512)
