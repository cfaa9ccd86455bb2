"""Units: prefixes with their case, angles, currencies, compound quantities, temperatures; exact factors,
checked by hand."""

from fractions import Fraction

import pytest
from forms import verdicts
from vlrl_rewards.math.units import known, parse_unit
from vlrl_rewards.math.wording import degrees, worded_quantity

pytestmark = pytest.mark.usefixtures("warm_pool")

RIGHT = [
    ("5 mW", "0.005 W"), ("5 mW", "5 milliwatts"), ("3.6 MJ", "1 kWh"), ("3.6 MJ", "3600 kJ"), ("10 N",
        "10 kg m/s^2"), ("2 GHz", "2000 MHz"),
    ("8 Mb", "1 MB"),
    ("5 KM", "5000 m"), ("5 μm", "0.005 mm"), ("30.25^\\circ", "30°15'"), ("30.25^\\circ",
        "30 degrees 15 minutes"), ("180^\\circ", "\\pi rad"),
    ("180^\\circ", "180"), ("\\frac{\\pi}{3}", "60°"), ("$5", "US$5"), ("$5", "500 cents"), ("$5", "5 USD"),
    ("€12.50", "12,50 €"),
    ("€12.50", "EUR 12.50"),
    ("€12.50", "12 euros 50 cents"), ("£5", "5 pounds"), ("90 minutes", "1h30m"), ("90 minutes",
        "an hour and a half"), ("500 mL", "half a liter"),
    ("125 s", "2 min 5 s"), ("25 °C", "298.15 K"), ("25 °C", "77 °F"), ("5 cm", "5"), ("5", "5 cm"), ("1 kg",
        "1000 grams"),
    ("12 apples", "twelve apples"), ("200 min", "3h20"), ("200 min", "3 h 20"), ("3h20", "200 minutes"),
    ("3h20", "3 hours and 20 minutes"), ("3h05", "3 h 5 min"), ("2 h", "2h00"), ("90 s", "1min30"), ("90 s",
        "1m30s"), ("3930 s", "1h05m30"),
    ("1.5 h", "1h30"), ("2h", "120 min"), ("5m", "5 meters"),
]  # fmt: skip
WRONG = [
    ("5 mW", "5 MW"), ("3.6 MJ", "3.6 mJ"), ("500 mL", "500 ML"), ("8 Mb", "8 MB"), ("10 N", "10 n"), ("10 N",
        "10 nm"), ("10 N", "10 J"),
    ("5 m", "5 M"),
    ("30.25^\\circ", "30.25 rad"), ("30.25^\\circ", "30.25 cm"), ("180^\\circ", "180 rad"), ("90°", "90%"),
    ("$5", "€5"), ("$5", "5%"), ("$5", "$5%"),
    ("$5", "5 cents"),
    ("€12.50", "$12.50"), ("€12.50", "€1250"), ("£5", "5 kg"), ("90 minutes", "90 m"), ("90 minutes",
        "1.3 hours"), ("25 °C", "25 K"),
    ("25 °C", "25 °F"),
    ("30.25^\\circ", "30°75'"), ("5 cm", "5 %"), ("5 cm", ""), ("5 cm", "cm"), ("5 cm", "5 cm cm"), ("5 cm",
        "5 cm or 6 cm"), ("5 cm", "\ufffd"),
    ("5 cm", "5 " + "cm" * 300), ("5 cm", "5 " + "kg m " * 40), ("3 km", "3 km/h"), ("72 km/h", "72 h/km"),
    ("2 m^2", "2 m"),
    ("200 min", "3h21"), ("200 min", "3h70"), ("250 min", "3h70"), ("200 min", "3h2"), ("320", "3h20"), ("3",
        "3h20"), ("3h20", "3.2 h"),
    ("200 min", "3h20 or 3h40"), ("200 min", "not 3h20"), ("5 m", "5m30"), ("200 min", "3x20"), ("2h", "2 m"),
]  # fmt: skip


@pytest.mark.parametrize(("gold", "said"), RIGHT)
def test_pays(gold, said):
    assert verdicts(gold, said) == {True}


@pytest.mark.parametrize(("gold", "said"), WRONG)
def test_does_not_pay(gold, said):
    assert verdicts(gold, said) == {False}


def test_factors_by_hand():
    in_metres = {
        "km": 1000,
        "cm": Fraction(1, 100),
        "mile": Fraction("1609.344"),
        "inch": Fraction("0.0254"),
        "ft": Fraction("0.3048"),
        "yd": Fraction("0.9144"),
    }
    for word, factor in in_metres.items():
        assert known(word).factor == factor, word
    assert (
        known("lb").factor == Fraction("0.45359237")
        and known("kWh").factor == 3_600_000
        and known("gallon").factor == Fraction("0.003785411784")
    )
    assert known("MB").factor == 8 * known("Mb").factor == 8_000_000
    assert (
        parse_unit("km/h").factor == Fraction(5, 18)
        and parse_unit("square feet").factor == Fraction("0.3048") ** 2
    )
    assert known("°C") is None and known("celsius").offset == Fraction("273.15")


def test_case_decides_only_where_it_means_something():
    assert (
        known("mW").factor * 10**9 == known("MW").factor
        and known("KM") == known("km")
        and known("Kg") == known("kg")
        and known("KWH") == known("kWh")
    )
    for ambiguous in ("MM", "mhz", "Mw", "n", "k", "M", "apples", "teams", "cats", ""):
        assert known(ambiguous) is None, ambiguous


def test_quantities_in_words():
    assert worded_quantity("half a liter") == (Fraction(1, 2), known("liter")) and worded_quantity(
        "two and a half hours"
    ) == (
        Fraction(5, 2),
        known("hour"),
    )
    assert worded_quantity("an hour and a half") == (Fraction(3, 2), known("hour")) and worded_quantity(
        "twenty %"
    ) == (Fraction(1, 5), None)
    assert worded_quantity("a quarter of an hour") == (Fraction(1, 4), known("hour"))
    for text in (
        "",
        "hour",
        "half",
        "a a a a",
        "%",
        "half a horse",
        "five point",
        "five point three",
        "a quarter past",
        "five " * 40,
    ):
        assert worded_quantity(text) is None, text
    assert degrees("30^\\circ 15'")[0] == Fraction("30.25") and degrees("-1 degree 30 minutes 36 seconds")[
        0
    ] == Fraction("-1.51")
    assert degrees("30^\\circ") is None and degrees("30^\\circ 61'") is None and degrees("15 minutes") is None
