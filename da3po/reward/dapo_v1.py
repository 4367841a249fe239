"""The rule grader of the DAPO recipe, under its own name and with its own limits, for runs that must reproduce it.

The last 300 characters of the response are searched for the last line `Answer: ...`; both sides are normalised after
Appendix D.1 of the Minerva paper (Lewkowycz et al. 2022) and compared as strings. Use `math` unless you need this one:
it counts 1/2 and 0.5 as different, and a right answer followed by a long remark as missing.
"""

from __future__ import annotations

import re

from da3po.types import Grade, Outcome

TAIL = 300
ANSWER_LINE = re.compile(r"(?i)Answer\s*:\s*([^\n]+)")

# Applied in this order.
SUBSTITUTIONS = (
    ("an ", ""),
    ("a ", ""),
    (".$", "$"),
    (r"\$", ""),
    (r"\ ", ""),
    (" ", ""),
    ("mbox", "text"),
    (r",\text{and}", ","),
    (r"\text{and}", ","),
    (r"\text{m}", r"\text{}"),
)
UNIT_WORDS = (
    "square", "ways", "integers", "dollars", "mph", "inches", "hours", "km", "units", r"\ldots", "sue", "points",
    "feet", "minutes", "digits", "cents", "degrees", "cm", "gm", "pounds", "meters", "meals", "edges", "students",
    "childrentickets", "multiples",
)  # fmt: skip
REMOVED = (
    *UNIT_WORDS,
    r"\text{s}",
    r"\text{.}",
    "\\text{\ns}",
    r"\text{}^2",
    r"\text{}^3",
    "\\text{\n}",
    r"\text{}",
    r"\mathrm{th}",
    r"^\circ",
    r"^{\circ}",
    r"\;",
    r",\!",
    "{,}",
    '"',
    r"\dots",
)
REWRITES = (
    (re.compile(r"(.*?)(\$)(.*?)(\$)(.*)"), r"$\3$"),  # what stands between dollars
    (re.compile(r"(\\text\{)(.*?)(\})"), r"\2"),
    (re.compile(r"(\\textbf\{)(.*?)(\})"), r"\2"),
    (re.compile(r"(\\overline\{)(.*?)(\})"), r"\2"),
    (re.compile(r"(\\boxed\{)(.*)(\})"), r"\2"),
    (re.compile(r"(frac)([^{])(.)"), r"frac{\2}{\3}"),  # \frac12
    (re.compile(r"(sqrt)([^{])"), r"sqrt{\2}"),  # \sqrt2
)


def normalize(answer: str) -> str:
    """The answer as Minerva's rules leave it; only what follows the last equals sign counts."""
    answer = answer.rpartition("=")[2]
    for before, after in SUBSTITUTIONS:
        answer = answer.replace(before, after)
    for expression in REMOVED:
        answer = answer.replace(expression, "")
    for pattern, template in REWRITES:
        answer = pattern.sub(template, answer)
    answer = answer.replace("$", "")
    if answer.replace(",", "").isdigit():
        answer = answer.replace(",", "")
    return answer.strip()


def grade(gold: str, response: str) -> Grade:
    found = ANSWER_LINE.findall(response[-TAIL:])
    if not found:
        return Grade(outcome=Outcome.NO_ANSWER)
    answer = normalize(found[-1])
    return Grade(outcome=Outcome.CORRECT if answer == normalize(gold) else Outcome.WRONG, answer=answer)
