"""Servers as fixtures."""

from __future__ import annotations

import os

import pytest

from tests.sandbox_runner import servers


@pytest.fixture(scope='session', params=['started_user', 'plain_user'])
def server(request):
  """A server with default isolation, as this user and as an ordinary one."""
  plain = request.param == 'plain_user'
  if plain and os.geteuid() != 0:
    pytest.skip('already an ordinary user')
  running = servers.Server('--max_running=4', plain_user=plain)
  yield running
  running.stop()


@pytest.fixture
def start():
  """Starts servers with flags; ends those that still run."""
  made = []

  def make(*flags: str, plain_user: bool = False) -> servers.Server:
    made.append(servers.Server(*flags, plain_user=plain_user))
    return made[-1]

  yield make
  for server in made:
    if server.process.poll() is None:
      server.stop()


@pytest.fixture
def healthy(server):
  """Asserts after the test that the server is as it was."""
  yield server
  server.check_healthy()
