"""Answers as expressions: text -> tokens -> tree -> "are these two equal?".

  text.clean      Unicode and LaTeX dress to plain LaTeX/ASCII
  tokens          one linear regex; numbers, commands, words, operators
  parser, atoms   recursive descent to `nodes.Node`, with limits
  exact, numeric  two evaluators: rationals (or modulo a prime), mpmath
  scalars         equality of two expressions, with units
  sets            intervals, unions, inequalities as subsets of the reals
  compare         equality of two answers: lists, tuples, equations, matrices
  words           answers that are text, choices, dates or clock times

Everything here is total and bounded: input that is too long, too deep or too
large raises `nodes.Limit`, input that is not understood `nodes.ParseError`;
nothing evaluates text, and nothing depends on threads or signals.
"""
