"""One spelling for what is written in many: Unicode, LaTeX variants, spacing, decoration. Text in, text out.

Everything here runs in linear time on any input.
"""

from __future__ import annotations

import re
import unicodedata

_SUPERSCRIPTS = str.maketrans("⁰¹²³⁴⁵⁶⁷⁸⁹⁺⁻ⁿ", "0123456789+-n")
_SUPERSCRIPT_RUN = re.compile(r"[⁰¹²³⁴⁵⁶⁷⁸⁹⁺⁻ⁿ]+")
_SUBSCRIPTS = str.maketrans("₀₁₂₃₄₅₆₇₈₉", "0123456789")
_SUBSCRIPT_RUN = re.compile(r"[₀₁₂₃₄₅₆₇₈₉]+")
_VULGAR_FRACTION = re.compile(r"[¼-¾⅐-⅞]")
_ROOT_SIGN = re.compile(r"√\s*(\d+(?:\.\d+)?|[A-Za-z]|(?=[({]))")
_SYMBOLS = {
    "−": "-", "–": "-", "—": "-", "﹣": "-", "×": r"\times ", "÷": "/", "⁄": "/", "∕": "/", "·": r"\cdot ",
    "⋅": r"\cdot ", "π": r"\pi ", "∞": r"\infty ", "°": r"^\circ ", "≤": r"\le ", "≥": r"\ge ", "≠": r"\ne ",
    "≈": r"\approx ", "∪": r"\cup ", "∩": r"\cap ", "∈": r"\in ", "±": r"\pm ", "θ": r"\theta ", "α": r"\alpha ",
    "β": r"\beta ", "∅": r"\emptyset ", "，": ",", "；": ";", "：": ":", "、": ",", "。": ".", "‘": "'", "’": "'",
    "“": '"', "”": '"', "\u00a0": " ", "\u202f": " ", "\u2009": " ", "\u200b": "",
}  # fmt: skip
_SYMBOL = re.compile("|".join(map(re.escape, _SYMBOLS)))

# Commands that change how an answer looks and not what it says.
_DECORATION = re.compile(
    r"\\(?:displaystyle|textstyle|limits|nolimits|left|right|[bB]ig+[lrm]?|nonumber|notag|hfill|mathopen|mathclose)"
    r"(?![A-Za-z])\.?"
)
_SPACE = re.compile(r"\\(?:quad|qquad|enspace|hspace\*?\{[^{}]*\})(?![a-z])|(?<!\\)\\[,;:! ]|~")
# `\quadx` is a typing slip for `\quad x` that real data has.
_GLUED_QUAD = re.compile(r"\\q?quad(?=[A-Za-z])")
_RENAMED = re.compile(
    r"\\(lbrace|rbrace|lbrack|rbrack|dfrac|tfrac|cfrac|leq|leqslant|geq|geqslant|neq|lt|gt|ldots|cdots|gets|to|land|lor|rm|bf)(?![A-Za-z])"
)
_NAMES = {
    "lbrace": r"\{", "rbrace": r"\}", "lbrack": "[", "rbrack": "]",
    "dfrac": r"\frac", "tfrac": r"\frac", "cfrac": r"\frac", "leq": r"\le ", "leqslant": r"\le ", "geq": r"\ge ",
    "geqslant": r"\ge ", "neq": r"\ne ", "lt": "<", "gt": ">", "ldots": r"\dots ", "cdots": r"\dots ",
    "gets": "", "to": r"\rightarrow ", "land": " and ", "lor": " or ", "rm": "", "bf": "",
}  # fmt: skip
_FONT = re.compile(
    r"\\(?:mathrm|mathbf|mathit|mathsf|mathtt|boldsymbol|textbf|textit|emph|bm|operatorname\*?)\s*\{([^{}]*)\}"
)
# Upright words are words (units, most often); a single upright letter is a symbol: e, E, d.
_UPRIGHT_WORD = re.compile(r"\\mathrm\s*\{([^{}\\]*[A-Za-z][A-Za-z/][^{}\\]*)\}")
_TEXT = re.compile(r"\\(?:text|mbox|textrm|textnormal|textsf|texttt|hbox)\s*\{([^{}]*)\}")
_CONNECTIVE = re.compile(r"\\text\{\s*,?\s*(and|or)\s*,?\s*\}", re.IGNORECASE)
_NUMBER_IN_TEXT = re.compile(r"\\text\{\s*(\d[^{}]*)\}")
# The letter of a choice that stands before its content: `\textbf{(B)}\ 12`.
_CHOICE_LABEL = re.compile(r"(?:\\text\{\s*\([A-J]\)\s*\}\s*|\([A-J]\)\s+)(?=\S)")
_UPRIGHT_UNIT = re.compile(r"(?<=[\d}])(?:\s|~)*\\mathrm\s*\{[\s~]*([NJWCVKTFHLAgsm])\}$")
_NATURAL_LOG = re.compile(r"\\log\s*_\s*(?:e|\{\s*e\s*\})")
_CHOOSE = re.compile(r"\{\s*([^{}\\]*)\\choose(?![A-Za-z])\s*([^{}]*)\}")
_NOTHING = re.compile(r"\\(?:varnothing|emptyset)(?![A-Za-z])|\\\{\s*\\\}")
_SENTENCES = {
    "no solution": r"\emptyset ", "no solutions": r"\emptyset ", "no real solution": r"\emptyset ",
    "no real solutions": r"\emptyset ", "empty set": r"\emptyset ", "the empty set": r"\emptyset ",
    "dne": r"\text{does not exist}", "does not exist": r"\text{does not exist}",
    "all real numbers": r"\mathbb{R}", "all reals": r"\mathbb{R}", "every real number": r"\mathbb{R}",
}  # fmt: skip
_ASCII_RELATION = re.compile(r"<=|>=|!=|==")
_RELATIONS = {"<=": r"\le ", ">=": r"\ge ", "!=": r"\ne ", "==": "="}
_SHORT_FRACTION = re.compile(r"\\frac\s*(?:(\d)\s*(\d)|(\d)\s*(\{[^{}]*\})|(\{[^{}]*\})\s*([0-9A-Za-z]))")
_SHORT_ROOT = re.compile(r"\\sqrt\s*(\d|[A-Za-z])")
_BRACKET_ROOT = re.compile(r"\\sqrt\s*\(([^()]*)\)")
_PLAIN_NAME = re.compile(r"(?<![\\A-Za-z])(sqrt|pi|infty|infinity|oo)(?![A-Za-z])")
_PLAIN_NAMES = {"sqrt": r"\sqrt ", "pi": r"\pi ", "infty": r"\infty ", "infinity": r"\infty ", "oo": r"\infty "}
_THIN_COMMA = re.compile(r"\{,\}|,\s*\\!\s*")
_MATH_DELIMITER = re.compile(r"\\[()\[\]]|(?<!\\)\$+")
_CURRENCY = re.compile(r"\\\$|[€£¥₹]")
_SPACES = re.compile(r"\s+")


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
    text = _CURRENCY.sub("", text)
    text = _MATH_DELIMITER.sub(" ", text)
    text = _THIN_COMMA.sub(",", text)
    text = _DECORATION.sub("", text)
    text = _GLUED_QUAD.sub(" ", text)
    text = _SPACE.sub(" ", text)
    text = _RENAMED.sub(lambda command: _NAMES[command[1]], text)
    text = _UPRIGHT_UNIT.sub(r"\\text{\1}", text.rstrip(" .$"))
    text = _UPRIGHT_WORD.sub(r"\\text{\1}", text)
    text = _FONT.sub(r"\1", text)
    text = _TEXT.sub(r"\\text{\1}", text)
    text = _CONNECTIVE.sub(r" \1 ", text)
    text = _NUMBER_IN_TEXT.sub(r"\1", text)
    text = _NATURAL_LOG.sub(r"\\ln ", text)
    text = _CHOOSE.sub(r"\\binom{\1}{\2}", text)
    text = _NOTHING.sub(r"\\emptyset ", text)
    text = _ASCII_RELATION.sub(lambda relation: _RELATIONS[relation.group()], text)
    text = _PLAIN_NAME.sub(lambda name: _PLAIN_NAMES[name[1]], text)
    text = _SHORT_FRACTION.sub(_long_fraction, text)
    text = _BRACKET_ROOT.sub(r"\\sqrt{\1}", text)
    text = _SHORT_ROOT.sub(r"\\sqrt{\1}", text)
    text = _SPACES.sub(" ", text).strip()
    text = _CHOICE_LABEL.sub("", _trim(text), count=1) if _CHOICE_LABEL.match(_trim(text)) else _trim(text)
    return _SENTENCES.get(_TEXT.sub(r"\1", text).strip().casefold(), text)


def _over_escaped(text: str) -> bool:
    """Text whose backslashes were all doubled on the way: it names commands as `\\\\frac` and none as `\\frac`."""
    return bool(re.search(r"\\\\[a-zA-Z]{3}", text)) and not re.search(r"(?<!\\)\\[a-zA-Z]{3}", text)


def _long_fraction(short: re.Match[str]) -> str:
    parts = [part.strip("{}") for part in short.groups() if part is not None]
    return rf"\frac{{{parts[0]}}}{{{parts[1]}}}"


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
