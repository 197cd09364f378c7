"""Units of measure as Wikipedia's template `convert` knows them.

A unit is its code, how many of the base unit it is, its symbol, its name (with what one has more
than one of), and what it is converted to where the call does not say. Scales are exact by
definition (NIST SP 811, appendix B) unless they are derived from such; symbols, names and defaults
are those of English Wikipedia's template.
"""

from __future__ import annotations

from dataclasses import dataclass

_POUND, _FOOT, _GALLON, _PINT = 0.45359237, 0.3048, 0.003785411784, 0.00454609
_POUND_FORCE = _POUND * 9.80665

_KINDS: dict[str, list[tuple[str, float, str, str, str]]] = {
    "length": [
        ("m", 1, "m", "metre", "ft"),
        ("km", 1e3, "km", "kilometre", "mi"),
        ("cm", 1e-2, "cm", "centimetre", "in"),
        ("mm", 1e-3, "mm", "millimetre", "in"),
        ("um μm µm", 1e-6, "μm", "micrometre", "in"),
        ("nm", 1e-9, "nm", "nanometre", "in"),
        ("dm", 0.1, "dm", "decimetre", "in"),
        ("ft foot feet", _FOOT, "ft", "foot/feet", "m"),
        ("in inch inches", 0.0254, "in", "inch/inches", "mm"),
        ("yd yard yards", 0.9144, "yd", "yard", "m"),
        ("mi mile miles", 1609.344, "mi", "mile", "km"),
        ("smi", 1609.344, "mi", "statute mile", "km"),
        ("furlong", 201.168, "furlong", "furlong", "m"),
        ("nmi", 1852, "nmi", "nautical mile", "km mi"),
        ("fathom", 1.8288, "fathom", "fathom", "m"),
        ("chain", 20.1168, "chain", "chain", "m"),
        ("hand", 0.1016, "h", "hand", "cm"),
        ("AU", 149597870700, "AU", "astronomical unit", "km"),
        ("ly", 9460730472580800, "ly", "light-year", "AU"),
        ("pc", 3.0856775814913673e16, "pc", "parsec", "ly"),
    ],
    "area": [
        ("m2 sqm", 1, "m²", "square metre", "sqft"),
        ("km2 sqkm", 1e6, "km²", "square kilometre", "sqmi"),
        ("cm2 sqcm", 1e-4, "cm²", "square centimetre", "sqin"),
        ("mm2 sqmm", 1e-6, "mm²", "square millimetre", "sqin"),
        ("ha hectare hectares", 1e4, "ha", "hectare", "acre"),
        ("acre acres", 4046.8564224, "acres", "acre", "ha"),
        ("sqft ft2 sqfoot", _FOOT**2, "sq ft", "square foot/square feet", "m2"),
        ("sqmi mi2", 1609.344**2, "sq mi", "square mile", "km2"),
        ("sqyd", 0.9144**2, "sq yd", "square yard", "m2"),
        ("sqin in2", 0.0254**2, "sq in", "square inch/square inches", "cm2"),
    ],
    "mass": [
        ("kg", 1, "kg", "kilogram", "lb"),
        ("g", 1e-3, "g", "gram", "oz"),
        ("mg", 1e-6, "mg", "milligram", "gr"),
        ("gr", 6.479891e-5, "gr", "grain", "mg"),
        ("t tonne tonnes MT", 1e3, "t", "tonne", "LT ST"),
        ("lb lbs pound pounds", _POUND, "lb", "pound", "kg"),
        ("oz", _POUND / 16, "oz", "ounce", "g"),
        ("ozt", 0.0311034768, "ozt", "troy ounce", "g"),
        ("st", 14 * _POUND, "st", "stone/stone", "lb kg"),
        ("ST shortton", 2000 * _POUND, "short tons", "short ton", "LT t"),
        ("LT long_ton", 2240 * _POUND, "long tons", "long ton", "ST t"),
    ],
    "volume": [
        ("m3 cum", 1, "m³", "cubic metre", "cuft"),
        ("L l litre liter", 1e-3, "L", "litre", "impgal USgal"),
        ("mL ml", 1e-6, "mL", "millilitre", "impfloz USfloz"),
        ("cm3 cc", 1e-6, "cm³", "cubic centimetre", "cuin"),
        ("km3", 1e9, "km³", "cubic kilometre", "cumi"),
        ("hL hl", 0.1, "hL", "hectolitre", "impgal USgal"),
        ("cuft ft3", _FOOT**3, "cu ft", "cubic foot/cubic feet", "m3"),
        ("cuin in3", 0.0254**3, "cu in", "cubic inch/cubic inches", "cm3"),
        ("cuyd yd3", 0.9144**3, "cu yd", "cubic yard", "m3"),
        ("cumi mi3", 1609.344**3, "cu mi", "cubic mile", "km3"),
        ("USgal U.S.gal usgal", _GALLON, "US gal", "US gallon", "L impgal"),
        ("impgal imp_gal", _PINT, "imp gal", "imperial gallon", "L USgal"),
        ("USfloz", _GALLON / 128, "US fl oz", "US fluid ounce", "mL"),
        ("impfloz", _PINT / 160, "imp fl oz", "imperial fluid ounce", "mL"),
        ("acre.ft acre·ft acft", 1233.48183754752, "acre⋅ft", "acre-foot/acre-feet", "m3"),
        ("oilbbl bbl", 42 * _GALLON, "bbl", "barrel", "m3"),
    ],
    "speed": [
        ("km/h kph kmh", 1 / 3.6, "km/h", "kilometre per hour/kilometres per hour", "mph"),
        ("mph mi/h", 0.44704, "mph", "mile per hour/miles per hour", "km/h"),
        ("m/s", 1, "m/s", "metre per second/metres per second", "ft/s"),
        ("ft/s", _FOOT, "ft/s", "foot per second/feet per second", "m/s"),
        ("kn knot knots", 1852 / 3600, "kn", "knot", "km/h mph"),
        ("km/s", 1e3, "km/s", "kilometre per second/kilometres per second", "mi/s"),
        ("mi/s", 1609.344, "mi/s", "mile per second/miles per second", "km/s"),
    ],
    "pressure": [
        ("kPa", 1e3, "kPa", "kilopascal", "psi"),
        ("Pa", 1, "Pa", "pascal", "psi"),
        ("MPa", 1e6, "MPa", "megapascal", "ksi"),
        ("hPa", 100, "hPa", "hectopascal", "inHg"),
        ("bar", 1e5, "bar", "bar/bar", "kPa"),
        ("mbar", 100, "mbar", "millibar", "hPa"),
        ("psi", _POUND_FORCE / 0.0254**2, "psi", "pound per square inch/pounds per square inch",
         "kPa"),
        ("ksi", 1e3 * _POUND_FORCE / 0.0254**2, "ksi",
         "kilopound per square inch/kilopounds per square inch", "MPa"),
        ("atm", 101325, "atm", "standard atmosphere", "kPa"),
        ("inHg", 3386.388640341, "inHg", "inch of mercury/inches of mercury", "kPa"),
    ],
    "power": [
        ("W", 1, "W", "watt", "hp"),
        ("kW", 1e3, "kW", "kilowatt", "hp"),
        ("MW", 1e6, "MW", "megawatt", "hp"),
        ("hp bhp", 550 * _FOOT * _POUND_FORCE, "hp", "horsepower/horsepower", "kW"),
        ("PS metrichp", 735.49875, "PS", "metric horsepower/metric horsepower", "kW"),
    ],
    "energy": [
        ("J", 1, "J", "joule", "ftlbf"),
        ("kJ", 1e3, "kJ", "kilojoule", "kcal"),
        ("MJ", 1e6, "MJ", "megajoule", "kWh"),
        ("kWh kW.h", 3.6e6, "kWh", "kilowatt-hour", "MJ"),
        ("cal", 4.184, "cal", "calorie", "J"),
        ("kcal Cal", 4184, "kcal", "kilocalorie", "kJ"),
        ("ftlbf ftlb", _FOOT * _POUND_FORCE, "ft⋅lbf", "foot-pound force/foot-pounds force", "J"),
    ],
    "torque": [
        ("Nm N.m N·m", 1, "N⋅m", "newton-metre", "lbft"),
        ("lbft lbfft lb.ft lb·ft lbf.ft", _FOOT * _POUND_FORCE, "lb⋅ft",
         "pound-foot/pound-feet", "Nm"),
    ],
    "force": [
        ("N", 1, "N", "newton", "lbf"),
        ("kN", 1e3, "kN", "kilonewton", "lbf"),
        ("lbf", _POUND_FORCE, "lbf", "pound-force/pounds-force", "N"),
    ],
    "population density": [
        ("/km2 /sqkm PD/km2 PD/sqkm", 1e-6, "/km²", "per square kilometre/per square kilometre",
         "/sqmi"),
        ("/sqmi /mi2 PD/sqmi PD/mi2", 1 / 1609.344**2, "/sq mi",
         "per square mile/per square mile", "/km2"),
        ("/ha PD/ha", 1e-4, "/ha", "per hectare/per hectare", "/acre"),
        ("/acre PD/acre", 1 / 4046.8564224, "/acre", "per acre/per acre", "/ha"),
    ],
    "density": [
        ("kg/m3", 1, "kg/m³", "kilogram per cubic metre/kilograms per cubic metre", "lb/cuyd"),
        ("g/cm3 g/cc", 1e3, "g/cm³", "gram per cubic centimetre/grams per cubic centimetre",
         "lb/cuin"),
        ("lb/cuin", _POUND / 0.0254**3, "lb/cu in",
         "pound per cubic inch/pounds per cubic inch", "g/cm3"),
        ("lb/cuyd", _POUND / 0.9144**3, "lb/cu yd",
         "pound per cubic yard/pounds per cubic yard", "kg/m3"),
        ("lb/cuft lb/ft3", _POUND / _FOOT**3, "lb/cu ft",
         "pound per cubic foot/pounds per cubic foot", "g/cm3"),
    ],
    "flow": [
        ("m3/s cumecs", 1, "m³/s", "cubic metre per second/cubic metres per second", "cuft/s"),
        ("cuft/s cfs ft3/s", _FOOT**3, "cu ft/s", "cubic foot per second/cubic feet per second",
         "m3/s"),
        ("L/s l/s", 1e-3, "L/s", "litre per second/litres per second", "cuft/s"),
    ],
    "temperature": [
        ("K", 1, "K", "K/K", "C F"),
        ("C °C", 1, "°C", "°C/°C", "F"),
        ("F °F", 5 / 9, "°F", "°F/°F", "C"),
    ],
    "temperature difference": [
        ("C-change", 1, "°C", "°C/°C", "F-change"),
        ("F-change", 5 / 9, "°F", "°F/°F", "C-change"),
    ],
}  # fmt: skip
# Where a scale of temperature has its zero, in kelvins.
_ZEROS = {"°C": 273.15, "°F": 273.15 - 32 * 5 / 9, "K": 0.0}


@dataclass(frozen=True)
class Unit:
    """One unit.

    Attributes:
        kind: what it measures; units of one kind can be converted into each other.
        scale: how many of the kind's base unit it is.
        zero: where its zero is, in the base unit.
        symbol: what stands behind a number in short.
        name: what stands behind a one.
        plural: what stands behind other numbers.
        target: codes of the units that it is converted to by default.
    """

    kind: str
    scale: float
    zero: float
    symbol: str
    name: str
    plural: str
    target: tuple[str, ...]


def _units() -> dict[str, Unit]:
    units = {}
    for kind, rows in _KINDS.items():
        for codes, scale, symbol, names, target in rows:
            name, _, plural = names.partition("/") if names[0] != "/" else (names, "", "")
            zero = _ZEROS[symbol] if kind == "temperature" else 0.0
            unit = Unit(
                kind, scale, zero, symbol, name, plural or f"{name}s", tuple(target.split())
            )
            units.update(dict.fromkeys(codes.split(), unit))
    return units


UNITS = _units()
