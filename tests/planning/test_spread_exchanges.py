"""Costs of exchanges that last for several operations or a loop."""

import pytest

from jaxrl_reason import sharding
from jaxrl_reason.planning import costs

# An all-gather of 4 x 1 MiB beside products of 256 x 256 float32 matrices, in
# the form of the TPU compiler, with one number for the state of an exchange.
GATHER = (
  'all-gather({}), channel_id=7, replica_groups={{{{0,1,2,3}},{{4,5,6,7}}}}, '
  'dimensions={{0}}, frontend_attributes={{chain_id="3"}}'
)
PART, WHOLE = 'f32[1024,256]{1,0}', 'f32[4096,256]{1,0}'
STATE = f'{PART}, {WHOLE}, u32[]'
FUSIONS = f"""HloModule m
%begin (p: f32[1024,256]) -> (f32[1024,256], f32[4096,256], u32[]) {{
  %p = {PART} parameter(0)
  %g = {WHOLE} {GATHER.format('%p')}
  ROOT %s = ({STATE}) custom-call(%g), custom_call_target="AsyncCollectiveStart"
}}
%beside (p: f32[1024,256], q: f32[4096,256], n: u32[], x: f32[256,256]) -> (f32[256,256], f32[1024,256], f32[4096,256], f32[4096,256], u32[]) {{
  %p = {PART} parameter(0)
  %q = {WHOLE} parameter(1)
  %n = u32[] parameter(2)
  %x = f32[256,256]{{1,0}} parameter(3)
  %g = {WHOLE} {GATHER.format('%p')}
  %y = f32[256,256]{{1,0}} dot(%x, %x), lhs_contracting_dims={{1}}, rhs_contracting_dims={{0}}
  ROOT %t = (f32[256,256]{{1,0}}, {PART}, {WHOLE}, {WHOLE}, u32[]) tuple(%y, %p, %q, %g, %n)
}}
%end (p: f32[1024,256], q: f32[4096,256], n: u32[]) -> f32[4096,256] {{
  %p = {PART} parameter(0)
  %q = {WHOLE} parameter(1)
  %n = u32[] parameter(2)
  %g = {WHOLE} {GATHER.format('%p')}
  ROOT %d = {WHOLE} custom-call(%p, %q, %g, %n), custom_call_target="AsyncCollectiveDone"
}}
"""  # noqa: E501
BEGIN = f"""  %s = ({STATE}) fusion(%a), kind=kCustom, calls=%begin
  %p = {PART} get-tuple-element(%s), index=0
  %q = {WHOLE} get-tuple-element(%s), index=1
  %n = u32[] get-tuple-element(%s), index=2
"""
BESIDE = f"""  %f = (f32[256,256]{{1,0}}, {PART}, {WHOLE}, {WHOLE}, u32[]) fusion(%p, %q, %n, %x), kind=kCustom, calls=%beside
  %y = f32[256,256]{{1,0}} get-tuple-element(%f), index=0
"""  # noqa: E501
END = f'  %d = {WHOLE} fusion(%p, %q, %n), kind=kCustom, calls=%end\n'
# The exchange lasts for the whole loop, or for each of its steps.
AROUND = f"""{FUSIONS}%body (c: (f32[256,256], {STATE})) -> (f32[256,256], {STATE}) {{
  %c = (f32[256,256]{{1,0}}, {STATE}) parameter(0)
  %x = f32[256,256]{{1,0}} get-tuple-element(%c), index=0
  %p = {PART} get-tuple-element(%c), index=1
  %q = {WHOLE} get-tuple-element(%c), index=2
  %n = u32[] get-tuple-element(%c), index=3
{BESIDE}  ROOT %r = (f32[256,256]{{1,0}}, {STATE}) tuple(%y, %p, %q, %n)
}}
%cond (c: (f32[256,256], {STATE})) -> pred[] {{
  %c = (f32[256,256]{{1,0}}, {STATE}) parameter(0)
  ROOT %b = pred[] constant(true)
}}
ENTRY %e (a: f32[1024,256], x: f32[256,256]) -> f32[4096,256] {{
  %a = {PART} parameter(0)
  %x = f32[256,256]{{1,0}} parameter(1)
{BEGIN}  %t = (f32[256,256]{{1,0}}, {STATE}) tuple(%x, %p, %q, %n)
  %w = (f32[256,256]{{1,0}}, {STATE}) while(%t), condition=%cond, body=%body, known_trip_count=5
{END.replace('%d', 'ROOT %d')}}}
"""  # noqa: E501
WITHIN = f"""{FUSIONS}%body (c: (f32[1024,256], f32[256,256])) -> (f32[1024,256], f32[256,256]) {{
  %c = ({PART}, f32[256,256]{{1,0}}) parameter(0)
  %a = {PART} get-tuple-element(%c), index=0
  %x = f32[256,256]{{1,0}} get-tuple-element(%c), index=1
{BEGIN}{BESIDE}{END}  ROOT %r = ({PART}, f32[256,256]{{1,0}}) tuple(%a, %y)
}}
%cond (c: (f32[1024,256], f32[256,256])) -> pred[] {{
  %c = ({PART}, f32[256,256]{{1,0}}) parameter(0)
  ROOT %b = pred[] constant(true)
}}
ENTRY %e (c: (f32[1024,256], f32[256,256])) -> (f32[1024,256], f32[256,256]) {{
  %c = ({PART}, f32[256,256]{{1,0}}) parameter(0)
  ROOT %w = ({PART}, f32[256,256]{{1,0}}) while(%c), condition=%cond, body=%body, known_trip_count=5
}}
"""  # noqa: E501


@pytest.mark.parametrize('text, times', [(AROUND, 1), (WITHIN, 5)])
def test_an_exchange_counts_where_it_begins(text, times):
  """Products beside it move their own arrays alone."""
  total = costs.of(text, sharding.make_mesh((2, 4, 1))).total()
  ((found, n),) = total.collectives.items()
  assert (found.kind, found.axes, n) == ('all-gather', ('fsdp',), times)
  assert found.sent == 3 * 2**20
  assert total.flops == 5 * 2 * 256**3
  assert total.bytes == 5 * 2 * 256**2 * 4 + times * 5 * 2**20
