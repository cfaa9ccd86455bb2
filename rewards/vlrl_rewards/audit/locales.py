"""How languages state an answer, deny it, offer two, and write a number."""

from __future__ import annotations

from typing import NamedTuple


class Locale(NamedTuple):
    """Sentences that state an answer, that deny it, and that offer two; the mark between groups of three
    digits, and the decimal mark."""

    states: tuple[str, ...]
    denies: tuple[str, ...]
    offers: tuple[str, ...]
    group: str = ","
    point: str = "."


# the mark between groups; the decimal mark is the comma, but for the first
_GROUPS = {"comma": ",", "dot": ".", "space": " ", "thin": "\u202f"}
# language: mark between groups; = states, ! denies, ? offers
_TABLE = """
German: dot
= Die Antwort ist {}. | Antwort: {} | Das Ergebnis ist {}. | Die Lösung lautet {}.
! Die Antwort ist nicht {}. | Das Ergebnis ist keinesfalls {}. | Es ist nicht {}.
! Auf keinen Fall {}. | Ich bezweifle, dass die Antwort {} ist.
! Die Antwort ist {}. Das ist falsch.
? {} oder {} | entweder {} oder {} | {} bis {} | zwischen {} und {}
French: thin
= La réponse est {}. | Réponse : {} | Le résultat est {}.
! La réponse n'est pas {}. | Ce n'est pas {}. | La réponse est {}. C'est faux.
! Je doute que la réponse soit {}.
? {} ou {} | soit {} soit {} | entre {} et {}
Spanish: dot
= La respuesta es {}. | Respuesta: {} | El resultado es {}.
! La respuesta no es {}. | No es {}. | La respuesta es {}. Es falso. | Dudo que la respuesta sea {}.
? {} o {} | entre {} y {} | {} o quizás {}
Portuguese: dot
= A resposta é {}. | Resposta: {} | O resultado é {}.
! A resposta não é {}. | Não é {}. | A resposta é {}. Está errado.
? {} ou {} | entre {} e {}
Italian: dot
= La risposta è {}. | Risposta: {} | Il risultato è {}.
! La risposta non è {}. | Non è {}. | La risposta è {}. È sbagliato.
? {} o {} | {} oppure {} | tra {} e {}
Dutch: dot
= Het antwoord is {}. | Antwoord: {}
! Het antwoord is niet {}. | Het is niet {}.
? {} of {}
Swedish: space
= Svaret är {}. | Svar: {}
! Svaret är inte {}. | Det är inte {}.
? {} eller {}
Polish: space
= Odpowiedź to {}. | Odpowiedź: {}
! Odpowiedź to nie {}. | To nie {}.
? {} lub {}
Russian: space
= Ответ: {} | Ответ равен {}.
! Ответ не {}. | Это не {}. | Ответ: {}. Это неверно.
? {} или {} | от {} до {}
Turkish: dot
= Cevap: {}
! Cevap {} değil. | Cevap: {} değil.
? {} veya {}
Chinese: comma
= 答案是{}。 | 答案：{} | 最终答案：{} | 正确答案是 {}。
! 答案不是{}。 | 答案是{}，这是错的。 | 不是{}。
? {}或{} | {} 或者 {} | {}到{}
Japanese: comma
= 答えは{}です。 | 答え：{} | 答えは{}である。
! 答えは{}ではありません。 | 答えは{}ではない。 | {}ではありません。
? {}または{} | {}か{}
Korean: comma
= 정답은 {}입니다. | 답: {} | 정답은 {}이다.
! 정답은 {}이 아닙니다. | 답은 {}이 아니다.
? {} 또는 {}
Arabic: comma
= الجواب هو {} | الإجابة هي {}
! الجواب ليس {} | الإجابة ليست {}
? {} أو {}
Thai: comma
= คำตอบคือ {} | คำตอบ: {}
! คำตอบไม่ใช่ {}
? {} หรือ {}
Hindi: comma
= उत्तर {} है | उत्तर: {}
! उत्तर {} नहीं है | उत्तर: {} नहीं
? {} या {}
Vietnamese: dot
= Đáp án là {}.
! Đáp án không phải là {}.
? {} hoặc {}
Indonesian: dot
= Jawabannya adalah {}.
! Jawabannya bukan {}.
? {} atau {}
"""


def _read(table: str) -> dict[str, Locale]:
    found: dict[str, Locale] = {}
    forms: dict[str, list[str]] = {}
    name, group = "", ","
    for line in [*table.strip().splitlines(), "end:"]:
        mark, _, rest = line.partition(" ")
        if mark in "=!?":
            forms.setdefault(mark, []).extend(rest.split(" | "))
            continue
        if name:
            point = "." if group == "," else ","
            found[name] = Locale(tuple(forms["="]), tuple(forms["!"]), tuple(forms["?"]), group, point)
        name, group, forms = mark.rstrip(":"), _GROUPS.get(rest, ","), {}
    return found


LOCALES = _read(_TABLE)


def written(text: str, locale: Locale) -> str:
    """A plain decimal number ("-12345.6") as the language writes it ("-12.345,6")."""
    sign, digits = ("-", text[1:]) if text.startswith("-") else ("", text)
    whole, point, rest = digits.partition(".")
    groups = [whole[max(0, end - 3) : end] for end in range(len(whole), 0, -3)][::-1]
    # one group behind a dot may be decimals: "12.345"
    grouped = len(groups) > 2 or (len(groups) == 2 and (locale.group != "." or point))
    return sign + (locale.group if grouped else "").join(groups) + (locale.point + rest if point else "")
