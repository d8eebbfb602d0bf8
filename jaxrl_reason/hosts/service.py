"""Accesses jax's coordination service, which has no public name."""


def client():
  """Returns the service's client; None if this process is alone."""
  # It has no public name; orbax uses this one too.
  return state().client


def state():
  """Returns jax's facts about the processes before it looks for devices:
  `process_id`, `num_processes`, `client`.
  """
  from jax._src import distributed

  return distributed.global_state


def first_line(e: BaseException | str) -> str:
  """Returns the first line of an error, at most 300 characters."""
  return str(e).strip().partition('\n')[0][:300]
