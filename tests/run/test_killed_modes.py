"""Runs of rollout modes that are killed at random points: groups in flight,
queues, two meshes, trees, searches, chains, tools in Python, games, leagues,
adapters and losses of roles, proposals.
"""

import os
import random

import pytest
from test_faults import Runs, runs  # noqa: F401
from test_proposal_runs import warm  # noqa: F401
from test_resume import content

# Two of four devices sample, the others train.
TWO_MESHES = [
  '--config.sampler_mesh=(1,2,1)',
  '--config.rl.steps_per_dispatch=1',
]
QUEUE = ['--config.rl.staleness=2', '--config.rl.old_logp=sampler']
HOST = [
  '--config.rl.path=host',
  '--config.rl.steps_per_dispatch=1',
  '--config.rl.workers=1',
]
# Modes that train on samples of earlier weights.
LAGS = {
  'in_flight': [
    '--config.rl.in_flight.batches=3',
    '--config.rl.old_logp=sampler',
    '--config.rl.slots=2',
  ],
  'recomputed': [
    '--config.rl.in_flight.batches=3',
    '--config.rl.in_flight.cache=recomputed',
    '--config.rl.in_flight.max_staleness=3',
    '--config.rl.in_flight.pieces=2',
    '--config.rl.old_logp=sampler',
    '--config.rl.slots=2',
  ],
  'queue': QUEUE,
  'host_queue': [*QUEUE, *HOST],
  'host_overlap': [
    *HOST,
    '--config.rl.staleness=1',
    '--config.rl.old_logp=sampler',
  ],
  'two_meshes': [*TWO_MESHES, *QUEUE],
}
# Those with kills in the suite.
IN_SUITE = LAGS.keys() - {'host_queue', 'host_overlap'}
ONCE = [
  '--config.rl.epochs=1',
  '--config.rl.minibatches=1',
  '--config.rl.algorithm=reinforce',
  '--config.rl.cache_segments=1',
]
TREE = [*ONCE, '--config.rl.algorithm=tree_rl', '--config.rl.tree.width=2']
TURNS = [*ONCE, '--config.rl.algorithm=mt_grpo']
CALCULATOR = [
  *TURNS,
  '--config.data.name=products',
  '--config.data.prompt_len=6',
  '--config.data.completion_len=24',
  '--config.data.knobs={"min_digits":1,"max_digits":2,"call":0.7}',
  '--config.rl.turns.env=calculator',
  '--config.rl.turns.most=3',
  '--config.rl.turns.tokens=6',
  '--config.rl.turns.observation=6',
]
GAME = [
  *ONCE,
  '--config.data.name=subtraction',
  '--config.data.knobs={"largest":9,"most":3,"skill":0.0}',
  '--config.data.completion_len=24',
  '--config.rl.turns.env=subtraction',
  '--config.rl.turns.most=6',
  '--config.rl.turns.tokens=3',
  '--config.rl.turns.observation=3',
  '--config.rl.role_decay=0.9',
]
ADAPTERS = ['--config.lora.rank=2', '--config.rl.role_adapters=True']
# The model of `test_proposal_runs.warm`, which writes valid problems.
PROPOSALS = [
  *ONCE,
  '--config.data.tokenizer=byte',
  '--config.data.prompt_len=8',
  '--config.data.completion_len=7',
  '--config.data.knobs={"min_ops":1,"max_ops":1,"ops":"+"}',
  '--config.model.width=32',
  '--config.model.mlp=32',
  '--config.model.head_dim=16',
  '--config.rl.propose=?',
  '--config.rl.prompts=8',
  '--config.rl.rewards.answer.reward=task',
]
SEARCH = [
  *(flag for flag in PROPOSALS if 'propose' not in flag),
  '--config.rl.algorithm=raft',
  '--config.rl.search.simulations=4',
  '--config.rl.search.step_tokens=2',
]
MODES = LAGS | {
  'tree': ['--config.rl.tree.width=2', '--config.rl.tree.step_end= '],
  'tree_columns': [*TREE, '--config.rl.tree.columns=(2,4)'],
  'tree_entropy': [*TREE, '--config.rl.tree.forks=3'],
  'tree_shared': [
    *TREE,
    '--config.rl.tree.columns=(2,4)',
    '--config.rl.padding=tree:2',
  ],
  'episode_tree': [*CALCULATOR, '--config.rl.tree.width=2'],
  'episode_tree_turns': [
    *CALCULATOR,
    '--config.rl.tree.width=2',
    '--config.rl.tree.turns=(1,)',
  ],
  'tools': [*CALCULATOR, *HOST, '--config.rl.turns.workers=1'],
  'search': SEARCH,
  'chain': [
    *TURNS,
    '--config.data.name=checked',
    '--config.data.completion_len=16',
    '--config.data.knobs={"min_ops":1,"max_ops":2,"second":"verify"}',
    '--config.rl.rewards={}',
    '--config.rl.turns.env=chain',
    '--config.rl.turns.tokens=6',
    '--config.rl.turns.observation=2',
    '--config.rl.turns.links={"solve":{"reward":"task"},"verify":{"ask":"?"}}',
  ],
  'two_meshes_in_turn': TWO_MESHES,
  'two_meshes_game': [*TWO_MESHES, *GAME],
  'game': GAME,
  'poker': [
    *ONCE,
    '--config.data.name=kuhn_poker',
    '--config.data.knobs={}',
    '--config.data.completion_len=10',
    '--config.rl.turns.env=kuhn_poker',
    '--config.rl.turns.most=3',
    '--config.rl.turns.tokens=2',
    '--config.rl.turns.observation=2',
    '--config.rl.role_decay=0.9',
  ],
  'league': [
    *GAME,
    '--config.rl.league.share=0.5',
    '--config.rl.league.every=2',
  ],
  'role_adapters': [*GAME, *ADAPTERS],
  'proposals': PROPOSALS,
  'role_adapters_proposals': [*PROPOSALS, *ADAPTERS],
  'role_losses_proposals': [
    *PROPOSALS,
    '--config.rl.roles={"proposer":{"algorithm":"rloo","loss":{"kl_coef":0.0}},'
    '"solver":{"algorithm":"dapo"}}',
  ],
}


@pytest.fixture(scope='module')
def runs_of_four(tmp_path_factory):
  """As `runs`, on four devices."""
  cache = tmp_path_factory.mktemp('cache')
  flags = os.environ['XLA_FLAGS'].replace('count=8', 'count=4')
  env = os.environ | {'XDG_CACHE_HOME': str(cache), 'XLA_FLAGS': flags}
  out = Runs(env, cache)
  yield out
  out.close()


@pytest.mark.parametrize(
  'mode, n',
  [
    *((mode, 2) for mode in sorted(IN_SUITE)),
    *(pytest.param(mode, 20, marks=pytest.mark.slow) for mode in MODES),
  ],
)
def test_killed_runs_of_rollout_modes_continue(
  request,
  tmp_path,
  mode,
  n,
):
  """Kills n runs one after the other. Each is resumed until it ends."""
  flags, two = MODES[mode], mode.startswith('two_meshes')
  run = request.getfixturevalue('runs_of_four' if two else 'runs')
  if mode == 'search' or mode.endswith('proposals'):
    weights = request.getfixturevalue('warm')
    flags = [*flags, f'--config.init_from={weights}']
  code, log, calls = run(tmp_path / 'whole', flags=flags)
  assert code == 0, log[-3000:]
  want, rng, left = content(tmp_path / 'whole'), random.Random(mode), n
  assert max(row.get('train/grad_norm', 0) for row in want) > 0
  lag = max(row.get('train/policy_lag', 0) for row in want)
  assert (lag > 0) == (mode in LAGS)
  while left:
    workdir, code = tmp_path / f'{left}-left', -9
    while code == -9:
      at = rng.randint(1, calls) if left else 0
      code, log, _ = run(workdir, at, 'SIGKILL', flags)
      left -= code == -9
    assert code == 0, log[-3000:]
    assert content(workdir) == want
