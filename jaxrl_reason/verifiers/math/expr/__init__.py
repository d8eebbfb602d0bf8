"""Answers as expressions: text -> tokens -> tree -> "are these two equal?".

  answers         two texts compared, in every fair reading; the way in
  text            Unicode and LaTeX dress to plain LaTeX/ASCII
  tokens          one linear regex; numbers, commands, words, operators
  vocabulary, units   the names that are known
  parser          recursive descent to `nodes.Node`, with limits; mixed in are
                  atoms, brackets, commands and quantities
  quotients       products, and remarks in brackets behind a value
  evaluate        a walk over a tree, in one of two domains:
  exact, numeric  rationals (or modulo a prime), and mpmath
  scalars         equality of two expressions, with units
  sets            intervals, unions, inequalities as subsets of the reals
  forms           the shape of an answer: equation, list, tuple
  proportional    equations that differ by a factor
  chains, solved  which side of a chain counts; the problem is no answer
  chance, steps   secret primes and points; points where floors jump
  compare         equality of two answers
  words           answers that are text, choices, dates or clock times
  symbolic        sums, integrals, limits by sympy; never used unasked

Everything here but `symbolic` is total and bounded: input that is too long,
too deep or too large raises `nodes.Limit`, input that is not understood
`nodes.ParseError`; nothing evaluates text, and nothing depends on threads or
signals.
"""
