"""Compares answers as expressions: text -> tokens -> tree -> equality.

  answers         the entry: compares two texts in all plausible readings
  text            converts Unicode and LaTeX notation to plain LaTeX/ASCII
  tokens          one linear regex: numbers, commands, words, operators
  vocabulary, units   the known names
  parser          recursive descent to `nodes.Node`, with limits; its mixins are
                  atoms, brackets, commands and quantities
  quotients       products, and remarks in brackets after a value
  tree_walk       evaluates a tree in one of two domains:
  exact, numeric  rationals (or modulo a prime), and mpmath
  scalars         equality of two expressions, with units
  sets            intervals, unions, inequalities as subsets of the reals
  forms           the shape of an answer: equation, list, tuple
  proportional    equations that differ by a factor
  chains, solved  the values of a chain of sides; solved equations
  evaluated       checks that an answer is evaluated
  restated        checks that an answer is not a formula of the question
  chance, steps   secret primes and points; points where floors jump
  compare         equality of two answers
  words           answers that are text, choices, dates or clock times
  by_sympy        sums, integrals, limits by sympy, only for `math.symbolic`

All modules except `by_sympy` are total and bounded. Input that is too long, too
deep or too large raises `nodes.Limit`, and input that cannot be parsed
`nodes.ParseError`. No text is evaluated, and threads and signals are not used.
"""
