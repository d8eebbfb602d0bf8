"""Every rule has an example that triggers it, in one line with its key."""

import re

import pytest

from jaxrl_reason import config as config_lib
from jaxrl_reason.config import rules
from jaxrl_reason.run.checks import config_checks

DEMOS = {'rl.algorithm': 'luffy', 'rl.demos': 1}
EXPLAIN = DEMOS | {'rl.demos_prompt': '{prompt}{answer}'}
FAILED = DEMOS | {'rl.demos_when': 'failed'}
SAMPLER = {'rl.old_logp': 'sampler'}
STALE = SAMPLER | {'rl.path': 'host', 'rl.staleness': 1}
QUEUE = SAMPLER | {'rl.staleness': 2}
FLIGHT = SAMPLER | {'rl.in_flight.batches': 3}
TREE = {'rl.tree.width': 2}
SEARCH = {'rl.search.simulations': 8, 'rl.search.step_tokens': 4}
TURNS_AND_FORKS = {'rl.tree.turns': (1,), 'rl.tree.forks': 3}
HINTS = {'rl.hints.room': 4}
AGAIN = HINTS | SAMPLER | {'rl.hints.when': 'failed'}
REFILL = {'rl.refill_rounds': 1, 'rl.filter': 'dead_groups'}
REPLAY = SAMPLER | {'rl.replay.rows': 8, 'rl.replay.capacity': 32}
RLOO = {'rl.algorithm': 'rloo'}
LOGLINEAR = REPLAY | {'rl.old_logp': 'loglinear'}
TOP_K = {'rl.algorithm': 'dppo_top_k', 'rl.epochs': 2}
DECOUPLED = {'rl.old_logp': 'trainer', 'rl.loss.correction': 'truncate'}
MOVES = {'rl.reference.every': 5, 'rl.loss.kl_coef': 0.01}
POOL = {'data.controller.name': 'uniform', 'data.controller.refresh': 10}
SCHEDULE = {'by': 'step', 'at': [0, 5, 9], 'values': [1, 0, 1]}
OF_LENGTH = SCHEDULE | {'by': 'mean_length'}
OPD = {'rl.algorithm': 'opd', 'rl.teacher.weights': 'a_run'}
PENALTY = {'rl.repetition_penalty': 1.2, 'rl.logprob_chunk': 8}
GRAMMAR = {'rl.regex': '[0-9]+'}
UNDER = OPD | {
  'rl.teacher.prompt': '{solution} {prompt}',
  'rl.teacher.prompt_len': 40,
}
TOLD = UNDER | {
  'rl.teacher.prompt': '{prompt} {verdict} {sample}',
  'rl.teacher.right': 'yes',
}
JUDGED = {'rl.rewards.judge': dict(reward='verdict', weight=1.0)}
GDPO = JUDGED | {'rl.algorithm': 'gdpo'}
ASKED = {'rl.rewards.judge': dict(reward='verdict', kwargs=dict(ask='?'))}
VERDICT = {'rl.loss.sft_on': 'verdict', 'rl.loss.sft_coef': 0.3}


def asking(ask, **kwargs):
  part = dict(reward='verdict', kwargs=dict(ask=ask, **kwargs))
  return {'rl.rewards.judge': part}


PAIRED = asking('{other}?')
NOVELTY = {'rl.rewards.far': dict(reward='novelty_volume', weight=0.1)}
PROPOSE = {'rl.propose': '?'}
GAME = {'rl.turns.env': 'subtraction', 'rl.league.share': 0.5}
LINKS = {
  'rl.turns.env': 'chain',
  'rl.rewards': {},
  'rl.turns.links.a': {'reward': 'task'},
  'rl.turns.links.b': {'reward': 'task', 'ask': '?'},
}
LEAGUE = GAME | {'rl.algorithm': 'reinforce'}
ROLES = {'lora.rank': 2, 'rl.role_adapters': True, 'stages': ('rl',)}
OF_GAME = ROLES | {'rl.turns.env': 'subtraction'}
PLAYERS = {
  'rl.turns.env': 'subtraction',
  'rl.algorithm': 'reinforce',
  'rl.roles.0': {'algorithm': 'rloo'},
}
BOTH = {
  'rl.roles.proposer': {'algorithm': 'rloo', 'loss': {'kl_coef': 0.0}},
  'rl.roles.solver': {'algorithm': 'dapo'},
}
SIGNS = {'rl.roles.0': {'algorithm': 'psr', 'loss': {'threshold': 0.5}}}
TWO = {'sampler_mesh': (1, 4, 1)}
EIGHT = TWO | {'sampler_dtype': 'int8'}
LASER = {'rl.shaping.laser': 0.1, 'rl.shaping.laser_lengths': (4, 8)}
ONE = {'rl.samples': 1, 'rl.algorithm': 'reinforce'}
TAUGHT = JUDGED | {
  'rl.verdict.by': 'teacher',
  'rl.teacher.weights': 'a_run',
}
PPO = {'rl.algorithm': 'ppo', 'rl.steps': 20}
IN_PYTHON = {
  'rl.path': 'host',
  'rl.turns.env': 'tools',
  'rl.turns.tools': {'py': {'tool': 'python'}},
}


def sources(**first):
  return {'data.sources': {'a': {'name': 'arithmetic'} | first}}


def named(*stages, **values):
  return {'stages': stages, 'named': values}


# (changes, words of the message)
PAIRS = {'stages': ('preference',), 'preference.pairs': 'pairs.jsonl'}
BRADLEY_TERRY = {'stages': ('reward_model',), 'reward_model.pairs': 'a.jsonl'}
PREFERRED = {
  'rl.rewards': dict(preferred=dict(reward='reward_model')),
  'rl.reward_model.weights': 'a_run',
}
STEPS = PREFERRED | {
  'rl.reward_model.steps': 'min',
  'rl.reward_model.separator': ' ',
}
READS = STEPS | {
  'stages': ('reward_model', 'rl'),
  'rl.reward_model.weights': 'reward_model',
  'reward_model.labels': 'b.jsonl',
  'reward_model.separator': ' ',
}
TOPK = {'stages': ('sft',), 'sft.loss': 'topk', 'sft.teacher': 'a.jsonl'}
EXAMPLES = [
  ({'stages': ('preference',)}, "preference.pairs='': name a file"),
  (PAIRS | {'preference.loss': 'sft'}, "preference.loss='sft'"),
  (
    PAIRS | {'preference.loss': 'ipo', 'preference.label_smoothing': 0.1},
    "label_smoothing=0.1 has no effect without preference.loss='dpo'",
  ),
  (PAIRS | {'preference.margin': 0.5}, "margin=0.5 has .* without .*='simpo'"),
  (
    PAIRS | {'preference.loss': 'kto', 'preference.micro_batches': 2},
    'preference.micro_batches=2: .* over all pairs',
  ),
  ({'stages': ('reward_model',)}, "reward_model.pairs='': name a file"),
  (
    BRADLEY_TERRY | {'reward_model.logprob_chunk': 4},
    'reward_model.logprob_chunk=4: .* no logits',
  ),
  (
    BRADLEY_TERRY | {'reward_model.balance_coef': 0.1},
    'reward_model.balance_coef=0.1: .* no other term',
  ),
  (
    BRADLEY_TERRY | {'reward_model.labels': 'b.jsonl'},
    "pairs='a.jsonl' and reward_model.labels='b.jsonl'",
  ),
  (
    {'stages': ('reward_model',), 'reward_model.labels': 'b.jsonl'},
    "labels='b.jsonl': set reward_model.separator",
  ),
  (
    STEPS | {'rl.reward_model.steps': 'max'},
    "rl.reward_model.steps='max': choose",
  ),
  (
    STEPS | {'rl.reward_model.separator': ''},
    "steps='min': set rl.reward_model.separator",
  ),
  (
    READS | {'rl.reward_model.steps': '', 'rl.reward_model.separator': ''},
    "weights='reward_model': the stage was trained on labels of steps",
  ),
  (
    READS | {'rl.reward_model.separator': '#'},
    "separator='#': the stage has ' '",
  ),
  (
    READS
    | {'reward_model.labels': '', 'reward_model.separator': ''}
    | {'reward_model.pairs': 'a.jsonl'},
    "steps='min': 'reward_model' was trained on pairs",
  ),
  (
    PREFERRED | {'rl.reward_model.weights': ''},
    'rl.rewards.preferred reads a reward model: set rl.reward_model.weights',
  ),
  (
    {'rl.reward_model.weights': 'a_run'},
    "rl.reward_model.weights='a_run': no reward reads it",
  ),
  (
    PREFERRED | {'rl.chunks.tokens': 4},
    'rl.chunks.tokens=4 and rl.rewards.preferred cannot be combined',
  ),
  (
    PREFERRED | {'rl.turns.env': 'calculator'},
    "rl.turns.env='calculator' and rl.rewards.preferred cannot be combined",
  ),
  (JUDGED | {'rl.verdict.by': 'judge'}, "rl.verdict.by='judge'"),
  (
    VERDICT | {'rl.verdict.by': 'teacher'},
    "rl.verdict.by='teacher' has no effect without a reward 'verdict'",
  ),
  (
    JUDGED | {'rl.verdict.by': 'teacher'},
    "rl.verdict.by='teacher' and rl.teacher.weights='': name weights",
  ),
  ({'rl.verdict.yes': 'y'}, "yes='y' has no effect without rl.loss.sft_on="),
  (VERDICT | {'rl.verdict.no': 'yes'}, "no='yes': choose two texts that dif"),
  (VERDICT | {'rl.verdict.ask': ''}, "rl.verdict.ask='': set it to the quest"),
  (
    VERDICT | {'rl.verdict.ask': '{answer}?'},
    "ask='{answer}\\?' and rl.loss.sft_on='verdict' cannot be combined",
  ),
  (
    JUDGED | {'rl.verdict.ask': '{solution}?'},
    "ask='{solution}\\?': {solution} is not replaced, only {answer}",
  ),
  (ASKED | {'rl.verdict.ask': 'x'}, "ask='x' has no effect: every reward"),
  (asking('{other}{other}'), '{other} may stand there once'),
  (JUDGED | {'rl.verdict.ask': '{other}?'}, 'only replaced in kwargs.ask of'),
  (PAIRED | ONE, 'rl.samples=1: rl.rewards.judge.kwargs.ask with {other}'),
  (PAIRED | {'rl.algorithm': 'remax'}, 'greedy completion has no other to be'),
  (PAIRED | FAILED, 'rl.demos=1 after failed groups: a reference solution'),
  (asking('{other}?', rivals=-1), 'rivals=-1: set it to a whole number from 0'),
  (
    JUDGED | {'rl.verdict.ask': '{criterion}'},
    '{criterion} is only replaced in',
  ),
  (
    asking('{criterion}?'),
    'criteria=0 and criterion_len=64: {criterion} needs',
  ),
  (asking('{thought}{thought}'), '{thought} may stand there once'),
  (JUDGED | {'rl.verdict.ask': '{thought}?'}, '{thought} is only replaced in'),
  (asking('{thought}?'), 'thought_len=0: {thought} needs the largest number'),
  (asking('?', thought_len=2), 'thought_len=2 has no effect: .* lacks {thou'),
  (asking('?', criterion_len=9), 'criterion_len=9 has no .* lacks {criterion}'),
  (asking('?', criteria=2), 'criteria=2 has no effect: .* lacks {criterion}'),
  (asking('?', rivals=1), 'rivals=1 has no effect: .* lacks {other}'),
  (asking('{other}?', rivals=8), 'rivals=8 and rl.samples=8: .* less than'),
  (
    {'rl.rewards.answer': dict(reward='task', kwargs='x')},
    "rl.rewards.answer.kwargs='x': must be a section",
  ),
  (
    {'rl.rewards.answer': dict(reward=['task'])},
    r"rl.rewards.answer.reward=\['task'\]: must be the name",
  ),
  (
    {'rl.rewards.judge': dict(reward='verdict', kwargs=dict(ask=''))},
    "rl.rewards.judge.kwargs.ask='': set it to the question",
  ),
  (
    VERDICT | {'rl.turns.env': 'calculator'},
    "rl.turns.env='calculator' and rl.loss.sft_on='verdict', or a reward",
  ),
  (
    VERDICT | {'rl.chunks.tokens': 4, 'rl.chunks.carry': 2},
    "rl.chunks.tokens=4 and rl.loss.sft_on='verdict', or a reward",
  ),
  (VERDICT | {'rl.replay_routes': True}, 'replay_routes=True and rl.loss.sft_'),
  (
    NOVELTY | {'rl.views.hidden.token': 'first'},
    "rl.views.hidden.token='first': choose",
  ),
  (
    {'rl.views.hidden.layers': (1,)},
    r'layers=\(1,\): nothing reads hidden states; set it to \(-1,\)',
  ),
  (
    NOVELTY | {'rl.views.hidden.token': 'prompt_last'},
    "token='prompt_last': rl.rewards.far compares .* are then equal",
  ),
  (
    NOVELTY | {'rl.samples': 1, 'rl.algorithm': 'reinforce_pp'},
    'rl.samples=1: rl.rewards.far compares the samples',
  ),
  (
    {'rl.probe.rate': 1.0, 'rl.chunks.tokens': 4, 'rl.chunks.carry': 2},
    'rl.chunks.tokens=4 and rl.probe.rate cannot be combined',
  ),
  (
    {'rl.probe.rate': 1.0, 'rl.probe.token_weight': 0.5}
    | {'rl.views.hidden.token': 'mean'},
    'rl.probe.token_weight=0.5: .* no state of every token',
  ),
  (
    {'rl.probe.rate': 1.0, 'rl.probe.token_weight': 0.5}
    | {'rl.algorithm': 'tbrm'},
    "rl.probe.token_weight=0.5: rl.algorithm='tbrm' reads whole logits",
  ),
  ({'data.name': 'hf:a/b'}, 'write data.name=files and data.dir=hf:a/b'),
  (TOP_K | {'rl.epochs': 1}, 'make one update: they are equal'),
  (
    {'rl.loss.kl_coef': 0.1, 'rl.loss.kl_to': 'old'},
    'the old policy is the current one',
  ),
  (TOP_K | {'rl.logprob_chunk': 0}, 'the logits of two policies at once'),
  (TOP_K | {'rl.replay_routes': True}, 'replay_routes=True and rl.loss.policy'),
  (
    TOP_K
    | OPD
    | {
      'rl.algorithm': 'dppo_top_k',
      'rl.loss.distill': 'jsd',
      'rl.loss.distill_coef': 1.0,
      'rl.logprob_chunk': 4,
    },
    'both compare whole distributions',
  ),
  (
    {'rl.algorithm': 'echo'},
    "sft_on='observations' .rl.algorithm='echo'",
  ),
  (
    {'rl.loss.sft_on': 'reference', 'rl.loss.sft_coef': 1.0},
    "sft_on='reference' puts the reference answer in place of the sampled",
  ),
  (
    {
      'rl.loss.sft_on': 'reference',
      'rl.loss.sft_coef': 1.0,
      'rl.rewards': {'answer': {'reward': 'reference_logp'}},
      'rl.in_flight.batches': 2,
      'rl.old_logp': 'sampler',
    },
    "sft_on='reference' and rl.in_flight.batches=2",
  ),
  (
    {'rl.algorithm': 'pf_ppo', 'rl.padding': 'shared:1'},
    "rl.loss.resample='power': the rows drawn",
  ),
  ({'rl.role_decay': 0.9}, 'rl.role_decay=0.9: .*baseline of the group'),
  ({'rl.old_logp': 'loglinear'}, 'which are 0 for every sample'),
  (SAMPLER | {'rl.algorithm': 'gpg'}, "'sampler': .* reads no log-probs from"),
  (
    LOGLINEAR
    | {'rl.loss.correction': 'truncate', 'rl.loss.correction_normalise': True},
    'the mean weight of a batch is not known',
  ),
  (
    LOGLINEAR | HINTS | {'rl.hints.when': 'failed'},
    "rl.hints.when='failed' and rl.old_logp='loglinear': a second try",
  ),
  (
    AGAIN | {'rl.loss.kl_in': 'reward', 'rl.loss.kl_coef': 0.1},
    "rl.hints.when='failed' and rl.old_logp='sampler': the KL in the reward",
  ),
  ({'stages': ('sft', 'dpo')}, 'stages=.*dpo'),
  (named('rl', sft={'kind': 'rl'}), 'named.sft: a stage needs another name'),
  (named('rl', a={'rl': {}}), 'named.a=.* must be a section such as'),
  (named('a', a={'kind': 'dpo'}), "named.a.kind='dpo': choose one of"),
  (named('a', a={'kind': 'rl', 'seed': 1}), 'named.a.seed: a stage of kind'),
  (named('a', a={'kind': 'rl', 'weights': 'b'}), "weights='b': 'start', or"),
  (
    named('rl', 'a', a={'kind': 'sft', 'data': {'solutions': 'rl'}}),
    'solutions=.rl.: must be a stage before it',
  ),
  (
    {'stages': ('rl', 'preference'), 'preference.pairs': 'rl'}
    | {'rollouts.every': 0},
    "preference.pairs='rl': rollouts.every=0 writes no rollouts",
  ),
  (
    HINTS | {'stages': ('rl', 'preference'), 'preference.pairs': 'rl'},
    "preference.pairs='rl': the completions .* set rl.hints.room",
  ),
  (named('rl', 'a', a={'kind': 'rl', 'keep': 'all'}), "keep='all': choose "),
  (
    {'named': {'a': {'kind': 'rl', 'keep': 5}}},
    'a.keep=5: must be names of opt',
  ),
  (
    named('rl', 'a', a={'kind': 'rl', 'keep': [['critic']]}),
    'must be names of',
  ),
  (
    named('rl', 'a', a={'kind': 'rl', 'keep': 'critic', 'weights': 'rl'}),
    'weights=.rl. has other weights; set one',
  ),
  (
    POOL | named('rl', 'a', a={'kind': 'rl', 'keep': 'control'}),
    'problems of the stage before have moved on',
  ),
  (
    named('sft', 'a', a={'kind': 'rl', 'keep': 'critic'}),
    r'stage before \(sft\) is not of kind',
  ),
  (
    named('a', a={'kind': 'rl', 'data': {'completion_len': 99}}),
    "named.a: data.completion_len=99 is above the run's own, 32",
  ),
  ({'trainable': '(layers'}, r"trainable='\(layers' is no regular"),
  ({'lora.rank': 2, 'lora.targets': '*q'}, r"lora.targets='\*q' is no regular"),
  ({'frozen_dtype': 'int4'}, "frozen_dtype='int4': choose"),
  (
    {'sft.optimizer.schedule': 'cosine', 'sft.optimizer.warmup_steps': 100},
    "sft.optimizer.schedule='cosine' has no effect: .*=100 covers all 100",
  ),
  (
    named(
      'sft',
      'a',
      a={'kind': 'rl', 'rl': {'optimizer': {'schedule': 'wsd'}, 'steps': 10}},
    ),
    "named.a: rl.optimizer.schedule='wsd' has no effect: .* all 10 updates",
  ),
  (
    PPO | {'rl.critic.warmup_updates': 20},
    "warmup_updates=20: stage 'rl' ends after 20 updates",
  ),
  (
    PPO
    | named('rl', 'a', a={'kind': 'rl', 'keep': 'critic'})
    | {'rl.critic.warmup_updates': 40},
    "warmup_updates=40: stage 'a' ends after 40 updates",
  ),
  ({'profile.steps': '301:302'}, "steps='301:302': the stages have 300 steps"),
  ({'watchdog.first_s': 60}, 'first_s=60 has no .* below watchdog.floor_s=600'),
  ({'eval.every': 15}, 'eval.every = 15 does not divide by log_every 10'),
  ({'checkpoint.emergency_every': 9999}, '=9999 is not below checkpoint.every'),
  (
    {'checkpoint.emergency_every': 5, 'checkpoint.emergency_dir': 'gs://b/e'},
    "emergency_dir='gs://b/e': must be a folder on a disk of each host",
  ),
  ({'checkpoint.every': 15}, 'checkpoint.every = 15 does not.*log_every 10'),
  ({'rl.steps_per_dispatch': 7}, r'rl.steps = 200 does not divide'),
  (
    {'rl.steps_per_dispatch': 20},
    'log_every = 10 does not divide by rl.steps_per_dispatch 20',
  ),
  ({'sft.micro_batches': 7}, 'sft.rows = 64 does not divide by'),
  ({'sft.loss': 'mse'}, "sft.loss='mse': choose one of sft, dft"),
  ({'sft.loss': 'psft'}, 'sft.minibatches=1: .* is 1, and nothing is clipped'),
  ({'pretrain.weights': 'w', 'stages': ('pretrain',)}, "pretrain.weights='w'"),
  (
    BRADLEY_TERRY | {'reward_model.heldout': 33},
    'reward_model.heldout = 33 does not divide by reward_model.rows 32',
  ),
  (
    {'sft.loss': 'eksft', 'sft.left_out': 0.0, 'stages': ('sft',)},
    "sft.left_out=0: sft.loss='eksft' would leave out no token",
  ),
  (
    {'sft.loss': 'pear', 'stages': ('sft',)},
    "sft.loss='pear' reads the log-probabilities",
  ),
  (
    {
      'sft.loss': 'pear',
      'sft.behaviour': 'logp',
      'sft.block': 0,
      'sft.gamma': 0.9,
      'stages': ('sft',),
    },
    'sft.gamma=0.9 has no effect with sft.block=0',
  ),
  (
    {'sft.loss': 'topk', 'stages': ('sft',)},
    "sft.loss='topk' reads the stored distributions",
  ),
  (
    {'pretrain.loss': 'topk', 'stages': ('pretrain',)},
    "pretrain.loss='topk' reads the stored distributions",
  ),
  (
    {'pretrain.teacher': 'a.jsonl', 'stages': ('pretrain',)},
    "pretrain.teacher='a.jsonl' has no effect: only stages of kind sft",
  ),
  (
    {'sft.least_score': 0.5, 'stages': ('sft',)},
    'sft.least_score=0.5 has no effect without the answers of a teacher',
  ),
  (
    TOPK | {'sft.loss': 'pear', 'sft.behaviour': 'logp'},
    "sft.behaviour='logp' and sft.teacher='a.jsonl' cannot be combined",
  ),
  (
    TOPK | {'sft.divergence': 'k1'},
    "sft.divergence='k1': choose one of reverse, forward",
  ),
  (
    TOPK | {'sft.weights': 'w'},
    "sft.weights='w' and sft.teacher='a.jsonl' cannot be combined",
  ),
  (
    named('rl', 'a', a={'kind': 'sft', 'data': {'solutions': 'rl'}})
    | TOPK
    | {'stages': ('rl', 'a'), 'rl.archive': 1},
    "named.a: data.solutions='rl' and sft.teacher='a.jsonl' cannot be comb",
  ),
  ({'sft.padding': 'packed:63'}, r"sft.padding='packed:63' .* = 64, the long"),
  (
    {'sft.padding': 'buckets:2', 'rl.chunks.tokens': 8, 'rl.chunks.carry': 2},
    "sft.padding='buckets:2' and rl.chunks.tokens=8: chunks have rows of",
  ),
  ({'rl.prompts': 6, 'rl.minibatches': 5}, r'6 x rl.samples 8 = 48 .*= 10'),
  (
    {'rl.extra.groups': 33},
    'rl.extra.groups = 33 does not .* 2; the next .* 34',
  ),
  (
    {'rl.path': 'host', 'rl.parts': 5},
    'rl.prompts = 32 does not divide by rl.parts 5',
  ),
  ({'rl.rewards': {}}, 'rl.rewards is empty: name a reward'),
  (
    LINKS | {'rl.turns.reward': 0.0},
    'rl.turns.reward=0.0 and rl.rewards={}: every reward is 0',
  ),
  ({'rl.rewards': {'a': 3}}, 'rl.rewards.a=3: must be a section'),
  ({'rl.rewards': {'a': {'wieght': 3}}}, "rewards.a.wieght.*'weight'"),
  ({'rl.rewards': {'a': {'weight': 3}}}, 'rewards.a lacks the key reward'),
  # Data.
  (
    {
      'data.controller.name': 'band',
      'data.controller.low': 0.9,
      'data.controller.high': 0.1,
    },
    'data.controller.low=0.9 is above data.controller.high=0.1',
  ),
  (
    {
      'data.sources': {'a': {}, 'b': {}},
      'data.controller.name': 'easy_to_hard',
    },
    "data.controller.sources='weights': 'easy_to_hard' goes by",
  ),
  (
    {'data.controller.name': 'uniform', 'data.controller.sources': 'free'},
    "sources='free' chooses between sources",
  ),
  ({'data.controller.refresh': 10}, "refresh=10 has .* than 'none'"),
  (
    POOL | {'data.controller.refresh': 3, 'rl.steps_per_dispatch': 2},
    'refresh=3 does not divide by rl.steps_per_dispatch=2',
  ),
  (POOL | STALE, 'rl.staleness=1 and data.controller.refresh=10'),
  (POOL | {'rl.archive': 2}, 'rl.archive=2 and data.controller.refresh=10'),
  (POOL | {'rl.shaping.historical': 0.1}, 'rl.shaping.historical=0.1 and'),
  (
    POOL | {'rl.temperature_control.residual': 0.1},
    'rl.temperature_control.residual=0.1 and',
  ),
  (
    POOL | REPLAY | {'rl.replay.by': 'failing'},
    "rl.replay.by='failing' and data.con",
  ),
  (
    POOL | REPLAY | {'rl.replay.mix': 'rows'},
    "rl.replay.mix='rows' and data.con",
  ),
  ({'data.knobs': {'max_opps': 3}}, r"knobs\.max_opps: .*'max_ops'"),
  ({'data.knobs': {'max_ops': 'x'}}, "knobs.max_ops='x': must be a int"),
  (
    {'data.knobs': {'max_ops': 2}},
    'data.knobs: min_ops=4 is above max_ops=2, so .*; lower min_ops, or raise',
  ),
  (
    sources(knobs={'min_ops': 8, 'max_ops': 9}, harder={'max_ops': 7}),
    'data.sources.a.harder: min_ops=8 is above max_ops=7',
  ),
  ({'data.knobs': {'ops': ''}}, r"knobs.ops='': .* of the characters \+-\*"),
  ({'data.harder': {'ops': '+^'}}, r"harder.ops='\+\^': .* characters \+-\*"),
  (
    {'data.name': 'base_conversion', 'data.knobs': {'bases': 10}},
    'data.knobs.bases=10: must be a tuple',
  ),
  ({'data.sources': {'a': 3}}, 'data.sources.a=3: must be a section such as'),
  (sources(weigth=2), "unknown key data.sources.a.weigth.*'weight'"),
  (sources(files=2), 'data.sources.a.files=2: must be a section'),
  (sources(knobs=2), 'data.sources.a.knobs=2: must be a section'),
  (sources(harder=2), 'data.sources.a.harder=2: must be a section'),
  (sources(supervised=2), 'sources.a.supervised=2: must be True or False'),
  (sources(difficulty='x'), "sources.a.difficulty='x': must be a number"),
  (sources(name='arithmetik'), "sources.a.name='arithmetik'.*'arithmetic'"),
  (sources(weight=-1), 'sources.a.weight=-1: must be a number of at least 0'),
  (
    sources(weight=SCHEDULE | {'at': 5, 'values': 1}),
    'sources.a.weight=.*must be a number',
  ),
  (sources(weight=0), 'data.sources.a.weight: all are 0; nothing would be'),
  (sources(weight=SCHEDULE), 'all weights are 0 at step 5'),
  (sources(supervised=False), 'no source of data.sources has supervised=True'),
  (
    {'data.sources': {'a': {'template': 'chat'}, 'b': {}}},
    "template='chat' of some sources only",
  ),
  # Filters and rounds.
  ({'rl.samples': 1, 'rl.filter': 'dead_groups'}, 'samples=1, rl.filter'),
  (
    ONE | {'rl.filter': 'truncated+spread', 'rl.filter_args.spread': 0.1},
    r"samples=1, rl.filter='truncated\+spread': every group",
  ),
  ({'rl.filter': 'band'}, 'low=0.0 and .*high=1.0: the band keeps every'),
  (
    {
      'rl.filter': 'band',
      'rl.filter_args.low': 0.9,
      'rl.filter_args.high': 0.1,
    },
    'low=0.9 is above',
  ),
  (
    {
      'rl.filter': 'band',
      'rl.filter_args.low': 0.3,
      'rl.filter_args.high': 0.31,
    },
    'no share of rl.samples=8 samples is in between',
  ),
  ({'rl.filter': 'random'}, 'needs rl.filter_args.share above 0'),
  (
    {'rl.filter': 'random', 'rl.filter_args.share': 1.0},
    'share=1.0: every group remains',
  ),
  (
    {'rl.critic.optimizer.lr': 1.0},
    'rl.critic.optimizer.lr=1.0: no algorithm .* set it to 0.0003',
  ),
  (
    {'rl.filter': 'shortest', 'rl.filter_args.keep': 8},
    'keep=8 of rl.samples=8: .* would drop nothing',
  ),
  (
    {'rl.archive': 1, 'rl.turns.env': 'calculator'},
    "rl.archive=1 and rl.turns.env='calculator'",
  ),
  ({'rl.refill_keep': True}, 'has no effect without rl.refill_rounds: set'),
  ({'rl.refill_rounds': 1}, "rl.refill_rounds=1 .* rl.filter='none' drops no"),
  (REFILL | {'rl.refill_keep': True}, 'refill_keep=True and rl.old_logp'),
  (REFILL | STALE, 'rl.refill_rounds=1 and rl.staleness=1'),
  (
    {'rl.extra.groups': 32, 'rl.extra.by': 'easy'},
    "rl.extra.by='easy': choose",
  ),
  (
    REFILL | {'rl.extra.groups': 32},
    'rl.refill_rounds=1 and rl.extra.groups=32',
  ),
  (
    REPLAY | {'rl.extra.groups': 32, 'rl.replay.mix': 'rows'},
    "rl.replay.mix='rows' and rl.extra.groups=32",
  ),
  (REPLAY | {'rl.replay.by': 'old'}, "rl.replay.by='old': choose"),
  (REPLAY | {'rl.replay.mix': 'all'}, "rl.replay.mix='all': choose"),
  ({'rl.replay.rows': 8}, 'rl.replay.rows=8 and rl.replay.capacity=0: set bo'),
  (REPLAY | {'rl.replay.rows': 4, 'rl.micro_batches': 1}, 'multiple of rl.sa'),
  (REPLAY | {'rl.replay.capacity': 9}, 'capacity=9 groups are fewer'),
  (REPLAY | {'rl.extra.groups': 32}, r'fewer .* \+ rl.extra.groups=32\)'),
  (REPLAY | {'rl.old_logp': 'trainer'}, 'rl.replay.rows=8 and rl.old_logp'),
  (REPLAY | STALE, 'rl.replay.rows=8 and rl.staleness=1'),
  (HINTS | {'rl.hints.when': 'never'}, "rl.hints.when='never': choose"),
  (HINTS | {'rl.hints.by': 'luck'}, "rl.hints.by='luck': choose"),
  (HINTS | {'rl.hints.at': (0.0, 1.0)}, 'as many shares as points'),
  (HINTS | {'rl.hints.share': (2.0,)}, 'must be shares from 0 to 1'),
  (HINTS | {'rl.hints.share': ('x',)}, r"share=\('x',\): set numbers, as many"),
  (
    HINTS | {'rl.hints.at': (0, 'a'), 'rl.hints.share': (0.1, 0.2)},
    r"rl.hints.at=\(0, 'a'\) and .*: set numbers, as many",
  ),
  (AGAIN | {'rl.hints.learn': True}, "hints.learn=True and rl.hints.when='fai"),
  (HINTS | {'rl.archive': 1}, 'rl.archive=1 and rl.hints.room=4'),
  (HINTS | DEMOS, 'rl.demos=1 and rl.hints.room=4'),
  (AGAIN | {'rl.old_logp': 'trainer'}, "rl.hints.when='failed' and rl.old_l"),
  (AGAIN | STALE, "rl.hints.when='failed' and rl.staleness=1"),
  (HINTS | {'rl.hints.by': 'solve_rate'}, 'all rows begin with a hint'),
  (HINTS | {'rl.reference.patience': 3}, 'rl.reference.patience=3 follows'),
  (
    HINTS | {'rl.rewards.a.reward': 'task', 'rl.rewards.a.weight': OF_LENGTH},
    'rl.rewards.a.weight follows rows without hints',
  ),
  (AGAIN | {'rl.extra.groups': 32}, 'rl.extra.groups=32 and rl.hints.when='),
  (LASER | {'rl.shaping.laser_lengths': (8, 4)}, 'tokens above 0 that rise'),
  ({'rl.shaping.laser': 0.1}, 'rl.shaping.laser=0.1 and rl.shaping.laser_len'),
  (ONE | {'rl.shaping.repeats': 0.1}, 'repeats=0.1 and rl.samples=1: it comp'),
  (ONE | {'rl.shaping.brevity': 0.1}, 'brevity=0.1 and rl.samples=1: it comp'),
  (LINKS | {'rl.shaping.repeats': 0.1}, "repeats=0.1 and rl.turns.env='chain'"),
  (
    LINKS | {'rl.shaping.historical': 0.1},
    "historical=0.1 and rl.turns.env='chain' without rl.rewards",
  ),
  (
    {'rl.shaping.price': 0.1, 'rl.shaping.price_most': 0.5},
    'price_most=0.5 has no effect without rl.shaping.price_rate',
  ),
  (
    {'rl.shaping.laser_explore': 0.1},
    'explore=0.1 has no effect without rl.shaping.laser',
  ),
  (
    {'rl.shaping.repetition_n': 3},
    '_n=3 has no effect without rl.shaping.repetition',
  ),
  (
    {'rl.shaping.price_rate': 0.1, 'rl.shaping.price_by': 'luck'},
    "rl.shaping.price_by='luck': choose",
  ),
  (
    {'rl.shaping.price': 2.0, 'rl.shaping.price_rate': 0.1},
    'rl.shaping.price=2.0 is above',
  ),
  # The loss.
  (
    {'rl.samples': 3, 'rl.prompts': 8, 'rl.loss.advantage': 'passk'},
    'pass_k=4',
  ),
  ({'rl.samples': 1}, 'rl.samples=1: .*group_zscore.*reinforce'),
  (
    {'rl.filter': 'best', 'rl.filter_args.keep': 1},
    'rl.filter_args.keep=1: .*group_zscore.*reinforce',
  ),
  (
    {'rl.algorithm': 'gfpo', 'rl.loss.keep_k': 1},
    'rl.loss.keep_k=1: .*gfpo.*reinforce',
  ),
  ({'rl.algorithm': 'gfpo', 'rl.loss.keep_k': 8}, 'keep_k=8 of rl.samples=8'),
  (
    {'rl.algorithm': 'pkpo', 'rl.filter': 'varied', 'rl.filter_args.keep': 3},
    'rl.filter_args.keep=3: .*pkpo.*pass_k=4',
  ),
  (
    {
      'rl.algorithm': 'pkpo',
      'rl.loss.pass_k': 8,
      'rl.loss.pkpo_baseline': 'loo',
    },
    "rl.samples=8: rl.loss.pkpo_baseline='loo' reads .* lower pass_k",
  ),
  (
    GDPO | {'rl.loss.part_weights': (1.0,)},
    r'part_weights=\(1.0,\) for the parts answer, judge of the reward',
  ),
  (
    GDPO | {'rl.rewards.judge.weight': SCHEDULE},
    'rl.rewards.judge.weight is a schedule',
  ),
  (GDPO | {'rl.overlong': 4}, "rl.overlong=4 has no effect .*'gdpo' does not"),
  (
    {'rl.algorithm': 'opd', 'rl.teacher.weights': 'a', 'rl.shaping.alp': 0.1},
    "rl.shaping.alp=0.1 has no effect with rl.algorithm='opd'",
  ),
  (
    {'rl.algorithm': 'raft', 'rl.shaping.historical': 0.1},
    "historical=0.1: incorrect .*'raft' counts .* set rl.loss.threshold",
  ),
  (
    JUDGED | {'rl.algorithm': 'vapo'},
    "rl.rewards.judge.weight=1.0: incorrect .*'vapo' counts each",
  ),
  (
    {'rl.shaping.repetition': 1.0, 'rl.shaping.repetition_n': 32},
    'repetition_n=32 of data.completion_len=32',
  ),
  ({'rl.demos': 8}, 'rl.demos=8 leaves no sample'),
  (DEMOS | {'rl.demos_when': 'never'}, "rl.demos_when='never': choose"),
  (DEMOS | {'rl.demos_prompt': '{answer}'}, 'lacks {prompt}, the problem'),
  (DEMOS | {'rl.demos_prompt': '{prompt}'}, 'only with {answer} or {solution}'),
  (
    DEMOS | {'rl.demos_prompt': '{prompt}{answer}{sample}'},
    'the other fields are of a teacher',
  ),
  (EXPLAIN | {'rl.chunks.tokens': 8}, 'chunks.tokens=8 and rl.demos_prompt=.*'),
  (FAILED | STALE, "rl.staleness=1 and rl.demos_when='failed'"),
  (FAILED | {'rl.extra.groups': 32}, 'rl.extra.groups=32 and rl.demos_when='),
  (FAILED | REPLAY, "rl.replay.rows=8 and rl.demos_when='failed'"),
  (FAILED | {'rl.replay_routes': True}, 'rl.replay_routes=True and rl.demos_w'),
  (FAILED | {'rl.turns.env': 'calculator'}, "env='calculator' and rl.demos_w"),
  ({'rl.hints.learn': True}, 'learn=True has no effect without rl.hints.room'),
  (HINTS | {'rl.hints.learn': True}, 'rl.hints.learn=True: .*rl_plus or sft'),
  (
    HINTS | {'rl.hints.learn': True, 'rl.loss.offpolicy': 'drop'},
    'rl.hints.learn=True: .* has no loss of tokens that the policy did not',
  ),
  ({'rl.demos': 1}, 'rl.demos=1.*offpolicy to luffy'),
  ({'rl.algorithm': 'luffy'}, 'luffy.*set rl.demos=1'),
  ({'rl.old_logp': 'actor'}, "rl.old_logp='actor': choose"),
  (DEMOS | SAMPLER, 'the sampler computes no log-probs of demonstrations'),
  (QUEUE | {'rl.extra.groups': 32}, 'rl.extra.groups=32 and rl.staleness=2'),
  (QUEUE | REPLAY, 'rl.replay.rows=8 and rl.staleness=2'),
  (
    QUEUE | REFILL | {'rl.refill_keep': True},
    'rl.refill_keep=True and rl.staleness=2',
  ),
  (QUEUE | {'rl.replay_routes': True}, 'rl.replay_routes=True and rl.stale'),
  (QUEUE | {'rl.turns.env': 'calculator'}, "calculator' and rl.staleness=2"),
  (QUEUE | {'rl.steps': 2}, 'no batch leaves the queue in rl.steps=2'),
  (QUEUE | RLOO, "rl.staleness=2: rl.loss.policy='log_likelihood'"),
  ({'rl.league.share': 0.5}, "rl.league.share=0.5: rl.turns.env='' is no game"),
  ({'rl.league.every': 2}, 'rl.league.every=2 has no effect without'),
  (GAME | {'rl.algorithm': 'grpo'}, "share=0.5: rl.loss.advantage='gr"),
  (GAME | RLOO, 'share=0.5: rl.loss.advantage=.*rows of past versions too'),
  (LEAGUE | {'rl.replay_routes': True}, 'replay_routes=True and rl.league.sh'),
  (LEAGUE | {'rl.extra.groups': 2}, 'extra.groups=2 and rl.league.share=0.5'),
  (
    LEAGUE | {'rl.filter': 'truncated+band'},
    "rl.filter='truncated.band' and rl.league.share=0.5 .* past versions",
  ),
  (LEAGUE | REFILL, "rl.filter='dead_groups' and rl.league.share=0.5"),
  (LEAGUE | LASER, 'laser=0.1 and rl.league.share=0.5 .* rows of a group'),
  (LEAGUE | {'rl.shaping.alp': 0.1}, 'shaping.alp=0.1 and rl.league.share=0'),
  (LEAGUE | {'rl.shaping.repeats': 0.1}, 'repeats=0.1 and rl.league.share=0'),
  (LEAGUE | {'rl.shaping.brevity': 0.1}, 'brevity=0.1 and rl.league.share=0'),
  (
    LEAGUE | {'rl.algorithm': 'echo', 'rl.loss.advantage': 'reinforce'},
    "sft_on='observations' and rl.league.sha",
  ),
  (
    PROPOSE | {'rl.samples': 1, 'rl.algorithm': 'reinforce'},
    'one answer to a p',
  ),
  (
    PROPOSE | {'rl.rewards.answer.kwargs': {'x': 1}},
    'the reward of the task al',
  ),
  (PROPOSE | {'rl.algorithm': 'remax'}, 'a greedy proposal has no reward'),
  (PROPOSE | POOL, 'statistics of problems would count proposals'),
  (PROPOSE | {'rl.path': 'host'}, "rl.path='host' and rl.propose='.'"),
  (PROPOSE | TWO, "sampler_mesh=.1, 4, 1. and rl.propose='.'"),
  (PROPOSE | {'rl.turns.env': 'guess'}, "env='guess' and rl.propose='.'"),
  (
    PROPOSE | {'rl.chunks.tokens': 8, 'rl.chunks.carry': 2},
    "rl.chunks.tokens=8 and rl.propose='.'",
  ),
  (PROPOSE | TREE, "rl.tree.width=2 and rl.propose='.'"),
  (PROPOSE | FLIGHT, "rl.in_flight.batches=3 and rl.propose='.'"),
  (PROPOSE | QUEUE, "rl.staleness=2 and rl.propose='.'"),
  (PROPOSE | {'rl.refill_rounds': 1}, "rl.refill_rounds=1 and rl.propose='.'"),
  (PROPOSE | {'rl.extra.groups': 2}, "rl.extra.groups=2 and rl.propose='.'"),
  (PROPOSE | HINTS, "rl.hints.room=[0-9]* and rl.propose='.'"),
  (PROPOSE | DEMOS, "rl.demos=1 and rl.propose='.'"),
  (PROPOSE | REPLAY, "rl.replay.rows=8 and rl.propose='.'"),
  (
    PROPOSE | {'rl.role_decay': 0.9, 'rl.algorithm': 'reinforce'},
    "rl.role_decay=0.9 and rl.propose='.'",
  ),
  (
    PROPOSE | UNDER,
    "rl.teacher.prompt=.* and rl.propose='.'",
  ),
  (PROPOSE | {'rl.archive': 1}, "rl.archive=1 and rl.propose='.'"),
  (
    PROPOSE | {'rl.shaping.historical': 0.1},
    "rl.shaping.historical=0.1 and rl.propose='.'",
  ),
  (
    PROPOSE | {'rl.padding': 'shared:1'},
    "padding='shared:1' and rl.propose='.'",
  ),
  (LEAGUE | TWO, 'rl.league.share=0.5 and sampler_mesh=.* cannot be'),
  (OF_GAME | {'lora.rank': 0}, 'adapters=True has no effect without lora.ra'),
  (ROLES, 'rl.role_adapters=True: the rl stage has one role'),
  (
    named('x', x=dict(kind='rl', rl=dict(role_adapters=True)))
    | {'lora.rank': 2}
    | {'rl.turns.env': 'subtraction'},
    'role_adapters=False in the run, and True in named.x',
  ),
  (ROLES | {'rl.turns.env': 'guess'}, 'True: the rl stage has one role'),
  (OF_GAME | {'stages': ('sft', 'rl')}, 'rows of the stage sft have no role'),
  (OF_GAME | {'rl.algorithm': 'ppo'}, 'a critic reads rows without their role'),
  (OF_GAME | NOVELTY, 'rewards.far and rl.role_adapters=True: a reward of hid'),
  (OF_GAME | {'model.numerics': 'exact'}, "numerics='exact' and rl.role_ad"),
  (OF_GAME | LEAGUE, 'share=0.5 and rl.role_adapters=True'),
  (OF_GAME | {'rl.padding': 'shared:1'}, "'shared:1' and rl.role_adapters=T"),
  (OF_GAME | {'rl.probe.rate': 0.1}, 'rate=0.1 and rl.role_adapters=True'),
  (OF_GAME | {'rl.replay_routes': True}, 'routes=True and rl.role_adapters'),
  (OF_GAME | UNDER, 'rl.teacher.prompt=.* and rl.role_adapters=True'),
  (
    OF_GAME | PREFERRED,
    "rl.reward_model.weights='a_run' and rl.role_adapters=True",
  ),
  (OF_GAME | VERDICT, "sft_on='verdict' and rl.role_adapters=True"),
  ({'rl.roles.solver': {}}, 'rl.roles.solver: the roles of this run are none'),
  (PROPOSE | {'rl.roles.solver': 'rloo'}, 'rl.roles.solver must be dict.alg'),
  (PROPOSE | {'rl.roles.judge': {}}, 'of this run are proposer, solver; set'),
  (PROPOSE | {'rl.roles.solver': {'lr': 1}}, "roles: 'lr' is no key of a role"),
  (
    PROPOSE | {'rl.roles.solver': {'algorithm': 'ppo'}},
    'rl.roles.solver: .* cannot be read by the loss of a role',
  ),
  (
    PROPOSE | {'rl.roles.solver': {'loss': {'kl_coef': 0.1, 'kl_target': 0.1}}},
    'rl.roles.solver: kl_target changes a coefficient of all rows',
  ),
  (
    PROPOSE | {'rl.roles.solver': {'loss': {'resample': 'power'}}},
    'rl.roles.solver: resampled rows and off-policy tokens have no loss',
  ),
  (
    PROPOSE | BOTH | {'rl.minibatches': 2},
    "^rl.roles.proposer: rl.minibatches=2: .* .rl.algorithm='rloo'. has no rat",
  ),
  (
    PROPOSE | BOTH | {'rl.loss.clip_high': 0.3},
    'rl.loss.clip_high=0.3 has no effect: both roles name an algorithm',
  ),
  *(
    (PLAYERS | {key: x}, f'{key}=.* and rl.roles cannot be combined')
    for key, x in {
      'sampler_mesh': (1, 4, 1),
      'rl.chunks.tokens': 4,
      'rl.tree.width': 2,
      'rl.in_flight.batches': 3,
      'rl.staleness': 1,
      'rl.refill_rounds': 1,
      'rl.extra.groups': 32,
      'rl.hints.room': 4,
      'rl.demos': 1,
      'rl.replay.rows': 8,
      'rl.league.share': 0.5,
    }.items()
  ),
  (
    PROPOSE | {'rl.roles.solver': {}, 'rl.path': 'host'},
    "rl.path='host' and rl.roles cannot be combined",
  ),
  ({'rl.tree.width': 1}, 'rl.tree.width=1: a fork has at least 2 children'),
  ({'rl.tree.columns': (8,)}, 'columns.* has no .* rl.tree.width'),
  (TREE | {'rl.tree.columns': (9, 4)}, r'rl.tree.columns=\(9, 4\): .* rising'),
  (TREE | {'rl.tree.columns': (32,)}, r'rl.tree.columns=\(32,\): .* to .*31'),
  (TREE | {'rl.samples': 5}, 'rl.samples=5: .* set it to a multiple of 2'),
  (TREE | {'rl.cache_segments': 2}, 'rl.cache_segments=2 and rl.tree.width=2'),
  (TREE | {'rl.slots': 2}, 'rl.slots=2 and rl.tree.width=2'),
  (TREE | DEMOS, 'rl.demos=1 and rl.tree.width=2'),
  (TREE | FAILED, 'rl.demos=1 and rl.tree.width=2'),
  (TREE | FLIGHT, 'rl.in_flight.batches=3 and rl.tree.width=2'),
  (
    TREE | {'rl.chunks.tokens': 4, 'rl.chunks.carry': 2},
    'rl.chunks.tokens=4 and rl.tree.width=2',
  ),
  (TREE | {'rl.replay_routes': True}, 'replay_routes=True and rl.tree.width=2'),
  (
    TREE | {'rl.turns.env': 'calculator', 'rl.tree.columns': (4,)},
    r"columns=\(4,\) and rl.turns.env='calculator': it would fork within a t",
  ),
  (
    TREE | {'rl.turns.env': 'calculator', 'rl.tree.step_end': ' '},
    "step_end=' ' and rl.turns.env='calculator': it would fork within a turn",
  ),
  (TREE | {'rl.tree.turns': (1,)}, r'turns=\(1,\): without rl.turns.env, a co'),
  (
    TREE | {'rl.turns.env': 'calculator', 'rl.tree.turns': (2, 1)},
    r'rl.tree.turns=\(2, 1\): indices from 1 to .*, since rl.turns.most is',
  ),
  (
    TREE | {'rl.turns.env': 'calculator', 'rl.tree.turns': (True, 2)},
    r'rl.tree.turns=\(True, 2\): indices from 1',
  ),
  (
    TREE | LINKS | {'rl.tree.turns': (2,)},
    r'turns=\(2,\): .* 1, .* since the number of rl.turns.links is 2',
  ),
  (
    TREE | {'rl.turns.env': 'calculator', 'rl.turns.most': 1},
    'rl.tree.forks=1: rl.turns.most is 1, so there are 0 places for forks; .*',
  ),
  (
    TREE | {'rl.turns.env': 'calculator', 'rl.path': 'host'},
    "env='calculator' and rl.tree.width=2: a fork copies the state of the env",
  ),
  (
    TREE | {'rl.turns.env': 'subtraction'},
    "env='subtraction' and rl.tree.width=2: the two players of a game",
  ),
  (
    TREE | {'rl.presence_penalty': 0.2, 'rl.logprob_chunk': 8},
    'rl.presence_penalty=0.2 and rl.tree.width=2',
  ),
  (
    TREE | {'rl.frequency_penalty': 0.2, 'rl.logprob_chunk': 8},
    'rl.frequency_penalty=0.2 and rl.tree.width=2',
  ),
  (TREE | PENALTY, 'rl.repetition_penalty=1.2 and rl.tree'),
  (
    TREE | {'rl.tree.columns': (4,), 'rl.tree.step_end': ' '},
    r"rl.tree.step_end=' ' and rl.tree.columns=\(4,\)",
  ),
  ({'rl.tree.step_end': ' '}, "step_end=' ' has no .* rl.tree.width"),
  ({'rl.tree.forks': 3}, 'forks=3 has no .* rl.tree.width'),
  (
    TREE | {'rl.tree.columns': (4,), 'rl.tree.forks': 3},
    r'rl.tree.forks=3 and rl.tree.columns=\(4,\): rl.tree.columns fixes',
  ),
  (
    TREE | {'rl.turns.env': 'calculator'} | TURNS_AND_FORKS,
    r'rl.tree.forks=3 and rl.tree.turns=\(1,\): rl.tree.turns fixes',
  ),
  (TREE | {'rl.tree.forks': 32}, 'forks=32: .* is 32, so there are 31 places'),
  (
    TREE | {'rl.tree.forks': 4},
    'rl.samples=.*: a tree of rl.tree.width=2 and rl.tree.forks=4 has 5 leaves',
  ),
  ({'rl.search.candidates': 3}, 'candidates=3 has no .* rl.search.simulations'),
  (SEARCH, 'simulations=8: searched .* no samples .*; set rl.algorithm=.raft'),
  (SEARCH | {'rl.search.leaf': 'judge'}, "rl.search.leaf='judge': choose"),
  (SEARCH | {'rl.search.candidates': 9}, 'simulations=8 and .*candidates=9: a'),
  (SEARCH | {'rl.search.step_tokens': 32}, 'step_tokens=32: .* fewer .* than'),
  (
    SEARCH | {'rl.rewards.answer': {'reward': 'random'}},
    r"simulations=8: the reward 'random' reads more than a completion",
  ),
  (SEARCH | {'rl.cache_segments': 2}, 'rl.cache_segments=2 and rl.search'),
  (SEARCH | {'rl.path': 'host'}, "rl.path='host' and rl.search.simulations=8"),
  (SEARCH | {'rl.turns.env': 'calculator'}, "calculator' and rl.search"),
  (SEARCH | PROPOSE, "rl.propose='.' and rl.search"),
  (
    SEARCH | {'rl.chunks.tokens': 16, 'rl.chunks.carry': 4},
    'rl.chunks.tokens=16 and rl.search',
  ),
  (SEARCH | TREE, 'rl.tree.width=2 and rl.search'),
  (SEARCH | FLIGHT, 'rl.in_flight.batches=3 and rl.search'),
  (SEARCH | {'rl.slots': 2}, 'rl.slots=2 and rl.search'),
  (SEARCH | DEMOS, 'rl.demos=1 and rl.search'),
  (SEARCH | {'rl.replay_routes': True}, 'replay_routes=True and rl.search'),
  (SEARCH | GRAMMAR, 'rl.regex=.* and rl.search'),
  (SEARCH | PENALTY, 'rl.repetition_penalty=1.2 and rl.search'),
  (
    SEARCH | {'rl.presence_penalty': 0.2, 'rl.logprob_chunk': 8},
    'rl.presence_penalty=0.2 and rl.search',
  ),
  (
    SEARCH | {'rl.frequency_penalty': 0.2, 'rl.logprob_chunk': 8},
    'rl.frequency_penalty=0.2 and rl.search',
  ),
  (FLIGHT | {'rl.in_flight.batches': 1}, 'no group would stay in flight'),
  (FLIGHT | {'rl.steps': 2, 'log_every': 1}, 'no step of rl.steps=2 would'),
  (FLIGHT | {'rl.in_flight.max_staleness': 1}, 'max_staleness=1: .* after 2 s'),
  (FLIGHT | {'rl.in_flight.pieces': 5}, 'rl.prompts = 32 does not .*pieces 5'),
  ({'rl.in_flight.pieces': 2}, 'pieces=2 has no .* rl.in_flight.batches'),
  (FLIGHT | {'rl.in_flight.cache': 'new'}, "rl.in_flight.cache='new'"),
  (
    {'rl.in_flight.cache': 'recomputed'},
    "cache='recomputed' has no .* rl.in_flight.batches",
  ),
  (FLIGHT | RLOO, "rl.in_flight.batches=3: rl.loss.policy='log_likelihood'"),
  (FLIGHT | {'rl.old_logp': 'trainer'}, 'batches=3 and rl.old_logp="trainer"'),
  (
    FLIGHT | DECOUPLED | {'rl.algorithm': 'remax'},
    "algorithm='remax' reads a greedy",
  ),
  (FLIGHT | {'rl.cache_segments': 2}, 'rl.cache_segments=2 and rl.in_flight'),
  (FLIGHT | POOL, 'rl.in_flight.batches=3 and data.controller.refresh=10'),
  (FLIGHT | {'rl.path': 'host'}, "rl.path='host' and rl.in_flight.batches=3"),
  (FLIGHT | QUEUE, 'rl.staleness=2 and rl.in_flight.batches=3'),
  (FLIGHT | REFILL, 'rl.refill_rounds=1 and rl.in_flight.batches=3'),
  (FLIGHT | {'rl.extra.groups': 32}, 'rl.extra.groups=32 and rl.in_flight'),
  (FLIGHT | REPLAY, 'rl.replay.rows=8 and rl.in_flight.batches=3'),
  (FLIGHT | HINTS, 'rl.hints.room=4 and rl.in_flight.batches=3'),
  (
    FLIGHT | DEMOS | DECOUPLED,
    'rl.demos=1 and rl.in_flight.batches=3',
  ),
  (FLIGHT | {'rl.replay_routes': True}, 'replay_routes=True and rl.in_flight'),
  (FLIGHT | {'rl.turns.env': 'calculator'}, "calculator' and rl.in_flight"),
  (
    FLIGHT | {'rl.chunks.tokens': 16, 'rl.chunks.carry': 4},
    'rl.chunks.tokens=16 and rl.in_flight.batches=3',
  ),
  (
    FLIGHT | {'rl.temperature_control.entropy': 0.5},
    'rl.temperature_control.entropy=0.5 and rl.in_flight.batches=3',
  ),
  (
    FLIGHT | {'rl.temperature_control.residual': 0.5},
    'rl.temperature_control.residual=0.5 and rl.in_flight.batches=3',
  ),
  (FLIGHT | PENALTY, 'rl.repetition_penalty=1.2 and rl.in_flight.batches=3'),
  (
    FLIGHT | {'rl.presence_penalty': 0.2, 'rl.logprob_chunk': 8},
    'rl.presence_penalty=0.2 and rl.in_flight.batches=3',
  ),
  (
    FLIGHT | {'rl.frequency_penalty': 0.2, 'rl.logprob_chunk': 8},
    'rl.frequency_penalty=0.2 and rl.in_flight.batches=3',
  ),
  (STALE | {'rl.old_logp': 'trainer'}, 'ness=1 and rl.old_logp="trainer": not'),
  (LOGLINEAR, 'rows=8 and rl.old_logp="loglinear": nothing weighs'),
  ({'rl.invalid_limit': 0.1}, "limit=0.1 has no effect without rl.path='host'"),
  # Samples of an earlier policy: a ratio to it, or a weight.
  (
    SAMPLER | {'rl.loss.correction': 'mask', 'rl.loss.correction_low': 0.5},
    "rl.loss.correction='mask': weighs .* every weight would be 1",
  ),
  (
    SAMPLER | {'rl.algorithm': 'm2po'},
    'rl.loss.max_second_moment=0.04: weighs .* every weight would be 1',
  ),
  (SAMPLER | {'rl.loss.veto': 0.1}, 'rl.loss.veto=0.1: weighs .* would be 1'),
  (STALE | RLOO, "rl.staleness=1: rl.loss.policy='log_likelihood'"),
  (REPLAY | RLOO, "rl.replay.rows=8: rl.loss.policy='log_likelihood'"),
  (
    REFILL | SAMPLER | RLOO | {'rl.refill_keep': True},
    'keep=True: rl.loss.pol',
  ),
  (AGAIN | RLOO, "when='failed': rl.loss.policy='log_likelihood'"),
  (RLOO | {'rl.epochs': 2}, "rl.epochs=2: rl.loss.policy='log_likelihood'"),
  (RLOO | {'rl.minibatches': 2}, 'rl.minibatches=2: .*rl.micro_batches splits'),
  (
    {'rl.reference.optimizer': True},
    'optimizer=True has .* without rl.reference.every',
  ),
  (
    {'rl.reference.every': 5, 'rl.algorithm': 'dapo'},
    'every=5: .* reads no reference',
  ),
  (MOVES | {'lora.rank': 2}, 'reference of a model with adapters'),
  (MOVES | {'rl.reference_memory': 'host'}, "reference_memory='host': a refe"),
  (
    {'rl.reference_memory': 'host', 'rl.algorithm': 'dapo'},
    "memory='host': rl.algorithm='dapo' reads no reference",
  ),
  (
    {'rl.reference_memory': 'host', 'rl.loss.kl_coef': 0.01, 'steering': True},
    "memory='host': the reference of a model with adapters is",
  ),
  (
    {'rl.algorithm': 'prime', 'rl.reference.kl': 0.1},
    'rl.reference.kl=0.1: no term of the loss is a KL to the reference',
  ),
  (
    RLOO | {'rl.reference.kl': 0.1},
    'rl.reference.kl=0.1: no term of the loss is a KL to the reference',
  ),
  (
    {'rl.reference.kl': 0.1, 'rl.teacher.weights': 'reference'}
    | {'rl.loss.kl_coef': 0.1, 'rl.loss.kl_to': 'old', 'rl.epochs': 2},
    'rl.reference.kl=0.1: no term of the loss is a KL to the reference',
  ),
  (
    UNDER | {'rl.algorithm': 'grpo', 'rl.teacher.weights': ''},
    'without rl.teacher.weights',
  ),
  (OPD | {'rl.teacher.weights': 'policy'}, "'policy' agrees with the policy"),
  (UNDER | {'rl.teacher.prompt': '{solution}'}, 'lacks {prompt}, the problem'),
  (UNDER | {'rl.teacher.prompt_len': 0}, 'prompt_len=0: set both'),
  (
    TAUGHT | {'rl.teacher.prompt': '{prompt}', 'rl.teacher.prompt_len': 40},
    "rl.teacher.prompt='{prompt}' has no effect: .*'grpo' reads no teacher",
  ),
  (
    UNDER | {'rl.chunks.tokens': 8, 'rl.chunks.carry': 2},
    'rl.chunks.tokens=8 and rl.teacher.prompt=.* cannot be combined',
  ),
  (
    UNDER | HINTS | {'rl.hints.learn': True, 'rl.loss.offpolicy': 'sft'},
    'rl.hints.learn=True and rl.teacher.prompt=.* cannot be combined',
  ),
  (
    UNDER | {'rl.teacher.right': 'yes'},
    "right='yes' has no effect: .* lacks {verdict}",
  ),
  (
    TOLD | {'rl.teacher.no_sample': '{sample}'},
    "no_sample='{sample}' may have {prompt}, {solution} and {answer} only",
  ),
  (TOLD | {'rl.teacher.wrong': 'yes'}, "{verdict} that is always 'yes'"),
  (TOLD | {'rl.samples': 1}, 'another row of the group, and rl.samples'),
  (
    UNDER | {'rl.teacher.prompt': '{prompt} {observations}'},
    'has {observations}, and completions have none without rl.turns.env',
  ),
  (
    UNDER
    | {'rl.teacher.prompt': '{prompt} {detail}', 'rl.teacher.detail_len': 8},
    "has the {detail} of a verifier in Python.*rl.path='host'",
  ),
  (
    UNDER | {'rl.teacher.detail_len': 8},
    'rl.teacher.detail_len=8: set both, {detail} in the prompt',
  ),
  (
    TOLD | {'rl.turns.env': 'subtraction'},
    "rl.turns.env='subtraction' and rl.teacher.prompt=.* of the other player",
  ),
  (TOLD | HINTS, 'rl.hints.room=4 and rl.teacher.prompt=.* after a hint lacks'),
  ({'rl.algorithm': 'opd'}, "'opd' learns from a teacher: set rl.teacher.wei"),
  ({'rl.teacher.weights': 'a_run'}, "'a_run': rl.algorithm=.* reads no teache"),
  (OPD | {'rl.teacher.dtype': 'int4'}, "rl.teacher.dtype='int4': choose"),
  (OPD | {'rl.teacher.memory': 'disk'}, "teacher.memory='disk': choose device"),
  (
    OPD | {'rl.teacher.weights': 'reference', 'rl.teacher.dtype': 'int8'},
    "dtype='int8' with rl.teacher.weights='reference': there are no weights",
  ),
  ({'rl.teacher.memory': 'host'}, "='host' has no effect without rl.teach"),
  (
    OPD | {'rl.teacher.weights': 'reference', 'rl.teacher.memory': 'host'},
    "memory='host' with .* set it to device",
  ),
  (OPD | {'rl.algorithm': 'gkd'}, 'rl.logprob_chunk=0: .* logits of two mod'),
  (OPD | {'rl.top_k': 5}, 'rl.top_k=5: a teacher scores the whole vocabulary'),
  (OPD | {'rl.top_p': 0.9}, 'rl.top_p=0.9: a teacher scores the whole voc'),
  (OPD | {'rl.min_p': 0.1}, 'rl.min_p=0.1: a teacher scores the whole voc'),
  (OPD | {'rl.logit_bias': {'7': 1.0}}, "logit_bias={'7': 1.0}: a teacher sc"),
  (
    {'rl.presence_penalty': 0.1},
    'counts .*logprob_chunk=0 all',
  ),
  (PENALTY | {'rl.algorithm': 'tbrm'}, 'whole logits, and the counts of earl'),
  (PENALTY | {'rl.padding': 'packed:64'}, "padding='packed:64' and rl.repet"),
  (
    PENALTY | {'rl.chunks.tokens': 8, 'rl.chunks.carry': 2},
    'rl.chunks.tokens=8 and rl.repetition_penalty=1.2 cannot be combined',
  ),
  (
    PENALTY | {'rl.turns.env': 'calculator'},
    "rl.turns.env='calculator' and rl.repetition_penalty=1.2 cannot be com",
  ),
  (
    PENALTY | HINTS | {'rl.hints.learn': True, 'rl.loss.offpolicy': 'sft'},
    'rl.hints.learn=True and rl.repetition_penalty=1.2 cannot be combined',
  ),
  (PENALTY | OPD, "teacher.weights='.*' and rl.repetition_penalty=1.2 cannot"),
  ({'rl.regex': '[0-9'}, r"rl.regex: '\[0-9': .*building NFA"),
  (GRAMMAR | {'rl.json_schema': 'x'}, 'rl.regex and rl.json_schema: set one'),
  ({'rl.json_schema': '/nope.json'}, 'rl.json_schema=/nope.json: .*No such f'),
  (GRAMMAR | VERDICT, "rl.loss.sft_on='verdict' and rl.regex=.* cannot be"),
  (GRAMMAR | {'rl.algorithm': 'tbrm'}, 'compares the logits of all tokens'),
  (
    GRAMMAR | {'rl.turns.env': 'calculator'},
    r"rl.turns.env='calculator' and rl.regex='\[0-9\]\+' cannot be combined",
  ),
  (
    GRAMMAR | {'rl.chunks.tokens': 8, 'rl.chunks.carry': 2},
    'rl.chunks.tokens=8 and rl.regex',
  ),
  (GRAMMAR | PROPOSE, "rl.propose='.' and rl.regex"),
  (GRAMMAR | {'rl.slots': 2}, 'rl.slots=2 and rl.regex'),
  (GRAMMAR | TREE, 'rl.tree.width=2 and rl.regex'),
  (GRAMMAR | FLIGHT, 'rl.in_flight.batches=3 and rl.regex'),
  (GRAMMAR | DEMOS, 'rl.demos=1 and rl.regex'),
  (
    GRAMMAR | HINTS | {'rl.hints.learn': True, 'rl.loss.offpolicy': 'sft'},
    'rl.hints.learn=True and rl.regex',
  ),
  (GRAMMAR | OPD, "teacher.weights='.*' and rl.regex"),
  ({'rl.temperature_control.entropy': 0.3, 'rl.algorithm': 'tbrm'}, 'no entr'),
  (
    {'rl.temperature_control.entropy': 0.3, 'rl.temperature': 3.0},
    'rl.temperature=3.0 is not within rl.temperature_control.low=0.3',
  ),
  (
    {
      'rl.temperature_control.residual': 0.1,
      'rl.temperature_control.residual_of': 'wrong',
    },
    "rl.temperature_control.residual_of='wrong': choose",
  ),
  (
    {
      'rl.temperature_control.residual': 0.1,
      'rl.samples': 1,
      'rl.loss.advantage': 'reinforce',
    },
    'residual=0.1 and rl.samples=1',
  ),
  (
    DEMOS | {'rl.padding': 'shared:1', 'rl.replay_routes': True},
    "padding='shared:1' with rl.demos=1 and rl.replay_routes",
  ),
  (
    {'rl.padding': 'tree:1', 'rl.replay_routes': True},
    "padding='tree:1' and rl.replay_routes=True",
  ),
  (PENALTY | {'rl.padding': 'tree:1'}, "padding='tree:1' and rl.repetition"),
  (
    HINTS
    | {
      'rl.padding': 'shared:1',
      'rl.hints.learn': True,
      'rl.loss.offpolicy': 'sft',
    },
    "padding='shared:1' and rl.hints.learn=True",
  ),
  ({'rl.padding': 'packed:63'}, r"padding='packed:63' .* 32 .* 32 = 64"),
  ({'rl.padding': 'packed:64', 'rl.algorithm': 'tbrm'}, 'whole logits'),
  ({'sampler_mesh': (1, 0, 1)}, r'sampler_mesh=\(1, 0, 1\): sizes of at le'),
  (TWO | {'rl.steps_per_dispatch': 2}, 'steps_per_dispatch=2 .*: the halves'),
  (
    TWO | JUDGED | {'rl.verdict.by': 'teacher', 'rl.teacher.weights': 'a_run'},
    "rl.verdict.by='teacher' and sampler_mesh=.* cannot be combined",
  ),
  (TWO | {'rl.prompts': 30}, 'rl.prompts=30 does not divide by the 4 row'),
  (TWO | STALE, "rl.path='host' and sampler_mesh=.* cannot be combined"),
  (TWO | FLIGHT, 'rl.in_flight.batches=3 and sampler_mesh=.* cannot be'),
  (TWO | REPLAY, 'rl.replay.rows=8 and sampler_mesh=.* cannot be'),
  (
    TWO | SAMPLER | REFILL | {'rl.refill_keep': True},
    'rl.refill_keep=True and sampler_mesh=.* cannot be',
  ),
  (TWO | PREFERRED, "reward_model.weights='a_run' and sampler_mesh=.* cannot"),
  (TWO | {'sampler_dtype': 'int4'}, "sampler_dtype='int4': choose one of fl"),
  ({'sampler_dtype': 'int8'}, "='int8' has no effect without sampler_mesh"),
  (EIGHT | {'lora.rank': 4}, "lora.rank=4 and sampler_dtype='int8' cannot"),
  (EIGHT | {'steering': True}, 'steering=True and sampler_dtype='),
  (EIGHT | {'frozen_dtype': 'int8'}, "frozen_dtype='int8' and sampler_dtype="),
  (EIGHT | {'model.numerics': 'exact'}, "numerics='exact' and sampler_dtype="),
  (TWO | POOL, "sampler_mesh=.* and data.controller.name='uniform'"),
  (
    TWO | QUEUE | {'rl.rewards': {'a': {'reward': 'task', 'weight': SCHEDULE}}},
    'rl.rewards has weights that are schedules and rl.staleness=2 cannot be',
  ),
  (TWO | QUEUE | HINTS, 'rl.hints.room=4 and rl.staleness=2 cannot .* samp'),
  (
    TWO | QUEUE | {'rl.reference.patience': 5, 'rl.loss.kl_coef': 0.01},
    'rl.reference.patience=5 and rl.staleness=2 cannot be combined with samp',
  ),
  (
    TWO | QUEUE | {'rl.temperature_control.residual': 0.1},
    'temperature_control.residual=0.1 and rl.staleness=2 cannot .* samp',
  ),
  (
    TWO | QUEUE | {'rl.shaping.price_rate': 0.1},
    'rl.shaping.price_rate=0.1 and rl.staleness=2 cannot .* samp',
  ),
  (
    TWO | QUEUE | LASER,
    'rl.shaping.laser=0.1 and rl.staleness=2 cannot .* samp',
  ),
  (
    TWO | QUEUE | {'rl.shaping.historical': 0.1},
    'rl.shaping.historical=0.1 and rl.staleness=2 cannot .* samp',
  ),
  (TWO | {'stages': ('sft',)}, 'sampler_mesh=.* no effect without an rl st'),
  ({'rl.path': 'gpu'}, "rl.path='gpu': choose fused or host"),
  (
    {
      'rl.path': 'host',
      'rl.samples': 1,
      'rl.algorithm': 'reinforce_pp',
      'rl.rewards.better': dict(reward='pairwise'),
    },
    'samples=1: rl.rewards.better compares the samples of a problem',
  ),
  ({'rl.reference_memory': 'disk'}, "reference_memory='disk': choose device"),
  (IN_PYTHON | {'rl.parts': 4}, "parts=4 has no effect with rl.turns.env='too"),
  ({'rl.overlong': 33}, 'rl.overlong=33 .*completion_len=32'),
  ({'rl.slots': 8}, 'rl.slots=8 of rl.samples=8: all samples of a problem'),
  (
    IN_PYTHON | {'rl.cache_segments': 2},
    "rl.turns.env='tools' and rl.cache_segments=2: the cache has all of its",
  ),
  (
    {'rl.chunks.tokens': 16, 'rl.chunks.carry': 4, 'rl.cache_segments': 2},
    'rl.chunks.tokens=16 and rl.cache_segments=2: the cache',
  ),
  ({'rl.path': 'host', 'rl.steps_per_dispatch': 10}, 'steps_per_dispatch'),
]
# Values that the parts themselves refuse when they are built.
ELSEWHERE = [
  ({'rl.steps': 10**400}, 'rl.steps=1000.*: must be a whole number'),
  ({'seed': -1}, 'seed=-1: .* of at least 0 and at most 2,147,483,647'),
  ({'rl.prompts': 2**31}, 'prompts=21.* at least 1 and at most 2,147,483,647'),
  ({'sft.micro_batches': 0}, 'sft.micro_batches=0: must be .* at least 1'),
  ({'rl.algorithm': 'grpq'}, "'grpq'.*grpo"),
  ({'rl.padding': 'buckets:0'}, "padding='buckets:0'.*packed:N or buckets:N"),
  ({'rl.padding': 'packed'}, "padding='packed': choose whole, packed:N"),
  ({'rl.padding': 'shared'}, "padding='shared': choose .* or tree:N"),
  ({'rl.filter': 'some'}, 'rl.filter'),
  ({'model.prefill': 'chunks:-1'}, "prefill='chunks:-1'.*chunks:N"),
  ({'model.prefill': 'packed:8'}, "prefill='packed:8'.*buckets:N or chunks"),
  ({'rl.algorithm': 'mt_grpo'}, 'mt_grpo.*needs the rewards of turns'),
  ({'sft.optimizer.schedule': 'sine'}, 'sft.*schedule.*sine'),
  ({'sft.optimizer.name': 'adam'}, 'sft.*optimizer.name.*adam'),
  (
    {'rl.critic.optimizer.schedule': 'sine'},
    r'rl\.critic\.optimizer: schedule=.sine',
  ),
  ({'profile.steps': '12:10'}, "profile.steps='12:10'.*first:last"),
  (
    PLAYERS | {'rl.roles.0': {'loss': {'klcoef': 1}}},
    "rl.roles.0: unknown key klcoef. Did you mean 'kl_coef'",
  ),
  (
    {'rl.roles.a': 3, 'rl.roles.b': 4, 'rl.role_adapters': True}
    | {'lora.rank': 2},
    'rl.roles.a must be dict.algorithm=',
  ),
]


def refused(changes: dict) -> str:
  """Returns the message with which a changed config is refused."""
  run = config_lib.Run().changed(changes)
  with pytest.raises(ValueError) as error:
    config_checks.check(run, 2)
  return str(error.value)


@pytest.mark.parametrize('changes, words', ELSEWHERE)
def test_impossible_values_are_refused(changes, words):
  with pytest.raises(ValueError, match=words):
    config_checks.check(config_lib.Run().changed(changes), 2)


def test_every_rule_has_an_example_that_triggers_it(monkeypatch):
  """A rule is a row of a table, identified by its number."""
  seen, triggered = set(), {}

  def refuse(table, *sections):
    rows = list(table(*sections))
    seen.update((table.__name__, i) for i in range(len(rows)))
    for i, (refuses, message) in enumerate(rows):
      if refuses:
        triggered.setdefault((table.__name__, i), message)
        raise ValueError(message)

  monkeypatch.setattr(rules, 'refuse', refuse)
  config_checks.check(config_lib.Run(), 2)
  for changes, words in EXAMPLES:
    message = refused(changes)
    assert re.search(words, message), message
    assert '\n' not in message
  assert not seen - set(triggered)


@pytest.mark.parametrize(
  'changes',
  [
    TAUGHT | {'rl.top_k': 5, 'rl.top_p': 0.9, 'rl.min_p': 0.1},
    TAUGHT | {'rl.presence_penalty': 1.0, 'rl.logprob_chunk': 8},
    TAUGHT | {'rl.logit_bias': {'7': 1.0}},
    PROPOSE | BOTH | {'rl.algorithm': 'ppo'},
    PLAYERS | LASER | {'rl.shaping.laser_explore': 0.1} | SIGNS,
    {'rl.shaping.price': 2.0},
    {'watchdog.floor_s': 7200.0},
    {'profile.steps': '300:400'},
    PPO | {'rl.critic.warmup_updates': 19},
    PPO
    | named('a', 'b', a={'kind': 'rl'}, b={'kind': 'rl', 'keep': 'critic'})
    | {'rl.critic.warmup_updates': 20},
    {'rl.reference_memory': 'host'}
    | {'rl.teacher.weights': 'reference', 'rl.loss.distill_coef': 0.1},
    {'rl.filter': 'band', 'rl.filter_args.low': 0.1},
    {'rl.algorithm': 'raft', 'rl.filter': 'best', 'rl.filter_args.keep': 1},
    SEARCH | {'rl.algorithm': 'raft'},
    JUDGED | {'rl.algorithm': 'vapo', 'rl.loss.threshold': 0.5},
    JUDGED | {'rl.algorithm': 'vapo', 'rl.rewards.answer.weight': 0.0},
    JUDGED | {'rl.algorithm': 'vapo', 'rl.rewards.judge.needs': 'answer'},
    JUDGED
    | {'rl.algorithm': 'vapo', 'rl.rewards.judge.needs': 'answer'}
    | {'rl.rewards.short': {'reward': 'digits', 'needs': ['judge']}},
  ],
  ids=str,
)
def test_settings_with_an_effect_are_accepted(changes):
  config_checks.check(config_lib.Run().changed(changes), 1)


@pytest.mark.parametrize('changes', [{'rl.epochs': 2}, {'rl.minibatches': 2}])
def test_a_divergence_over_the_vocabulary_holds_for_any_samples(changes):
  gkd = OPD | {'rl.algorithm': 'gkd', 'rl.logprob_chunk': 64}
  config_checks.check(config_lib.Run().changed(gkd | changes), 1)


@pytest.mark.parametrize(
  'changes',
  [STALE, FLIGHT, REPLAY, REFILL | {'rl.refill_keep': True}, AGAIN],
  ids=str,
)
@pytest.mark.parametrize('more', [SAMPLER, DECOUPLED, DECOUPLED | RLOO])
def test_samples_of_an_earlier_policy_by_a_ratio_or_by_weights(changes, more):
  config_checks.check(config_lib.Run().changed(changes | more), 1)
