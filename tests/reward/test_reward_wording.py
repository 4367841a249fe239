"""What stands beside a number or a symbol and makes another statement of it, or does not: rows by kind."""

from __future__ import annotations

import pytest

from da3po.reward import worker
from da3po.types import Outcome

QUALIFIED = """\
5 | The answer is not 5. | wrong
5 | \\boxed{not 5} | wrong
5 | It isn't 5. | wrong
5 | The value can't be 5 | wrong
5 | The answer is more than 5. | wrong
5 | He needs at least 5 coins. | correct
5 | They can buy no more than 5 pens. | correct
5 | \\boxed{\\text{at least } 5} | wrong
5 | \\boxed{5 at most} | wrong
5 | \\boxed{5 or more} | wrong
5 | fewer than 5 | wrong
5 | The number is different from 5 | wrong
5 | The answer is the square root of 5 | wrong
5 | The answer is a multiple of 5 | wrong
12 | The answer is half of 12 | wrong
9 | 3 times 9 | wrong
27 | 3 times 9 is 27 | correct
5 | Half of the 10 apples are 5 | correct
at least 5 | \\boxed{at least 5} | correct
5 | There are exactly 5 apples. | correct
5 | The answer is around 5 | correct
5 | The answer is not 6 but 5 | correct
6 | The answer is not 6 but 5 | wrong
5 | The answer is 5, not 6 | correct
6 | The answer is 5, not 6 | wrong
5 | The smallest is 5, not 6. | correct
6 | The smallest is 5, not 6. | wrong
6 | The smallest is 5, and it is not 6. | wrong
5 | Since it is not 4, the answer is 5. | correct
A | The answer is not A | wrong
A | The answer cannot be A | wrong
A | \\boxed{\\text{not A}} | wrong
A | It is not A, but B. | wrong
C | The option that is not correct is C. | correct
C | Which one is not true? It is C. | correct
B | It is not A, but B. | correct
B | <answer>not A but B</answer> | correct
B | A is wrong, so the answer is B | correct
17 | It all adds up to 17. | correct
17 | We round up to 17. | correct
17 | This brings her total up to 17 apples. | correct
17 | The triangle has a base of 17. | correct
17 | The base equals 17 | correct
17 | The square root equals 17 | correct
17 | The other half equals $17$. | correct
17 | It is written in base 17 | wrong
17 | The sum is not equal to 17 | wrong
17 | It is more than half 17 | wrong
17 | It is half the 17 | wrong
17 | \\boxed{\\text{about } 17} | correct
17 | \\boxed{\\text{exactly } 17 \\text{ cm}} | correct
17 | \\boxed{\\text{not } 17} | wrong"""

LETTERS = """\
R | \\boxed{r} | wrong
\\pi R^2 | \\boxed{\\pi r^2} | wrong
2R+r | \\boxed{2r+R} | wrong
2R+r | \\boxed{r+2R} | correct
AB | \\boxed{ab} | wrong
\\sin A | \\boxed{\\sin a} | wrong
E = mc^2 | \\boxed{E=mc^2} | correct
Tom | \\boxed{tom} | correct
YES | \\boxed{Yes} | correct
A | \\boxed{a} | correct
(B) | \\boxed{(b)} | correct
A | \\boxed{A^2} | wrong
a_1 | \\boxed{A_1} | wrong
a_1 | \\boxed{a_2} | wrong
1 | \\boxed{a_1} | wrong
10 | \\boxed{a_{11}} | wrong
a_1+a_2 | \\boxed{a_2+a_1} | correct
255 | \\boxed{FF_{16}} | correct
ff_{16} | \\boxed{FF_{16}} | correct
5 | \\boxed{101_2} | correct
6 | \\boxed{101_2} | wrong
10 | \\boxed{C_5^2} | correct
C_1^2 | \\boxed{C_1^2} | correct
C_1^2 | \\boxed{0} | wrong
A^T | \\boxed{A^\\top} | correct
A^T | \\boxed{A^{\\intercal}} | correct
A^\\top A | \\boxed{A^T A} | correct
A^T | \\boxed{A} | wrong
A | \\boxed{A^T} | wrong
A | The answer is A^T | wrong
A | The answer is **A** | correct
A^TA | \\boxed{AA} | wrong
x^Ty | \\boxed{xy} | wrong
2^T | \\boxed{2^{T}} | correct
2^T | \\boxed{2} | wrong"""

UNITS = """\
3 quarts | \\boxed{3 gallons} | wrong
4 quarts | \\boxed{1\\text{ gallon}} | correct
4 cups | \\boxed{1 quart} | correct
3 feet | \\boxed{1 yard} | correct
5 people | \\boxed{5 person} | correct
5 children | \\boxed{5 child} | correct
3 classes | \\boxed{3 class} | correct
3 cities | \\boxed{3 city} | correct
5 apples | \\boxed{5 apple} | correct
5\\text{ students} | \\boxed{5\\text{ people}} | correct
12 ways | \\boxed{12 arrangements} | correct
5 people | \\boxed{5 meters} | wrong
5 joules | \\boxed{5 watts} | wrong
2 kilowatts | \\boxed{2000 watts} | correct
60 miles per hour | \\boxed{60 mph} | correct
60 miles per hour | \\boxed{60\\text{ miles/hour}} | correct
60 miles per hour | \\boxed{1 mile per minute} | correct
60 miles per hour | \\boxed{60 miles per minute} | wrong
3 meters per second squared | \\boxed{3 m/s^2} | correct
10 cents per minute | \\boxed{10 dollars per minute} | wrong
3 pages per day | \\boxed{3 pages/day} | correct
5 sq. ft | \\boxed{5 square feet} | correct
5 m | \\boxed{5 meters squared} | wrong
5 squares | \\boxed{5 s^2} | wrong
20 degrees Celsius | \\boxed{20^\\circ C} | correct
20^\\circ C | \\boxed{20^\\circ F} | wrong
20^\\circ C | \\boxed{20} | correct
5 | \\boxed{5 (cm)} | correct
5 m | \\boxed{5 (cm)} | wrong
5 | \\boxed{5 (m)} | wrong
3xy | \\boxed{3 xy} | correct
3 | \\boxed{3 xy} | wrong
3 | \\boxed{3 a b c d} | wrong
5 | \\boxed{5 ab cd} | wrong
5 | \\boxed{5 km} | correct
1 | \\boxed{1 kid} | correct
1 | \\boxed{1 pie} | correct
5 | \\boxed{5 pcs} | correct
5 pies | \\boxed{5 pie} | correct
5 cups | \\boxed{5\\text{ cups of flour}} | correct
5 cups of flour | \\boxed{5 cups} | correct
5 cups | \\boxed{5\\text{ pints of milk}} | wrong
\\$18 | \\boxed{18\\text{ dollars left}} | correct
\\$18 | \\boxed{18\\text{ cents left}} | wrong
\\$18 | \\boxed{18\\text{ dollars less than Tom}} | wrong
12\\text{ inches} | \\boxed{1\\text{ foot long}} | correct
12\\text{ cm} | \\boxed{12\\text{ cm in total}} | correct
40\\text{ square feet} | \\boxed{40\\text{ square feet of carpet}} | correct
60\\text{ mph} | \\boxed{60\\text{ miles per hour faster}} | correct
5\\text{ people} | \\boxed{5\\text{ in total}} | correct
5\\% | \\boxed{5\\text{ percent}} | correct
0.05 | \\boxed{5\\text{ percent}} | correct
6\\% | \\boxed{5\\text{ percent}} | wrong"""

RECKONED = """\
5 | \\boxed{5 plus two} | wrong
5 | The answer is 5 plus two | wrong
5 | \\boxed{5 squared} | wrong
5 | \\boxed{5 x squared} | wrong
5 | 5 times 2 | wrong
5 | 5 divided by 2 | wrong
5 | \\boxed{5 over x} | wrong
5 | 5 less than 8 | wrong
5 | 5 hundredths | wrong
5 | \\boxed{5 if n is even} | wrong
5 | \\boxed{5 each} | correct
5 | \\boxed{5 (total)} | correct
5 | \\boxed{5 \\text{ (in total)}} | correct
5 | \\boxed{5 (rounded)} | correct
5 | \\boxed{5 (base 6)} | wrong
5 | \\boxed{5 (if n > 3)} | wrong
5 | \\boxed{5 (or 6)} | wrong
5 | \\boxed{5 (times 2)} | wrong
5 \\pmod 7 | \\boxed{12 (mod 7)} | correct
5 | \\boxed{12 (mod 7)} | wrong"""

MULTIPLES = """\
2000000 dollars | \\boxed{2 million dollars} | correct
\\$2000000 | \\boxed{\\$2 million} | correct
2000000 | The answer is 2 million dollars. | correct
2\\text{ million dollars} | \\boxed{2000000 dollars} | correct
2 | \\boxed{2 million dollars} | wrong
2 | It costs 2 million dollars. | wrong
3200000 | \\boxed{3.2 \\text{ million people}} | correct
300 | \\boxed{3 hundred} | correct
24 eggs | \\boxed{2 dozen eggs} | correct
24 | \\boxed{two dozen} | correct
12 | \\boxed{a dozen} | correct
5 | \\boxed{5 dozen} | wrong
1.5 | \\boxed{1.5 thousand} | wrong
3 | He read 3 hundred-page books. | correct"""

WORDS = """\
2.5 | \\boxed{two and a half} | correct
2.5 | \\boxed{2 and a half} | correct
2 | The answer is two and a half. | wrong
0.5 | \\boxed{two and a half} | wrong
2.5\\text{ hours} | \\boxed{two and a half hours} | correct
2.5 | \\boxed{5 halves} | correct
2.75 | \\boxed{two and three quarters} | correct
105.5 | \\boxed{one hundred and five and a half} | correct
3/4 | \\boxed{three quarters} | correct
3/4 | \\boxed{three quarters of an hour} | wrong
3 | \\boxed{three quarters} | wrong
3 | \\boxed{3 quarters} | correct
1/3 | \\boxed{a third} | correct
5/12 | \\boxed{five twelfths} | correct
23/100 | \\boxed{twenty-three hundredths} | correct
1/4 | \\boxed{fourth} | wrong
4 | \\boxed{twenty-fifth} | wrong
25 | \\boxed{twenty five hours} | correct
20 | \\boxed{twenty five hours} | wrong
105 | \\boxed{one hundred and five dollars} | correct
5 | \\boxed{five plus two} | wrong
2,1 | \\boxed{two and one} | correct
5 | \\boxed{\\text{five}} | correct
5 | \\boxed{\\text{Five}} | correct
0 | \\boxed{\\text{zero}} | correct
1/2 | \\boxed{\\text{one half}} | correct
4 | \\boxed{\\text{five}} | wrong
\\text{seven} | \\boxed{7} | correct
\\text{seven} | \\boxed{8} | wrong
5 | \\boxed{\\text{fifth}} | wrong"""

RATIOS = """\
3:30 | \\boxed{3:05} | wrong
3:30 | \\boxed{1:10} | wrong
3:30 | \\boxed{03:30} | correct
12:30 | \\boxed{2:5} | wrong
8:00 | \\boxed{4:00} | wrong
6:4 | \\boxed{3:2} | correct
3:2 | \\boxed{6:4} | correct
2:3 | \\boxed{30:45} | correct
30:45 | \\boxed{2:3} | correct
3:2 | \\boxed{2:3} | wrong
1:2:3 | \\boxed{2:4:6} | correct
1 cm : 2 cm | \\boxed{1:2} | correct
2 cups:1 cup | \\boxed{2:1} | correct
1\\text{ m}:50\\text{ cm} | \\boxed{2:1} | correct
1 m : 50 cm | \\boxed{1:50} | wrong"""

SENTENCES = """\
12 | The area is 12 cm^2. | correct
2 | The area is 12 cm^2. | wrong
12\\pi | The volume is 12π cubic centimeters. | correct
12 | The volume is 12π cubic centimeters. | wrong
2\\sqrt{3} | So the length is 2√3. | correct
3\\sqrt{2} | So the length is 3*sqrt(2). | correct
1024 | So the number of subsets is 2^10. | correct
10 | So the number of subsets is 2^10. | wrong
3/4 | So the probability is \\frac{3}{4}. | correct
4 | So the probability is \\frac{3}{4}. | wrong
2n+1 | So the formula is 2n+1. | correct
x^2+3x+2 | So the polynomial is x^2 + 3x + 2. | correct
2 | So the polynomial is x^2 + 3x + 2. | wrong
7 | So he has 10 - 3 apples left. | correct
7 | He has 10 - 3 = 7 apples left. | correct
9 | The number is 3^2=9. | correct
5 | So f(2)=5. | correct
2.5 | So she needs 2 1/2 cups. | correct
-3 | The result is negative 3. | correct
3 | The result is minus 3. | wrong
5 | 10 minus 5 equals 5. | correct
5:30\\text{ pm} | The train arrives at 5:30 pm. | correct
5:30\\text{ pm} | The train arrives at 5:30 a.m. | wrong
30 | The train arrives at 5:30 pm. | wrong
7 | Step 3: So he has 7 apples | correct
2:3 | The ratio of boys to girls is 2 : 3. | correct
3 | The ratio of boys to girls is 2:3. | wrong
(3,4) | So the midpoint is at (3, 4). | correct
4 | So the midpoint is at (3, 4). | wrong
5 | The distance from (0, 0) to (3, 4) is 5. | correct
5,-5 | The solutions are x = 5 or x = -5. | correct
-5 | The solutions are x = 5 or x = -5. | wrong
2,5,7 | So the roots are x = 2, x = 5, and x = 7. | correct
18 | So it costs \\$18.00 per day. | correct
60 | So the angle is 60°. | correct
12 | So we have 3 \\times 4. | correct
12 | So we have 3 × 4 = 12. | correct
7/10 | The probability is 7 out of 10. | correct
7/10 | \\boxed{7 \\text{ out of } 10} | correct
10 | The probability is 7 out of 10. | wrong
2:3 | The ratio is 2 to 3. | correct
10 | The number of marbles went from 7 to 10. | correct"""

TABLES = {
    "qualified": QUALIFIED, "letters": LETTERS, "units": UNITS, "reckoned": RECKONED, "multiples": MULTIPLES,
    "words": WORDS, "ratios": RATIOS, "sentences": SENTENCES,
}  # fmt: skip
ROWS = [(kind, *row.rsplit(" | ", 1)) for kind, table in TABLES.items() for row in table.splitlines()]


@pytest.fixture(scope="module", autouse=True)
def _grader() -> None:
    worker.load("math")


@pytest.mark.parametrize(("kind", "texts", "outcome"), ROWS)
def test_what_stands_beside_an_answer(kind: str, texts: str, outcome: str) -> None:
    gold, response = texts.split(" | ")
    [grade] = worker.grade_chunk(gold, [response])
    assert grade.outcome is Outcome(outcome), grade
