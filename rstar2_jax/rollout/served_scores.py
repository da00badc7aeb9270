"""Logprobs and entropies of trajectories, as a rollout server tells them.

Servers do not send entropies, but the likeliest ids at each place. What is left
of the probability is taken as spread evenly over the other ids, which gives the
largest entropy that fits: exact where the list holds all ids, and close where
it holds nearly all of the probability.
"""

from collections.abc import Sequence
import math

from rstar2_jax import types
from rstar2_jax.rollout import sampler_client

NUM_TOP = 20  # as many as the embedded engine gives


async def of_trajectory(
    trajectory: types.Trajectory, client: sampler_client.HttpClient, *,
    num_ids: int,
) -> tuple[list[float], list[float]]:
  """(logprobs, entropies) of the sampled ids, at temperature 1 [nats].

  Args:
    trajectory: any; without a sampled id nothing is asked.
    client: of a server that has the policy's weights.
    num_ids: V, ids that can be sampled.

  Raises:
    ConnectionError, TimeoutError, sampler_client.ServerError: no scores.
  """
  if not trajectory.num_sampled_tokens:
    return [], []
  scores = await client.score(trajectory.token_ids, num_top=NUM_TOP)
  sampled = [score for score, is_sampled in zip(
      scores, trajectory.loss_mask[1:], strict=True) if is_sampled]
  return ([s.logprob for s in sampled],
          [entropy(s.top, num_ids) for s in sampled])


def entropy(top_logprobs: Sequence[float], num_ids: int) -> float:
  """Entropy of a distribution whose likeliest ids are known [nats].

  Args:
    top_logprobs: of the likeliest ids.
    num_ids: of all.
  """
  rest = max(0.0, 1 - sum(map(math.exp, top_logprobs)))
  num_rest = num_ids - len(top_logprobs)
  known = -sum(x * math.exp(x) for x in top_logprobs)
  if not num_rest or rest < 1e-9:
    return known
  return known - rest * math.log(rest / num_rest)
