"""One spelling for what is written in many: Unicode, LaTeX variants, spacing, decoration. Text in, text out.

Everything here runs in linear time on any input.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable

from da3po.reward.sentences import HEDGES

_SUPERSCRIPTS = str.maketrans("⁰¹²³⁴⁵⁶⁷⁸⁹⁺⁻ⁿ", "0123456789+-n")
_SUPERSCRIPT_RUN = re.compile(r"[⁰¹²³⁴⁵⁶⁷⁸⁹⁺⁻ⁿ]+")
_SUBSCRIPTS = str.maketrans("₀₁₂₃₄₅₆₇₈₉", "0123456789")
_SUBSCRIPT_RUN = re.compile(r"[₀₁₂₃₄₅₆₇₈₉]+")
_VULGAR_FRACTION = re.compile(r"[¼-¾⅐-⅞]")
_ROOT_SIGN = re.compile(r"√\s*(\d+(?:\.\d+)?|[A-Za-z]|(?=[({]))")
_SYMBOLS = {
    "−": "-", "–": "-", "—": "-", "﹣": "-", "×": r"\times ", "÷": "/", "⁄": "/", "∕": "/", "·": r"\cdot ",
    "⋅": r"\cdot ", "π": r"\pi ", "∞": r"\infty ", "°": r"^\circ ", "º": r"^\circ ", "≤": r"\le ", "≥": r"\ge ",
    "≠": r"\ne ", "⩽": r"\le ", "⩾": r"\ge ", "≡": r"\equiv ", "≈": r"\approx ", "∪": r"\cup ", "∩": r"\cap ",
    "∈": r"\in ", "±": r"\pm ", "θ": r"\theta ", "α": r"\alpha ", "β": r"\beta ", "∅": r"\emptyset ",
    "∖": r"\setminus ",
    "，": ",", "；": ";", "：": ":", "∶": ":", "、": ",", "。": ".", "‘": "'", "’": "'",
    "“": '"', "”": '"', "ℝ": r"\mathbb{R}", "ℤ": r"\mathbb{Z}", "ℕ": r"\mathbb{N}", "ℚ": r"\mathbb{Q}",
    "ℂ": r"\mathbb{C}", "✓": "", "✔": "", "✅": "", "\ufe0f": "", "\u200b": "",
    "\u00a0": " ", "\u202f": " ", "\u2009": " ",
}  # fmt: skip
_SYMBOL = re.compile("|".join(map(re.escape, _SYMBOLS)))

# Commands that change how an answer looks and not what it says.
_DECORATION = re.compile(
    r"\\(?:displaystyle|textstyle|limits|nolimits|left|right|[bB]ig+[lrm]?|nonumber|notag|checkmark|hfill|mathopen|mathclose"
    r"|tiny|small|large|Large|LARGE|huge|Huge|(?:text)?color\s*\{\w+\})"
    r"(?![A-Za-z])\.?"
)
_SPACE = re.compile(r"\\(?:quad|qquad|enspace|hspace\*?\{[^{}]*\})(?![a-z])|(?<!\\)\\[,;:! ]|~")
# `\quadx` is a typing slip for `\quad x` that real data has.
_GLUED_QUAD = re.compile(r"\\q?quad(?=[A-Za-z])")
_RENAMED = re.compile(
    r"\\(lbrace|rbrace|lbrack|rbrack|dfrac|tfrac|cfrac|leq|leqslant|geq|geqslant|neq|lt|gt|ldots|cdots|gets|to|land|lor|rm|bf"
    r"|bigcup|bigcap|backslash|smallsetminus|dbinom|tbinom|colon)(?![A-Za-z])"
)
_NAMES = {
    "lbrace": r"\{", "rbrace": r"\}", "lbrack": "[", "rbrack": "]",
    "dfrac": r"\frac", "tfrac": r"\frac", "cfrac": r"\frac", "leq": r"\le ", "leqslant": r"\le ", "geq": r"\ge ",
    "geqslant": r"\ge ", "neq": r"\ne ", "lt": "<", "gt": ">", "ldots": r"\dots ", "cdots": r"\dots ",
    "gets": "", "to": r"\rightarrow ", "bigcup": r"\cup ", "bigcap": r"\cap ",
    "backslash": r"\setminus ", "smallsetminus": r"\setminus ", "dbinom": r"\binom", "tbinom": r"\binom", "colon": ":",
    "land": " and ", "lor": " or ", "rm": "", "bf": "",
}  # fmt: skip
_FONT = re.compile(
    r"\\(?:mathrm|mathbf|mathit|mathsf|mathtt|boldsymbol|textbf|textit|emph|bm|underline|operatorname\*?)"
    r"\s*\{([^{}]*)\}"
)
# Upright words are words (units, most often); a single upright letter is a symbol: e, E, d.
_UPRIGHT_WORD = re.compile(r"\\mathrm\s*\{([^{}\\]*[A-Za-z][A-Za-z/][^{}\\]*)\}")
_TEXT = re.compile(r"\\(?:text|mbox|textrm|textnormal|textsf|texttt|hbox)\s*\{([^{}]*)\}")
_UNIT_WITH_POWER = r"\\text\{([^{}]*)\}(?:\s*\^\s*\{?(\d)\}?)?"
_UNIT_FRACTION = re.compile(rf"\\frac\s*\{{\s*{_UNIT_WITH_POWER}\s*\}}\s*\{{\s*{_UNIT_WITH_POWER}\s*\}}")
_UNIT_QUOTIENT = re.compile(r"\\text\{([^{}]*)\}\s*/\s*\\text\{([^{}]*)\}")
_CONNECTIVE = re.compile(r"\\text\{\s*,?\s*(and|or)\s*,?\s*\}", re.IGNORECASE)
_NUMBER_IN_TEXT = re.compile(r"\\text\{\s*(\d[^{}]*)\}")
# The letter of a choice that stands before its content: `\textbf{(B)}\ 12`.
_CHOICE_LABEL = re.compile(r"(?:\\text\{\s*\([A-J]\)\s*\}\s*|\([A-J]\)\s+)(?=\S)")
_UPRIGHT_UNIT = re.compile(r"(?<=[\d}])(?:\s|~)*\\mathrm\s*\{[\s~]*([NJWCVKTFHLAgsm])\}$")
_NATURAL_LOG = re.compile(r"\\log\s*_\s*(?:e|\{\s*e\s*\})")
_CHOOSE = re.compile(r"\{\s*([^{}\\]*)\\choose(?![A-Za-z])\s*([^{}]*)\}")
_COMBINATIONS = re.compile(
    r"(?<![A-Za-z\\])(?:(?:\{\})?[_^]\s*\{?(\w+)\}?\s*C\s*_\s*\{?(\w+)\}?|C\(\s*(\w+)\s*,\s*(\w+)\s*\)"
    r"|C\s*_\s*\{?(\w+)\}?\s*\^\s*\{?(\w+)\}?)"
)
_NUMBER_SET = re.compile(r"\\(?:Bbb|mathds|mathbbm)\s*\{?\s*([RZNQC])\s*\}?|\\mathbf\s*\{\s*([RZNQ])\s*\}")
_UNION_LETTER = re.compile(r"(?<=[)\]}])\s*U\s*(?=[(\[\\{])")
_DEGREE_WORD = re.compile(
    r"(?<=[\d}\s])\s*(?:\\text\{\s*(?:degrees?|deg)\.?\s*\}|\\degrees?(?![A-Za-z])|deg(?:rees?)?\.?$)"
)
# Words before a value that leave it what it is, and a remark in brackets behind a number.
_HEDGE = re.compile(rf"^\s*(?:(?:\\approx|(?:{HEDGES})(?![A-Za-z])|\\text\s*\{{\s*(?:{HEDGES})\s*\}})\s*)+(?=[^\s=])")
_ANNOUNCEMENT = re.compile(
    r"^\s*(?:\\text\s*\{[^{}\d]*(?:\b(?:is|are)|[:=])\s*\}|(?:the\s+)?(?:final\s+)?answer\s*(?:is(?![a-z])|[:=]))\s*(?=\S)",
    re.IGNORECASE,
)
# `not 6 but 5` and `5, not 6`.
_CONTRAST = re.compile(
    r"^\s*not\s+-?[\d.]+\s*,?\s+but\s+(?:rather\s+)?(?=\S)|(?<=\d)\s*,\s*(?:and\s+)?not\s+-?[\d.]*\d\s*$"
)
_NEGATIVE = re.compile(r"^\s*(?:minus|negative)\s+(?=[\d.\\]|infinity)")
_REMARK = re.compile(
    r"(?<=\d)\s*(?:\(\s*(?:\\text\{)?|\\text\{\s*\()\s*"
    r"(?:(?:square |cubic )?units?|in total|total|altogether|approximately|approx\.?|about"
    r"|exactly|exact|rounded)\s*(?:\}\s*\)|\)\s*\}|\))\s*$"
)
_TIMES_LETTER = re.compile(r"(?<=\d)(?:\s*[xX]\s*(?=10\s*\^)|\s+[xX]\s+(?=\d))")
_PYTHON_POWER = re.compile(r"(?<=[\w)}\]])(?:\*\*| \*\* )(?:(-?\w+)|\(([^()]*)\))")
_SLASHED_SCRIPTS = re.compile(r"\^\s*\{?(\d+)\}?\s*/\s*_\s*\{?(\d+)\}?")
_NOTHING = re.compile(r"\\(?:varnothing|emptyset)(?![A-Za-z])|\\\{\s*\\\}")
_SENTENCES = {
    "no solution": r"\emptyset ", "no solutions": r"\emptyset ", "no real solution": r"\emptyset ",
    "no real solutions": r"\emptyset ", "empty set": r"\emptyset ", "the empty set": r"\emptyset ",
    "dne": r"\text{does not exist}", "does not exist": r"\text{does not exist}",
    "none": r"\emptyset ", "there are none": r"\emptyset ",
    "all real numbers": r"\mathbb{R}", "all reals": r"\mathbb{R}", "every real number": r"\mathbb{R}",
}  # fmt: skip
_ASCII_RELATION = re.compile(r"<=|>=|!=|==")
_RELATIONS = {"<=": r"\le ", ">=": r"\ge ", "!=": r"\ne ", "==": "="}
_BRACED = r"\{(?:[^{}]|\{[^{}]*\})*\}"
_BARE = r"\\(?:pi|theta|alpha|beta)(?![A-Za-z])|[0-9A-Za-z]"
_SHORT_ARGUMENTS = re.compile(
    rf"\\(frac|binom)(?![A-Za-z])\s*(?:({_BARE})\s*({_BARE}|{_BRACED})|({_BRACED})\s*({_BARE}))"
)
_SHORT_ROOT = re.compile(r"\\sqrt\s*(\d|[A-Za-z])")
_BRACKET_ROOT = re.compile(r"\\sqrt\s*\(([^()]*)\)")
_FUNCTIONS = "arcsin|arccos|arctan|sinh|cosh|tanh|sin|cos|tan|cot|csc|log|ln|exp"
_PLAIN_NAME = re.compile(rf"(?<![\\A-Za-z])(sqrt|pi|theta|infty|[iI]nfinity|oo|{_FUNCTIONS})(?![A-Za-z])")
_UPRIGHT_FUNCTION = re.compile(rf"\\(?:mathrm|operatorname\*?|text)\s*\{{\s*({_FUNCTIONS}|sec)\s*\}}")
_INFINITY = ("infty", "infinity", "Infinity", "oo")
_BRACKET_POWER = re.compile(r"\^\s*\(([^()]*)\)")
_LONG_POWER = re.compile(r"\^\s*(\d{2,})")
_ORDINAL = re.compile(r"(?<=\d)\s*(?:\^\s*)?\{?\s*(?:\\text\s*\{\s*)?(?:st|nd|rd|th)\s*\}*\s*$")
_PHANTOM = re.compile(r"\\[hv]?phantom\s*\{[^{}]*\}")
_THIN_COMMA = re.compile(r"\{,\}|,\s*\\!\s*")
_BRACED_COLON = re.compile(r"\{:\}")
_CLOCK_HALF = re.compile(r"(?<=:\d\d)\s*(?:\\text\s*\{)?\s*([aApP])\.?\s?[mM]\b\.?\s*\}?")
_RATIO_WORDS = re.compile(r"^\s*(\d[\d.]*)\s+(?:\\text\{\s*)?to(?:\s*\})?\s+(\d[\d.]*)\s*$")
_OUT_OF = re.compile(r"^\s*(\d+)\s*(?:\\text\{)?\s*out of\s*\}?\s*(\d+)\s*$")
_MATH_DELIMITER = re.compile(r"(?<!\\)(?:\\[()\[\]]|\$+)")
_CURRENCY = re.compile(r"\\\$|[€£¥₹]")
# A price and nothing else is so many dollars, which cents do not equal.
_DOLLARS = re.compile(r"^[\s$]*\\\$\s*(-?\d[\d,.{}!\\]*)(?<![.\\])(?=[\s.$]*$)")
_CENTS = re.compile(r"¢|\\cents?(?![A-Za-z])")
_DOTS = re.compile(r"(?<=[\d, ])\.{3,}")
_SPACES = re.compile(r"\s+")


def _braced_arguments(short: re.Match[str]) -> str:
    """`\\frac12` as `\\frac{1}{2}`, also inside an argument."""
    name, *parts = (part for part in short.groups() if part is not None)
    first, second = (
        _SHORT_ARGUMENTS.sub(_braced_arguments, part) if part.startswith("{") else f"{{{part}}}" for part in parts
    )
    return rf"\{name}{first}{second}"


def _unit_quotient(fraction: re.Match[str]) -> str:
    """`\\frac{\\text{m}}{\\text{s}^2}` as `\\text{m/s^2}`."""
    top, bottom = (
        name + (f"^{power}" if power else "") for name, power in (fraction.groups()[:2], fraction.groups()[2:])
    )
    return rf"\text{{{top}/{bottom}}}"


def _combinations(made: re.Match[str]) -> str:
    """`C_5^2`, `^5C_2` and `C(5, 2)` as `\\binom{5}{2}`; `C_1^2`, which chooses two of one, is a symbol's square."""
    total, chosen = made[1] or made[3] or made[5], made[2] or made[4] or made[6]
    if made[5] and total.isdigit() and chosen.isdigit() and int(chosen) > int(total):
        return made.group()
    return rf"\binom{{{total}}}{{{chosen}}}"


# In this order.
_REWRITES: tuple[tuple[re.Pattern[str], str | Callable[[re.Match[str]], str]], ...] = (
    (_DOTS, r"\\dots "),
    (_DOLLARS, r"\1\\text{ dollars}"),
    (_CENTS, r"\\text{ cents}"),
    (_CURRENCY, ""),
    (_MATH_DELIMITER, " "),
    (_THIN_COMMA, ","),
    (_BRACED_COLON, ":"),
    (_DECORATION, ""),
    (_GLUED_QUAD, " "),
    (_SPACE, " "),
    (_RENAMED, lambda command: _NAMES[command[1]]),
    (_NUMBER_SET, lambda name: rf"\mathbb{{{name[1] or name[2]}}}"),
    (re.compile(r"(?<![ .$])[ .$]+$"), ""),
    (_PHANTOM, ""),
    (_UPRIGHT_FUNCTION, r"\\\1 "),
    (_UPRIGHT_UNIT, r"\\text{\1}"),
    (_UPRIGHT_WORD, r"\\text{\1}"),
    (_FONT, r"\1"),
    (_FONT, r"\1"),  # one within another
    (_TEXT, r"\\text{\1}"),
    (_ORDINAL, ""),
    (_UNIT_FRACTION, _unit_quotient),
    (_UNIT_QUOTIENT, r"\\text{\1/\2}"),
    (_CONNECTIVE, r" \1 "),
    (_NUMBER_IN_TEXT, r"\1"),
    (_DEGREE_WORD, r"^\\circ "),
    (_CLOCK_HALF, lambda half: f" {half[1].lower()}m"),
    (_RATIO_WORDS, r"\1:\2"),
    (_OUT_OF, r"\\frac{\1}{\2}"),
    (_ANNOUNCEMENT, ""),
    (_CONTRAST, ""),
    (_HEDGE, ""),
    (_NEGATIVE, "-"),
    (_REMARK, ""),
    (_NATURAL_LOG, r"\\ln "),
    (_CHOOSE, r"\\binom{\1}{\2}"),
    (_COMBINATIONS, _combinations),
    (_SLASHED_SCRIPTS, r"\\frac{\1}{\2}"),
    (_NOTHING, r"\\emptyset "),
    (_UNION_LETTER, r" \\cup "),
    (_ASCII_RELATION, lambda relation: _RELATIONS[relation.group()]),
    (_PYTHON_POWER, lambda power: f"^{{{power[1] or power[2]}}}"),
    (_TIMES_LETTER, r" \\times "),
    (_PLAIN_NAME, lambda name: r"\infty " if name[1] in _INFINITY else rf"\{name[1]} "),
    (_BRACKET_POWER, r"^{\1}"),
    (_LONG_POWER, r"^{\1}"),
    (_SHORT_ARGUMENTS, _braced_arguments),
    (_BRACKET_ROOT, r"\\sqrt{\1}"),
    (_SHORT_ROOT, r"\\sqrt{\1}"),
)


def unify_unicode(text: str) -> str:
    """Unicode mathematics as LaTeX, full-width characters as ASCII."""
    if text.isascii():
        return text
    text = _SUPERSCRIPT_RUN.sub(lambda run: "^{" + run.group().translate(_SUPERSCRIPTS) + "}", text)
    text = _SUBSCRIPT_RUN.sub(lambda run: "_{" + run.group().translate(_SUBSCRIPTS) + "}", text)
    text = _VULGAR_FRACTION.sub(lambda sign: " " + unicodedata.normalize("NFKC", sign.group()), text)
    text = _ROOT_SIGN.sub(lambda root: rf"\sqrt{{{root[1]}}}" if root[1] else r"\sqrt ", text)
    text = _SYMBOL.sub(lambda sign: _SYMBOLS[sign.group()], text)
    return unicodedata.normalize("NFKC", text)


def normalize(answer: str) -> str:
    """The answer in one spelling: plain LaTeX without delimiters, fonts, decoration or doubled spaces."""
    text = unify_unicode(answer)
    if _over_escaped(text):
        text = re.sub(r"\\\\(?=[A-Za-z])", r"\\", text)
    for pattern, replacement in _REWRITES:
        text = pattern.sub(replacement, text)
    text = _SPACES.sub(" ", text).strip()
    text = _CHOICE_LABEL.sub("", _trim(text), count=1) if _CHOICE_LABEL.match(_trim(text)) else _trim(text)
    return _SENTENCES.get(_TEXT.sub(r"\1", text).strip().casefold(), text)


def _over_escaped(text: str) -> bool:
    """Text whose backslashes were all doubled on the way: it names commands as `\\\\frac` and none as `\\frac`."""
    return bool(re.search(r"\\\\[a-zA-Z]{3}", text)) and not re.search(r"(?<!\\)\\[a-zA-Z]{3}", text)


def _trim(text: str) -> str:
    """Without quotation marks, markdown and sentence punctuation around it."""
    before = None
    while before != text:
        before = text
        text = text.strip().strip("*`").strip()
        text = (
            text.rstrip(".,;:!?").rstrip()
            if not text.endswith(r"\!") and not _is_factorial(text)
            else text.rstrip(".,;:?")
        )
        text = text.removesuffix("\\").rstrip()
        if len(text) >= 2 and text[0] == text[-1] and text[0] in "'\"":
            text = text[1:-1]
    return text


def _is_factorial(text: str) -> bool:
    return bool(re.search(r"[0-9A-Za-z)}]!+$", text))
