"""jax's coordination service: the one place that knows where jax keeps it."""


def client():
  """The service's client; None where this process is alone."""
  # It has no public name; orbax takes it from here too.
  return state().client


def state():
  """What jax knows of the processes before it looks for devices:
  `process_id`, `num_processes`, `client`.
  """
  from jax._src import distributed

  return distributed.global_state


def first_line(e: BaseException | str) -> str:
  """The first line of an error, at most 300 characters."""
  return str(e).strip().partition('\n')[0][:300]
