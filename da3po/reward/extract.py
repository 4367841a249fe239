"""The final answer of a response. Training and evaluation read responses with the same eyes: these.

What follows the last `</think>` and `###Response` is read. In this order: the last `<answer>`; the last complete
`\\boxed{}` or `\\fbox{}` (several that are joined by commas or "and" are one answer), unless a "Final answer: ..."
comes after it; what follows the last "answer is", `Answer:` or `####`; else the plain ending, which is the formula or
number that the last sentence ends with.
"""

from __future__ import annotations

import re

from da3po.reward.sentences import HEDGES, NUMBER, first_number, last_number, qualifier

_END_TOKEN = re.compile(r"<\|(?:im_end|im_start|endoftext|eot_id|end_of_text|end)\|>|</s>|<｜end▁of▁sentence｜>")
_ANSWER_TAG = re.compile(r"<answer>(.*?)</answer>", re.DOTALL | re.IGNORECASE)
_BOX = re.compile(r"\\(?:boxed|fbox|framebox)\s*(?:(\{)|([-+]?\d[\d.,/]*))")
_OPEN_BOX = re.compile(r"\\(?:boxed|fbox|framebox)(?![A-Za-z])")
_REFUSAL = re.compile(
    r"(?:do not|don't|cannot|can't|could not|couldn't) (?:know|solve|determine|answer)|not sure", re.IGNORECASE
)
# Between two boxes that make one answer: nothing but a unit word, a comma, "and" or "or", and the name of the next one.
_JOINT = re.compile(
    r"(?:[\s$.]|\\[()\[\],;:! ]|\\q?quad)*(?:[a-z]+\s+(?=and|or))?(?:,|;|(?:\\text\s*\{)?\s*,?\s*(?:and|or)\s*\}?)?"
    r"(?:[\s$]|\\[()\[\],;:! ]|\\q?quad)*(?:[A-Za-z](?:_\{?\w+\}?)?\s*=\s*)?"
)
_ANCHOR = re.compile(
    r"(?:final\s+answer|answer|answers|réponse|respuesta|resposta|risposta|antwort|ответ|答案|答え|정답|답|उत्तर|الجواب|الإجابة"
    r"|答(?=[:：]))(?![A-Za-z])"
    r"(?P<link>\s*\**\s*(?:(?:is|are|est|es|ist|è|é)(?!\w)\s*(?:for sure(?=\s))?|[是为為は은는]|है)?\s*[:：]?)[\s*]*",
    re.IGNORECASE,
)
_QUOTES = re.compile(r"^(?:\\?[\"'“*]|\s)+")
_CLOSING_QUOTES = "\"'”"
# Words between "the answer is" and the answer.
_ADVERBS = re.compile(
    rf"(?:(?:{HEDGES}|clearly|simply|just|therefore|thus|then|indeed|obviously|always|hence"
    r"|also|equal to|given by|in fact)(?![A-Za-z])[\s,:]*)+",
    re.IGNORECASE,
)
_LABEL = re.compile(r"\s*(?:A|[^\W\d_]{2,}(?:\s+[^\W\d_]+)*)\s*[:：]\s+(?=[^\n]*\d)")
_PRICE = re.compile(r"\s*(-?\d[\d.,]*)\s*[$€£¥](?=\s)")
_FINAL = re.compile(r"final\s+answer(?:\s+is|\s*:)", re.IGNORECASE)
_NAMED = re.compile(r"(?<![A-Za-z])(?:is|are|was|were)\s+([^\W\d_]+(?:[\s'-][^\W\d_]+){0,2})\**\s*$")
_HASHES = re.compile(r"####\s*:?\s*([^\n]+)")
_EMPHASIS = re.compile(r"(?<![\w)}\]])\*\*|\*\*(?![\w(-])|`")
_MINUS = re.compile(r"(?:minus|negative)\s", re.IGNORECASE)
_ALIGNED = re.compile(r"\\begin\{(align|aligned|equation|gather|eqnarray)\*?\}.*?\\end\{\1\*?\}", re.DOTALL)
_MATH = re.compile(r"\$\$(.+?)\$\$|\\\[(.+?)\\\]|\\\((.+?)\\\)|(?<!\\)\$([^$]+?)(?<!\\)\$", re.DOTALL)
_SENTENCE_END = re.compile(r"(?<=[^\d\s\\])[.!?](?=\s|$)|(?<=\d)\.(?=\s+[A-Z]|\s*$)|[。！？]|\n")
_WORD = re.compile(r"(?<![\\A-Za-z])[^\W\d_]{2,}")
_STATEMENT = re.compile(
    r"(?<![A-Za-z])(?:is|are|was|were|equals?|we|it|he|she|they|there|costs?|gives?|gets?|has|have|needs?|takes?|makes?|so"
    r"|thus|hence|therefore|donc)(?![A-Za-z])",
    re.IGNORECASE,
)
_IDEOGRAPHS = re.compile(r"[\u3040-\u30ff\u4e00-\u9fff]{2}")
_KNOWN_WORD = re.compile(
    r"sin|cos|tan|cot|sec|csc|log|ln|exp|sqrt|pi|and|or|inf|oo|lim|max|min|gcd|lcm|mod|det", re.IGNORECASE
)
# Words, a number and what is counted: `Hay 12 manzanas.`
_COUNTED = re.compile(rf"(?:(?:[^\W\d_]{{2,}}|[\u4e00-\u9fff])[\s—–:.-]+)+({NUMBER.pattern})(?:\s+[^\W\d_]+)*[.!]?")
MAX_ANSWER = 20_000
MAX_BARE_WORDS = 3


def final_answer(response: str) -> str | None:
    """The text of the final answer, or None if the response gives none."""
    text = visible(response)
    if text is None:
        return None
    answer = _restated(text) or marked_answer(text)
    if answer is None:
        answer = _anchored(text)
    if answer is None:
        answer = plain_ending(text)
    return answer[:MAX_ANSWER] if answer and answer.strip() else None


def _restated(text: str) -> str | None:
    """What a "Final answer: ..." after the last box says; a box before it holds an intermediate result."""
    start = max(text.rfind(r"\boxed"), text.rfind(r"\fbox"))
    if start < 0 or not _FINAL.search(text, start):
        return None
    answer = _anchored(text[start:])
    return answer if answer and re.search(r"\d", answer) else None


def marked_answer(text: str) -> str | None:
    """What stands in the last `<answer>` or in the last box; None if there is neither."""
    tags = _ANSWER_TAG.findall(text)
    if tags:
        return boxed_answer(tags[-1]) or str(tags[-1]).strip()
    return boxed_answer(text)


def visible(response: str) -> str | None:
    """The response without its reasoning; None if it never left it."""
    response = _END_TOKEN.split(response, maxsplit=1)[0]
    before, closed, after = response.rpartition("</think>")
    text = after if closed else before + after
    if "<think>" in text:
        return None
    return text.rpartition("###Response")[2]


def boxed_answer(text: str, unclosed: bool = False) -> str | None:
    """Content of the last complete box, or of the last few if they are joined.

    unclosed: let the last box lack its closing brace.
    """
    boxes: list[tuple[int, int, str]] = []  # start, end, content
    position = 0
    while match := _BOX.search(text, position):
        position = match.end()
        if match[2] is not None:
            boxes.append((match.start(), match.end(), match[2].rstrip(".,")))
            continue
        end = _closing_brace(text, match.end())
        if end is not None:
            boxes.append((match.start(), end + 1, text[match.end() : end]))
            position = end + 1
        elif unclosed:
            boxes.append((match.start(), len(text), text[match.end() :]))
            position = len(text)
    while boxes and not boxes[-1][2].strip():
        boxes.pop()
    if not boxes:
        return None
    joined = [boxes[-1]]
    for box in reversed(boxes[:-1]):
        if not _JOINT.fullmatch(text[box[1] : joined[0][0]]):
            break
        joined.insert(0, box)
    contents = [boxed_answer(content, unclosed) or content for _, _, content in joined]
    return ", ".join(dict.fromkeys(contents))


def _closing_brace(text: str, position: int) -> int | None:
    depth = 1
    for match in re.compile(r"\\.|[{}]", re.DOTALL).finditer(text, position):
        depth += {"{": 1, "}": -1}.get(match.group(), 0)
        if depth == 0:
            return match.start()
    return None


def _anchored(text: str) -> str | None:
    hashes = _HASHES.findall(text)
    if hashes:
        return str(hashes[-1])
    for match in reversed(list(_ANCHOR.finditer(text))):
        rest = text[match.end() :]
        if rest and (match["link"].strip("* \n") or rest.startswith(("$", "\\"))):
            return _first_statement(rest)
    return None


def _first_statement(text: str) -> str:
    """What an anchor announces: the formulas up to the end of the sentence, or its words."""
    quoted = _QUOTES.match(text)
    text = text[quoted.end() :] if quoted else text
    adverbs = _ADVERBS.match(text)
    text = _EMPHASIS.sub("", text[adverbs.end() :] if adverbs else text)
    if _MATH.match(text):
        return _formulas(text)
    text = text.strip("* ")
    sentence = _SENTENCE_END.split(text, maxsplit=1)[0]
    sentence = sentence.rstrip(_CLOSING_QUOTES) if quoted else sentence
    return sentence if _is_bare(sentence) else _last_formula(sentence) or first_number(sentence) or sentence


def _formulas(text: str) -> str:
    """The formula that `text` begins with, and those that commas or "and" join to it."""
    parts, position = [], 0
    while match := _MATH.match(text, position):
        parts.append(next(group for group in match.groups() if group is not None))
        position = match.end()
        percent = re.compile(r"\s*(?:\\?%|percent|pct)").match(text, position)
        if percent:
            parts[-1] += r"\%"
            position = percent.end()
        joint = re.compile(r"\s*(?:,\s*(?:and|or)?|and|or)\s*").match(text, position)
        if not joint or not _MATH.match(text, joint.end()):
            break
        position = joint.end()
    return ", ".join(parts)


def plain_ending(text: str) -> str | None:
    """The answer of a text that marks none: the whole of a bare answer, else the last formula or number of its last
    sentence that has one."""
    text = _ALIGNED.sub(_last_row, _EMPHASIS.sub("", text)).strip()
    if not text or _OPEN_BOX.search(text) or _REFUSAL.search(text):
        return None
    if "\n" not in text and not _MATH.search(text) and _is_bare(text):
        return _labelled(text)
    sentences = _SENTENCE_END.split(text)
    for sentence in reversed(sentences):
        if found := _last_formula(sentence) or last_number(sentence):
            return found
    named = _NAMED.search(next((sentence for sentence in reversed(sentences) if sentence.strip()), ""))
    return text if _is_bare(text) else named[1] if named else None


def _last_row(equations: re.Match[str]) -> str:
    """The last row of aligned equations, as a formula."""
    body = re.sub(r"\\(?:begin|end)\{\w+\*?\}", "", equations.group())
    rows = [row for row in body.replace("&", "").split(r"\\") if row.strip()]
    return f" ${rows[-1].strip(' =.,')}$ " if rows else " "


def _labelled(text: str) -> str:
    """A bare answer without a label such as `Total: ` or `There are ` before it and without what follows a price."""
    counted = _COUNTED.fullmatch(text)
    if counted and not (_KNOWN_WORD.match(text) or _MINUS.match(text) or qualifier(text, counted.start(1))):
        return counted[1].strip()
    label = _LABEL.match(text)
    text = text[label.end() :] if label else text
    price = _PRICE.match(text)
    return price[1] if price else text


def _is_bare(text: str) -> bool:
    """Few enough words outside `\\text{}` to be an answer and not a sentence."""
    outside = re.sub(r"\\(?:text|mathrm|textbf|mbox|begin|end)\s*\{[^{}]*\}|\\[A-Za-z]+", " ", text)
    if _STATEMENT.search(outside) or (_IDEOGRAPHS.search(outside) and re.search(r"\d", outside)):
        return False
    words = [word for word in _WORD.findall(outside) if not _KNOWN_WORD.fullmatch(word)]
    return len(words) <= MAX_BARE_WORDS and len(text) <= MAX_ANSWER


def _last_formula(sentence: str) -> str | None:
    found = list(_MATH.finditer(sentence))
    if not found or re.search(r"\d", sentence[found[-1].end() :]):
        return None
    first = len(found) - 1
    while first and re.fullmatch(
        r"\s*(?:,\s*(?:and|or)?|and|or)\s*", sentence[found[first - 1].end() : found[first].start()]
    ):
        first -= 1
    if words := qualifier(sentence, found[first].start()):
        return f"{words} {_formulas(sentence[found[first].start() :])}"
    return _formulas(sentence[found[first].start() :])
