"""Defines units as symbols with a value in base units.

`5 cm` is the product of 5 and the symbol cm, and cm is 1/100 of m. So `5 cm =
0.05 m`, `50 cents = $0.50` and `90 km/h = 25 m/s` need no further rules.
Percent and degree are units too (1/100 and pi/180).
"""

from fractions import Fraction

# name -> (base symbols as text key, factor); spellings below.
_TABLE = {
  ('m', 1): 'm meter meters metre metres 米',
  ('m', Fraction(1, 100)): 'cm centimeter centimeters centimetre centimetres '
  '厘米',
  ('m', Fraction(1, 1000)): 'mm millimeter millimeters millimetre 毫米',
  ('m', Fraction(1, 10)): 'dm decimeter decimeters decimetre 分米',
  ('m', 1000): 'km kilometer kilometers kilometre kilometres 千米 公里',
  ('m', Fraction(1, 10**9)): 'nm nanometer nanometers',
  ('m', Fraction(254, 10000)): 'inch inches in',
  ('m', Fraction(3048, 10000)): 'ft foot feet',
  ('m', Fraction(9144, 10000)): 'yd yard yards yds',
  ('m', Fraction(1609344, 1000)): 'mi mile miles',
  ('s', 1): 's sec secs second seconds 秒',
  ('s', Fraction(1, 1000)): 'ms millisecond milliseconds',
  ('s', 60): 'min mins minute minutes 分钟',
  ('s', 3600): 'h hr hrs hour hours 小时',
  ('s', 86400): 'day days 天',
  ('s', 7 * 86400): 'week weeks wk wks 周',
  ('month', 1): 'month months mo',
  ('year', 1): 'year years yr yrs 年',
  ('g', 1): 'g gram grams 克',
  ('g', 1000): 'kg kilogram kilograms kilo kilos 千克',
  ('g', Fraction(1, 1000)): 'mg milligram milligrams',
  ('g', 1000000): 'ton tons tonne tonnes 吨',
  ('lb', 1): 'lb lbs pound pounds',
  ('lb', Fraction(1, 16)): 'oz ounce ounces',
  ('l', 1): 'L l liter liters litre litres 升',
  ('l', Fraction(1, 1000)): 'mL ml milliliter milliliters cc 毫升',
  ('gal', 1): 'gal gallon gallons',
  ('gal', Fraction(1, 4)): 'qt quart quarts',
  ('gal', Fraction(1, 8)): 'pt pint pints',
  ('gal', Fraction(1, 16)): 'cup cups',
  ('usd', 1): r'$ dollar dollars USD usd buck bucks',
  ('usd', Fraction(1, 100)): '¢ cent cents',
  ('eur', 1): '€ euro euros EUR',
  ('eur', Fraction(1, 100)): 'eurocent eurocents',
  ('gbp', 1): '£ GBP',
  ('gbp', Fraction(1, 100)): 'pence',
  ('cny', 1): '¥ yuan RMB rmb 元',
  ('inr', 1): '₹ rupee rupees',
  ('N', 1): 'N newton newtons Newtons',
  ('J', 1): 'J joule joules Joules',
  ('J', 1000): 'kJ',
  ('W', 1): 'W watt watts Watts',
  ('W', 1000): 'kW',
  ('Pa', 1): 'Pa pascal pascals',
  ('F', 1): 'F farad farads',
  ('C', 1): 'C coulomb coulombs',
  ('T', 1): 'T tesla',
  ('H', 1): 'H henry',
  ('ohm', 1): 'ohm ohms Omega Ω',
  ('eV', 1): 'eV',
  ('Hz', 1): 'Hz hertz',
  ('V', 1): 'V volt volts',
  ('A', 1): 'A amp amps ampere amperes',
  ('K', 1): 'K kelvin kelvins',
  ('mol', 1): 'mol mole moles',
  ('acre', 1): 'acre acres',
  ('ha', 1): 'hectare hectares 公顷',
  ('rad', 1): 'rad radian radians rads 弧度',
  ('mph', 1): 'mph',
  ('kph', 1): 'kph kmh kmph',
  ('pct', 1): '% percent percentage pct',
  ('pct', Fraction(1, 10)): 'permille',
  ('deg', 1): '° deg degree degrees 度',
  ('celsius', 1): 'Celsius celsius centigrade 摄氏度',
  ('fahrenheit', 1): 'Fahrenheit fahrenheit 华氏度',
}
UNITS: dict[str, str] = {}  # spelling -> canonical name
BASE: dict[str, tuple[str, Fraction]] = {}  # canonical -> (base, factor)
for (_base, _factor), _spellings in _TABLE.items():
  _first = _spellings.split()[0]
  BASE[_first] = (_base, Fraction(_factor))
  UNITS |= dict.fromkeys(_spellings.split(), _first)


def is_smaller(spelling: str, than: str) -> bool:
  """Returns whether a unit measures the same as another, and is smaller."""
  if spelling not in UNITS or than not in UNITS:
    return False
  larger_unit = UNITS[than]
  unit = beside(UNITS[spelling], larger_unit)
  (base, factor), (other, larger) = BASE[unit], BASE[larger_unit]
  return base == other and factor < larger


def beside(name: str, larger: str) -> str:
  """Returns the unit of the 20 cents of 5 euros 20 cents: a eurocent."""
  return 'eurocent' if name == '¢' and BASE[larger][0] == 'eur' else name


TEMPERATURES = {'C': 'Celsius', 'F': 'Fahrenheit'}  # letters after a degree
# Names of counted things and of the unit square, which are not part of the
# value.
VAGUE = '~'
BASE[VAGUE] = (VAGUE, Fraction(1))
UNITS |= dict.fromkeys(
  'unit units square squared sq cubic cubed each times people ways total '
  'only exactly old 个 人 种 次 只 条 岁 名 项 件 本 张 '
  '平方 立方 单位 平方单位 cu'.split(),
  VAGUE,
)
# As plain letters these are variables, except separately after a number.
CURRENCY = frozenset('$€£¥¢₹')
ROMAN_LETTERS = frozenset(('F', 'C', 'T', 'H'))
LETTERS = frozenset('m s h g L l N J W V A K'.split())
